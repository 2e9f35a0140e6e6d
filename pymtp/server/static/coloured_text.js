// A text that grows, and the origin of each of its characters.

export const UNKNOWN = -1; // the server sent no origin

/** Positions count UTF-16 units, as in JavaScript's strings. A step is 0 for tokens of the target model, and k for drafts
 * of step k. */
export class ColouredText {
  text = "";
  #ends = []; // the ends of runs with one step
  #steps = [];

  /** Appends a text. runs: [characters, step] of the server, which counts code points. */
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

  /** Yields [from, to, step] of the runs between two positions. */
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

  /** Appends a slice to an element, one span per run: its class is o0, o1, …, its data-at the position. */
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
