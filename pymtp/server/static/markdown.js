// A parser of Markdown's blocks, line by line while the text is streamed. A complete line is drawn once.
//
// An incomplete line is drawn tentatively, because its rest may change its meaning; the drawing is undone when more of
// the line arrives. So the page does not depend on the pieces in which a text arrives, and the cost per character does
// not grow with the length of the text.

import { el } from "./dom.js";
import { CodeLeaf, FORMULA_REACH, FormulaLeaf, TableLeaf, TextLeaf, alignmentsOf, cellsOf } from "./leaves.js";

const MAX_DEPTH = 50; // containers within each other; browsers crash at elements that are nested a few thousand times
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( +|$)/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}\s*$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|\s*$)/;
const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^`]{0,200})$/;
// A formula that does not end in the line where it begins; one that does is a part of a paragraph.
const FORMULA = /^ {0,3}(?:(\$\$)(?!\$|.{0,990}\$\$)|(\\\[)(?!.{0,990}\\\]))/;
const TASK = /^\[([ xX])\][ \t]+(?=\S)/;
const DELIMITERS = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?$/; // without blanks at the end

// A line that has only these characters may still become any kind of block; any other character decides the kind.
const STRUCTURE = /^[\s>\-*+_#`~|:=\d.)]*$/;
// A line that begins with a fence must be complete before its kind is decided.
const FENCE_ANYWHERE = /^[\s>\-*+\d.)]*(?:`{3}|~{3})/;
// A line that begins with these must be complete too; a task, up to its first word.
const FORMULA_ANYWHERE = /^[\s>\-*+\d.)]*(?:\$(?:\$|$)|\\(?:\[|$))/;
const TASK_BEGINNING = /^[\s>\-*+\d.)]*\[(?:[ xX](?:\][ \t]*)?)?$/;

export class Markdown {
  #read = 0; // the number of characters of all parsed lines
  #stack; // the open containers: quotes, lists and list items
  #leaf = null; // the open leaf block; null if there is none
  #lineOpen = false; // whether the last line is incomplete
  #undo = null; // the functions that undo the tentative line

  /** root: the element to draw in. colouredText: the text to draw. */
  constructor(root, colouredText) {
    this.colouredText = colouredText;
    this.#stack = [{ kind: "root", element: root }];
  }

  /** Draws the text that was added since the last call. final: whether the text is complete. */
  draw(final = false) {
    this.#undoTentative();
    const { text } = this.colouredText;
    while (this.#read < text.length) {
      const newline = text.indexOf("\n", this.#read);
      const end = newline < 0 ? text.length : newline;
      if (this.#lineOpen) this.#leaf.extend(this.#read, end);
      else if (newline >= 0 || final || this.#isKnown(text.slice(this.#read, end))) this.#line(this.#read, end);
      else break;
      this.#lineOpen = newline < 0;
      if (newline >= 0) this.#endLine(newline);
      this.#read = newline < 0 ? end : newline + 1;
    }
    if (final) this.#closeLeaf();
    else if (this.#read < text.length) this.#lineTentatively(this.#read, text.length);
    this.#leaf?.draw({ tentative: this.#undo !== null });
  }

  #isKnown(beginning) {
    if (this.#leaf?.kind === "table" || TASK_BEGINNING.test(beginning)) return false;
    if (this.#leaf?.kind === "formula" || FORMULA_ANYWHERE.test(beginning)) return beginning.length > 2 * FORMULA_REACH;
    return !STRUCTURE.test(beginning) && (!FENCE_ANYWHERE.test(beginning) || beginning.length > 1000);
  }

  #endLine(newline) {
    if (this.#leaf?.kind === "heading") this.#closeLeaf();
    else this.#leaf?.endLine?.(newline);
  }

  #lineTentatively(from, to) {
    const [stack, leaf] = [[...this.#stack], this.#leaf];
    this.#undo = leaf ? [leaf.snapshot()] : [];
    this.#undo.push(() => ([this.#stack, this.#leaf] = [stack, leaf]));
    this.#line(from, to);
  }

  #undoTentative() {
    for (const step of this.#undo?.reverse() ?? []) step();
    this.#undo = null;
  }

  #line(start, end) {
    const line = this.colouredText.text.slice(start, end);
    let [at, depth] = this.#matchContainers(line);
    if (this.#leaf?.kind === "code" && depth === this.#stack.length) {
      if (this.#leaf.end.test(line.slice(at))) this.#closeLeaf();
      else this.#leaf.addLine(line.slice(at), start + at, end);
      return;
    }
    if (this.#leaf?.kind === "formula" && depth === this.#stack.length) {
      this.#addToFormula(line.slice(at), depth, start, start + at, end);
      return;
    }
    for (let length; (length = this.#openContainer(line.slice(at), depth)); depth = this.#stack.length) at += length;
    const rest = line.slice(at);
    const within = depth === this.#stack.length;
    if (rest.trim() === "") this.#closeTo(depth);
    else if (within && this.#isDelimiterRow(rest)) this.#turnIntoTable(rest);
    else if (within && this.#leaf?.kind === "table" && rest.includes("|")) this.#leaf.addLine(start + at, end);
    else if (this.#leaf?.kind === "paragraph" && !startsBlock(rest)) this.#leaf.addLine(start, start + at, end);
    else this.#openLeaf(rest, depth, start, start + at, end);
  }

  /** Returns the position after the marks of open containers in a line, and the number of containers that the line
   * continues. */
  #matchContainers(line) {
    let at = 0;
    let depth = 1;
    for (; depth < this.#stack.length; depth++) {
      const rest = line.slice(at);
      const { kind, indent } = this.#stack[depth];
      if (kind === "quote") {
        const mark = QUOTE.exec(rest);
        if (!mark) break;
        at += mark[0].length;
      } else if (kind === "item" && rest.trim() !== "") {
        const [columns, length] = indentation(rest, indent);
        // CommonMark requires three columns below "1. ", but many texts nest lists with only two
        if (columns < indent && !(columns >= 2 && ITEM.test(rest.slice(length)))) break;
        at += length;
      }
    }
    return [at, depth];
  }

  /** Opens the quote or list item that starts with a line. Returns the length of the mark; 0 if none starts there. */
  #openContainer(rest, depth) {
    if (this.#stack.length > MAX_DEPTH) return 0;
    const quote = QUOTE.exec(rest);
    if (quote) {
      this.#closeTo(depth);
      this.#closeList();
      this.#enter({ kind: "quote", element: el("blockquote", { dir: "auto" }) });
      return quote[0].length;
    }
    const item = RULE.test(rest) ? null : ITEM.exec(rest);
    if (!item) return 0;
    const [matched, blanks, mark, gap] = item;
    const empty = rest.trim() === mark;
    const interrupts = this.#leaf?.kind === "paragraph" && depth === this.#stack.length;
    // A number other than 1 does not interrupt a paragraph, which may contain "… in\n1986. It …".
    if (interrupts && (empty || (mark !== "1." && mark !== "1)" && /\d/.test(mark)))) return 0;
    this.#closeTo(depth);
    this.#openList(mark);
    const indent = empty || gap.length > 4 ? blanks.length + mark.length + 1 : matched.length;
    this.#enter({ kind: "item", element: el("li"), indent });
    return Math.min(indent, rest.length);
  }

  #openList(mark) {
    const end = mark.at(-1);
    if (this.#stack.at(-1).kind === "list" && this.#stack.at(-1).end === end) return;
    this.#closeList();
    const first = Number.parseInt(mark);
    const tag = Number.isNaN(first) ? "ul" : "ol";
    const element = el(tag, { dir: "auto", start: tag === "ul" || first === 1 ? null : first });
    this.#enter({ kind: "list", element, end });
  }

  #enter(container) {
    this.#append(container.element);
    this.#stack.push(container);
  }

  #closeTo(depth) {
    this.#closeLeaf();
    this.#stack.length = depth;
  }

  #closeList() {
    if (this.#stack.at(-1).kind === "list") this.#stack.pop();
  }

  #append(element) {
    this.#stack.at(-1).element.append(element);
    this.#undo?.push(() => element.remove());
  }

  #openLeaf(rest, depth, lineStart, from, to) {
    this.#closeTo(depth);
    this.#closeList();
    const fence = FENCE.exec(rest);
    const heading = HEADING.exec(rest);
    const formula = FORMULA.exec(rest);
    if (RULE.test(rest)) this.#append(el("hr"));
    else if (fence) this.#leaf = new CodeLeaf(fence, this.colouredText);
    else if (formula) {
      this.#leaf = new FormulaLeaf(formula[1] ?? formula[2], this.colouredText);
      this.#leaf.addLine(rest, from, to, formula[0].length);
    } else if (heading) {
      // The highest level is h3, because the page itself uses h1 and h2.
      this.#leaf = new TextLeaf(`h${Math.min(6, heading[1].length + 2)}`, this.colouredText);
      this.#leaf.addLine(lineStart, from + heading[0].length, to);
    } else {
      const task = this.#openTask(rest);
      this.#leaf = new TextLeaf("p", this.colouredText);
      this.#leaf.addLine(lineStart, from + task, to);
    }
    if (this.#leaf) this.#append(this.#leaf.element);
  }

  /** Adds a line to the open formula. Text after its closing mark begins a paragraph. */
  #addToFormula(rest, depth, lineStart, from, to) {
    const end = this.#leaf.addLine(rest, from, to);
    if (this.#leaf.isComplete) this.#closeLeaf();
    const after = rest.slice(end - from);
    if (after.trim()) this.#openLeaf(after.trimStart(), depth, lineStart, to - after.trimStart().length, to);
  }

  /** Makes an item that begins with [ ] or [x] a task. Returns the number of characters of the mark; 0 if there is none. */
  #openTask(rest) {
    const { kind, element } = this.#stack.at(-1);
    const task = kind === "item" && !element.hasChildNodes() ? TASK.exec(rest) : null;
    if (!task) return 0;
    const done = task[1] !== " ";
    element.className = "task";
    this.#undo?.push(() => element.removeAttribute("class"));
    this.#append(el("input", { type: "checkbox", disabled: true, checked: done, "aria-label": done ? "done" : "to do" }));
    return task[0].length;
  }

  #isDelimiterRow(rest) {
    if (this.#leaf?.kind !== "paragraph" || this.#leaf.lines > 1 || !rest.includes("|") || !DELIMITERS.test(rest.trimEnd())) return false;
    return cellsOf(this.colouredText.text.slice(...this.#leaf.first)).length === cellsOf(rest).length;
  }

  #turnIntoTable(rest) {
    const { element, first } = this.#leaf;
    const table = new TableLeaf(alignmentsOf(rest), first, this.colouredText);
    element.replaceWith(table.element);
    this.#undo?.push(() => table.element.replaceWith(element));
    this.#leaf = table;
  }

  #closeLeaf() {
    this.#leaf?.close({ tentative: this.#undo !== null });
    this.#leaf = null;
  }
}

function startsBlock(rest) {
  return HEADING.test(rest) || RULE.test(rest) || FENCE.test(rest) || FORMULA.test(rest);
}

/** Returns the number of columns of a line's leading blanks, and the number of characters that fill `limit` columns. */
function indentation(rest, limit) {
  let columns = 0;
  let length = 0;
  for (const c of /^[ \t]*/.exec(rest)[0]) {
    if (columns < limit) length++;
    columns += c === "\t" ? 4 : 1;
  }
  return [columns, length];
}
