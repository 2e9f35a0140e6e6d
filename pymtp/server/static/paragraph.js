// A paragraph with inline Markdown, whose text grows at the end.

import { formula } from "./formula.js";
import { Operations, Source, readNode } from "./inline.js";

/** Draws slices of a ColouredText into an element. A part whose parse can no longer change is drawn only once. */
export class Paragraph {
  #text = "";
  #pieces = []; // a pair [position in #text, position in colouredText] for each slice
  #settled = 0; // the number of characters of #text whose parse can no longer change
  #settledNodes = 0; // the number of nodes of the element that can no longer change
  changed = false;

  constructor(element, colouredText) {
    this.element = element;
    this.colouredText = colouredText;
  }

  add(from, to) {
    const last = this.#pieces.at(-1);
    if (!last || this.#text.length - last[0] !== from - last[1]) this.#pieces.push([this.#text.length, from]);
    this.#text += this.colouredText.text.slice(from, to);
    this.changed = true;
  }

  /** Returns a function that removes everything that was added after this call. Until that function is called, `draw`
   * must be called with `tentative`. */
  snapshot() {
    const [length, pieces] = [this.#text.length, this.#pieces.length];
    return () => {
      this.#text = this.#text.slice(0, length);
      this.#pieces.length = pieces;
      this.changed = true;
    };
  }

  /** Draws the new text. final: whether the text is complete. tentative: whether the last additions may be undone. */
  draw({ final = false, tentative = false } = {}) {
    while (this.element.childNodes.length > this.#settledNodes) this.element.lastChild.remove();
    const out = new Operations();
    const source = new Source(this.#text, final ? Infinity : this.#text.length);
    let settling = !tentative;
    let settled = 0; // the number of operations that can no longer change
    for (let i = this.#settled; i < this.#text.length; ) {
      source.reached = false;
      i = readNode(source, i, this.#text.length, out);
      settling &&= !source.reached;
      if (settling) [this.#settled, settled] = [i, out.list.length];
    }
    this.#put(out.list.slice(0, settled));
    this.#settledNodes = this.element.childNodes.length;
    this.#put(out.list.slice(settled));
    this.changed = false;
  }

  #put(operations) {
    let parent = this.element;
    let [from, to] = [0, 0]; // the part of #text that is not painted yet
    const paint = () => {
      if (from < to) this.#paint(parent, from, to);
      from = to = 0;
    };
    for (const [what, a, b, inner] of operations) {
      if (what === "text") {
        if (a !== to) {
          paint();
          from = a;
        }
        to = b;
        continue;
      }
      paint();
      if (what === "formula") this.#putFormula(parent, a, b, inner);
      else if (what === "close") parent = parent.parentNode;
      else parent = parent.appendChild(elementFor(a, b));
    }
    paint();
  }

  /** Adds a formula; its source, if it cannot be read. */
  #putFormula(parent, from, to, inner) {
    const element = formula(this.#text.slice(inner.from, inner.to), inner);
    if (element) parent.append(element);
    else this.#paint(parent, from, to);
  }

  #paint(parent, from, to) {
    let i = this.#pieceAt(from);
    while (from < to) {
      const [position, sourcePosition] = this.#pieces[i++];
      const end = Math.min(to, this.#pieces[i]?.[0] ?? to);
      this.colouredText.paint(parent, sourcePosition + from - position, sourcePosition + end - position);
      from = end;
    }
  }

  /** Returns the index of the slice that has a position of #text. */
  #pieceAt(position) {
    let [low, high] = [0, this.#pieces.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.#pieces[middle][0] <= position) low = middle;
      else high = middle - 1;
    }
    return low;
  }
}

function elementFor(tag, href) {
  const element = document.createElement(tag);
  if (href) {
    element.href = href;
    element.target = "_blank";
    element.rel = "noopener noreferrer nofollow";
  }
  return element;
}
