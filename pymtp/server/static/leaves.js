// What Markdown's blocks end in: paragraphs, headings, code, tables.
//
// All have: element. goesOn: whether more of a line that began may come. mark(): a function that takes back what is
// added after it. endLine(newline), draw(options), close().

import { copyButton } from "./copy.js";
import { el } from "./dom.js";
import { Paragraph } from "./paragraph.js";

export class TextLeaf {
  lines = 0;
  goesOn = true;

  /** tag: "p", or "h3" and the like, which take one line. */
  constructor(tag, whole) {
    this.kind = tag === "p" ? "paragraph" : "heading";
    this.element = el(tag);
    this.text = new Paragraph(this.element, whole);
  }

  /** A line of it. The newline before it stands just before lineStart. */
  addLine(lineStart, from, to) {
    if (this.lines++) this.text.add(lineStart - 1, lineStart);
    else this.first = [from, to];
    this.text.add(from, to);
  }

  goOn(from, to) {
    if (this.lines === 1) this.first[1] = to;
    this.text.add(from, to);
  }

  mark() {
    const { lines } = this;
    const takeBack = this.text.mark();
    return () => {
      this.lines = lines;
      takeBack();
    };
  }

  draw(options) {
    if (this.text.changed) this.text.draw(options);
  }

  close(options) {
    this.text.draw({ ...options, final: true });
  }
}

export class CodeLeaf {
  kind = "code";
  goesOn = true;
  #fresh = true; // its lines are still to come

  /** fence: the match of the line that opens it. */
  constructor([, indent, marks, language], whole) {
    this.whole = whole;
    this.indent = indent.length;
    this.end = new RegExp(`^ {0,3}[${marks[0]}]{${marks.length},}\\s*$`);
    this.code = el("code");
    const copy = copyButton(() => this.code.textContent);
    const head = el("div", { class: "code-head" }, el("span", {}, language.trim()), copy);
    this.element = el("div", { class: "code" }, head, el("pre", { tabindex: "0" }, this.code));
  }

  /** text: what its container leaves of the line. */
  addLine(text, from, to) {
    const blanks = /^ */.exec(text)[0].length;
    this.goOn(from + Math.min(blanks, this.indent), to);
  }

  goOn(from, to) {
    this.whole.paint(this.code, from, to);
  }

  endLine(newline) {
    if (!this.#fresh) this.goOn(newline, newline + 1);
    this.#fresh = false;
  }

  mark() {
    const n = this.code.childNodes.length;
    return () => {
      while (this.code.childNodes.length > n) this.code.lastChild.remove();
    };
  }

  draw() {}

  close() {}
}

export class TableLeaf {
  kind = "table";
  goesOn = false;

  /** alignments: of the columns, "" where they have none. [from, to]: of the line with their names. */
  constructor(alignments, [from, to], whole) {
    this.whole = whole;
    this.alignments = alignments;
    this.body = el("tbody");
    const head = el("thead", {}, this.#row("th", from, to));
    this.element = el("div", { class: "table", tabindex: "0" }, el("table", {}, head, this.body));
  }

  addLine(from, to) {
    this.body.append(this.#row("td", from, to));
  }

  #row(tag, from, to) {
    const cells = cellsOf(this.whole.text.slice(from, to)).slice(0, this.alignments.length);
    const row = el("tr");
    for (const [i, alignment] of this.alignments.entries()) {
      const cell = el(tag, { class: alignment || null });
      if (cells[i]) {
        const text = new Paragraph(cell, this.whole);
        text.add(from + cells[i][0], from + cells[i][1]);
        text.draw({ final: true });
      }
      row.append(cell);
    }
    return row;
  }

  mark() {
    const n = this.body.childNodes.length;
    return () => {
      while (this.body.childNodes.length > n) this.body.lastChild.remove();
    };
  }

  draw() {}

  endLine() {}

  close() {}
}

/** [from, to] of the cells of a line. */
export function cellsOf(line) {
  const cells = [];
  let from = 0;
  for (let i = 0; i < line.length; i++) {
    if (line[i] === "\\") i++;
    else if (line[i] === "|") {
      cells.push(trimmed(line, from, i));
      from = i + 1;
    }
  }
  cells.push(trimmed(line, from, line.length));
  const empty = ([a, b]) => a === b;
  if (empty(cells[0])) cells.shift();
  if (cells.length && empty(cells.at(-1))) cells.pop();
  return cells;
}

function trimmed(line, from, to) {
  while (from < to && /\s/.test(line[from])) from++;
  while (from < to && /\s/.test(line[to - 1])) to--;
  return [from, to];
}

/** The alignments of a table's columns by the line below their names. */
export function alignmentsOf(line) {
  return cellsOf(line).map(([from, to]) => {
    const [left, right] = [line[from] === ":", line[to - 1] === ":"];
    return left && right ? "center" : right ? "right" : "";
  });
}
