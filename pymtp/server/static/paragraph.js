// A run of text with Markdown in it, which grows at its end.

import { Operations, Source, readNode } from "./inline.js";

/** Draws slices of a ColouredText into an element. What cannot change any more is drawn once. */
export class Paragraph {
  #text = "";
  #pieces = []; // [place in #text, place in the whole]: where slices of the whole were put together
  #settled = 0; // of #text: read for good
  #kept = 0; // of the element's nodes: those that belong to it
  changed = false;

  constructor(element, whole) {
    this.element = element;
    this.whole = whole;
  }

  add(from, to) {
    const last = this.#pieces.at(-1);
    if (!last || this.#text.length - last[0] !== from - last[1]) this.#pieces.push([this.#text.length, from]);
    this.#text += this.whole.text.slice(from, to);
    this.changed = true;
  }

  /** A function that takes back what is added after this call. Nothing settles before it was called. */
  mark() {
    const [length, pieces] = [this.#text.length, this.#pieces.length];
    return () => {
      this.#text = this.#text.slice(0, length);
      this.#pieces.length = pieces;
      this.changed = true;
    };
  }

  /** final: no more comes. tentative: what was added may be taken back. */
  draw({ final = false, tentative = false } = {}) {
    while (this.element.childNodes.length > this.#kept) this.element.lastChild.remove();
    const out = new Operations();
    const source = new Source(this.#text, final ? Infinity : this.#text.length);
    let settling = !tentative;
    let settled = 0; // operations
    for (let i = this.#settled; i < this.#text.length; ) {
      source.reached = false;
      i = readNode(source, i, this.#text.length, out);
      settling &&= !source.reached;
      if (settling) [this.#settled, settled] = [i, out.list.length];
    }
    this.#put(out.list.slice(0, settled));
    this.#kept = this.element.childNodes.length;
    this.#put(out.list.slice(settled));
    this.changed = false;
  }

  #put(operations) {
    let parent = this.element;
    let [from, to] = [0, 0]; // text to paint
    const paint = () => {
      if (from < to) this.#paint(parent, from, to);
      from = to = 0;
    };
    for (const [what, a, b] of operations) {
      if (what === "text") {
        if (a !== to) {
          paint();
          from = a;
        }
        to = b;
        continue;
      }
      paint();
      if (what === "close") parent = parent.parentNode;
      else parent = parent.appendChild(elementFor(a, b));
    }
    paint();
  }

  #paint(parent, from, to) {
    let i = this.#pieces.findLastIndex(([place]) => place <= from);
    while (from < to) {
      const [place, inWhole] = this.#pieces[i++];
      const end = Math.min(to, this.#pieces[i]?.[0] ?? to);
      this.whole.paint(parent, inWhole + from - place, inWhole + end - place);
      from = end;
    }
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
