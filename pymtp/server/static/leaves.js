// The leaves of Markdown's block tree: paragraphs, headings, code, formulas, tables.
//
// Each leaf has `element`, endLine(newline), draw(options), close(), and snapshot(), which returns a function that
// removes everything that was added after the snapshot.

import { copyButton } from "./copy.js";
import { el } from "./dom.js";
import { formula } from "./formula.js";
import { Paragraph } from "./paragraph.js";

export class TextLeaf {
  lines = 0;

  /** tag: "p" for a paragraph, or the tag of a heading, such as "h3"; a heading has only one line. */
  constructor(tag, colouredText) {
    this.kind = tag === "p" ? "paragraph" : "heading";
    this.element = el(tag);
    this.text = new Paragraph(this.element, colouredText);
  }

  /** Adds the line from `from` to `to`. The newline before the line is at lineStart - 1. */
  addLine(lineStart, from, to) {
    if (this.lines++) this.text.add(lineStart - 1, lineStart);
    else this.first = [from, to];
    this.text.add(from, to);
  }

  extend(from, to) {
    if (this.lines === 1) this.first[1] = to;
    this.text.add(from, to);
  }

  snapshot() {
    const { lines } = this;
    const undo = this.text.snapshot();
    return () => {
      this.lines = lines;
      undo();
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
  #fresh = true; // whether no line was added yet

  /** The first argument is the match of FENCE for the line that opens the code block. */
  constructor([, indent, marks, language], colouredText) {
    this.colouredText = colouredText;
    this.indent = indent.length;
    this.end = new RegExp(`^ {0,3}[${marks[0]}]{${marks.length},}\\s*$`);
    this.code = el("code");
    const copy = copyButton(() => this.code.textContent);
    const head = el("div", { class: "code-head" }, el("span", {}, language.trim()), copy);
    this.element = el("div", { class: "code" }, head, el("pre", { tabindex: "0" }, this.code));
  }

  /** Adds a line of code. text: the line without the marks of quotes and list items. */
  addLine(text, from, to) {
    const blanks = /^ */.exec(text)[0].length;
    this.extend(from + Math.min(blanks, this.indent), to);
  }

  extend(from, to) {
    this.colouredText.paint(this.code, from, to);
  }

  endLine(newline) {
    if (!this.#fresh) this.extend(newline, newline + 1);
    this.#fresh = false;
  }

  snapshot() {
    const n = this.code.childNodes.length;
    return () => {
      while (this.code.childNodes.length > n) this.code.lastChild.remove();
    };
  }

  draw() {}

  close() {}
}

const MAX_FORMULA_LINES = 100;
export const FORMULA_REACH = 1000; // the first characters of a line, in which a formula may end

export class FormulaLeaf {
  kind = "formula";
  isComplete = false; // whether no further line belongs to it
  #closing;
  #latex = "";
  #lines = 0;
  #isClosed = false; // whether the closing mark was there

  /** opening: the mark with which the formula begins: two dollar signs, or a backslash and a bracket. */
  constructor(opening, colouredText) {
    this.#closing = opening === "$$" ? "$$" : "\\]";
    this.colouredText = colouredText;
    this.element = el("div", { class: "formula" });
  }

  /** Adds a line, and returns the position after what belongs to the formula. begin: the number of characters before the
   * LaTeX. */
  addLine(text, from, to, begin = 0) {
    const at = text.slice(0, FORMULA_REACH).indexOf(this.#closing, begin);
    const end = at < 0 ? to : from + at + this.#closing.length;
    this.#latex += text.slice(begin, at < 0 ? text.length : at);
    this.colouredText.paint(this.element, from, end);
    this.#isClosed = at >= 0;
    this.isComplete = this.#isClosed || ++this.#lines === MAX_FORMULA_LINES;
    return end;
  }

  extend(from, to) {
    this.#latex += this.colouredText.text.slice(from, to);
    this.colouredText.paint(this.element, from, to);
  }

  endLine(newline) {
    this.extend(newline, newline + 1);
  }

  snapshot() {
    const nodes = [...this.element.childNodes];
    const [latex, lines] = [this.#latex, this.#lines];
    return () => {
      this.element.replaceChildren(...nodes);
      [this.#latex, this.#lines, this.#isClosed, this.isComplete] = [latex, lines, false, false];
    };
  }

  draw() {}

  close() {
    const typeset = this.#isClosed ? formula(this.#latex, { display: true }) : null;
    if (typeset) this.element.replaceChildren(typeset);
  }
}

export class TableLeaf {
  kind = "table";

  /** alignments: the alignment of each column; "" for the default. [from, to]: the line with the column names. */
  constructor(alignments, [from, to], colouredText) {
    this.colouredText = colouredText;
    this.alignments = alignments;
    this.body = el("tbody");
    const head = el("thead", {}, this.#row("th", from, to));
    this.element = el("div", { class: "table", tabindex: "0" }, el("table", { dir: "auto" }, head, this.body));
  }

  addLine(from, to) {
    this.body.append(this.#row("td", from, to));
  }

  #row(tag, from, to) {
    const cells = cellsOf(this.colouredText.text.slice(from, to)).slice(0, this.alignments.length);
    const row = el("tr");
    for (const [i, alignment] of this.alignments.entries()) {
      const cell = el(tag, { class: alignment || null });
      if (cells[i]) {
        const text = new Paragraph(cell, this.colouredText);
        text.add(from + cells[i][0], from + cells[i][1]);
        text.draw({ final: true });
      }
      row.append(cell);
    }
    return row;
  }

  snapshot() {
    const n = this.body.childNodes.length;
    return () => {
      while (this.body.childNodes.length > n) this.body.lastChild.remove();
    };
  }

  draw() {}

  endLine() {}

  close() {}
}

/** Returns [from, to] for each cell of a table line. */
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

/** Returns the alignments of a table's columns. line: the delimiter line below the names of the columns. */
export function alignmentsOf(line) {
  return cellsOf(line).map(([from, to]) => {
    const [left, right] = [line[from] === ":", line[to - 1] === ":"];
    return left && right ? "center" : right ? "right" : "";
  });
}
