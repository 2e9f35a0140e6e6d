// A text that grows, with the origin of each character.

export const UNKNOWN = -1; // the step of characters for which the server sent no origin
export const BY_TEXT = "text"; // the step of characters of drafts from text

/** A text in which each character has a draft step: k if the head's k-th draft step proposed its token, BY_TEXT if the
 * token is a draft from text, and 0 if it was sampled from the target model. Positions count UTF-16 units, as in JavaScript's strings. */
export class ColouredText {
  text = "";
  #ends = []; // the end positions of runs of characters with the same step
  #steps = []; // the step of each run

  /** Returns a text with origins from a record that `record` returned. */
  static from({ text, ends, steps }) {
    const made = new ColouredText();
    Object.assign(made, { text });
    made.#ends = [...ends];
    made.#steps = [...steps];
    return made;
  }

  /** The text as plain data. ends: the end positions of runs of characters with the same step. */
  get record() {
    return { text: this.text, ends: [...this.#ends], steps: [...this.#steps] };
  }

  /** Appends a text. runs: pairs [number of characters, step] from the server, which counts code points. */
  append(text, runs) {
    let from = 0;
    for (const [count, step] of runs) {
      const to = after(text, from, count);
      this.#push(this.text.length + to, step);
      from = to;
    }
    this.text += text;
    if (from < text.length) this.#push(this.text.length, UNKNOWN);
  }

  #push(end, step) {
    const last = this.#ends.length - 1;
    if (end === (last < 0 ? 0 : this.#ends[last])) return;
    if (last >= 0 && this.#steps[last] === step) this.#ends[last] = end;
    else {
      this.#ends.push(end);
      this.#steps.push(step);
    }
  }

  /** Yields [from, to, step] for each run between two positions. */
  *runs(from, to) {
    let low = 0;
    let high = this.#ends.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#ends[middle] <= from) low = middle + 1;
      else high = middle;
    }
    for (let i = low; from < to; i++) {
      const end = Math.min(to, this.#ends[i]);
      yield [from, end, this.#steps[i]];
      from = end;
    }
  }

  /** Appends a slice of the text to the element `parent`, as one span per run. A span has the class o0, o1, … or otext for the
   * step, and the attribute data-at for the position. */
  paint(parent, from, to) {
    for (const [start, end, step] of this.runs(from, to)) {
      const span = document.createElement("span");
      span.textContent = this.text.slice(start, end);
      if (step !== UNKNOWN) span.className = `o${step}`;
      span.dataset.at = start;
      parent.append(span);
    }
  }
}

function after(text, from, count) {
  let to = from;
  for (; count > 0 && to < text.length; count--) to += text.codePointAt(to) > 0xffff ? 2 : 1;
  return to;
}
