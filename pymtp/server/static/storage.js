// Small values that the browser keeps by name: for all tabs (local), or for one tab (session).

/** Values in an area of the browser's storage. If the browser refuses the area, they are kept until the page is left. */
class Values {
  #area = null;
  #memory = new Map();

  /** open: returns the area; browsers that refuse it throw an error. */
  constructor(open) {
    try {
      this.#area = open();
      this.#area.getItem("");
    } catch {
      this.#area = null;
    }
  }

  /** Returns a text; null if there is none. */
  get(name) {
    return this.#memory.get(name) ?? this.#area?.getItem(name) ?? null;
  }

  set(name, text) {
    try {
      if (!this.#area) throw new Error("no storage");
      this.#area.setItem(name, text);
      this.#memory.delete(name);
    } catch {
      this.#memory.set(name, text);
    }
  }

  remove(name) {
    this.#memory.delete(name);
    this.#area?.removeItem(name);
  }
}

export const local = new Values(() => localStorage);
export const session = new Values(() => sessionStorage);
