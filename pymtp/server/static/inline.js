// A parser of inline Markdown: code, emphasis, links. Everything else is plain text, including HTML.

import { safeAddress } from "./address.js";

const LIMIT = 1000; // the most characters of a construct; when new text arrives, no more old text is parsed again
const PLAIN = /[^\\`*_~[<h$]+/y;
const ESCAPED = /[!-/:-@[-`{-~\n]/;
const WORD = /[\p{L}\p{N}]/u;
const PUNCTUATION = /[\p{P}\p{S}]/u;
const AFTER_ADDRESS = /[.,;:!?'"*_~\]]+$/;

/** The result of the parser: operations ["text", from, to], ["open", tag, href], ["close"] and
 * ["formula", from, to, { from, to, display }] in the order of the text. The last positions are those of the LaTeX. */
export class Operations {
  list = [];
  inLink = false;

  text(from, to) {
    this.list.push(["text", from, to]);
  }

  formula(from, to, inner) {
    this.list.push(["formula", from, to, inner]);
  }

  open(tag, href) {
    this.list.push(["open", tag, href]);
    if (tag === "a") this.inLink = true;
  }

  close(tag) {
    this.list.push(["close"]);
    if (tag === "a") this.inLink = false;
  }
}

/** The text of a paragraph. sure: the number of characters that have arrived; further characters may follow. reached:
 * whether the parser looked beyond the arrived characters, so that new text may change its result. */
export class Source {
  reached = false;
  #codeEnds = new Map(); // maps the position of opening backticks to the end of the code span

  constructor(text, sure) {
    this.text = text;
    this.sure = sure;
  }

  at(i) {
    if (i >= this.sure) this.reached = true;
    return this.text[i] ?? "";
  }

  /** Returns the length of the run of equal characters that starts at i. */
  run(i) {
    const mark = this.at(i);
    let end = i + 1;
    while (this.at(end) === mark) end++;
    return end - i;
  }

  /** Returns the end of the code span that starts at i; -1 if no code span starts there. */
  codeEnd(i) {
    if (!this.#codeEnds.has(i)) this.#codeEnds.set(i, this.#findCodeEnd(i));
    return this.#codeEnds.get(i);
  }

  #findCodeEnd(i) {
    const length = this.run(i);
    for (let j = i + length; j < i + LIMIT; ) {
      const c = this.at(j);
      if (c === "") return -1;
      const n = c === "`" ? this.run(j) : 0;
      if (n === length) return j + n;
      j += n || 1;
    }
    return -1;
  }

  /** Returns the first position from i to end, at most LIMIT away, for which `matches` is true; -1 if there is none.
   * next: returns the next position to try. */
  find(i, end, matches, next = (j) => j + 1) {
    const stop = Math.min(end, i + LIMIT);
    let j = i;
    while (j < stop) {
      if (matches(j)) return j;
      j = next(j);
    }
    if (stop === end) this.at(end); // note that the character after `end`, if it has not arrived, may match
    return -1;
  }

  /** Returns the position after the escape sequence, code span or character that starts at i. */
  over(i) {
    const c = this.at(i);
    if (c === "\\") return i + 2;
    if (c !== "`") return i + 1;
    const end = this.codeEnd(i);
    return end < 0 ? i + this.run(i) : end;
  }
}

/** Parses the construct that starts at i, adds its operations to `out`, and returns its end, which is at most `end`. */
export function readNode(source, i, end, out) {
  const c = source.at(i);
  const read = READERS[c];
  const next = read ? read(source, i, end, out) : -1;
  if (next >= 0) return next;
  const to = Math.min(end, read ? i + ("*_~`$".includes(c) ? source.run(i) : 1) : plainEnd(source, i));
  out.text(i, to);
  return to;
}

function plainEnd(source, i) {
  PLAIN.lastIndex = i;
  PLAIN.test(source.text);
  return PLAIN.lastIndex;
}

function readNodes(source, i, end, out) {
  while (i < end) i = readNode(source, i, end, out);
}

function readEscape(source, i, end, out) {
  const closing = { "(": "\\)", "[": "\\]" }[source.at(i + 1)];
  const stop = closing ? readFormula(source, i, end, out, closing, closing === "\\]") : -1;
  if (stop >= 0) return stop;
  if (!ESCAPED.test(source.at(i + 1)) || i + 1 >= end) return -1;
  out.text(i + 1, i + 2);
  return i + 2;
}

/** Reads a formula between dollar signs. A single one touches its formula, and no digit follows: "$5 and $6" is text. */
function readDollars(source, i, end, out) {
  if (source.at(i + 1) === "$") return readFormula(source, i, end, out, "$$", true);
  if (WORD.test(source.at(i - 1)) || /\s/.test(source.at(i + 1))) return -1;
  return readFormula(source, i, end, out, "$", false);
}

function readFormula(source, i, end, out, closing, display) {
  const from = i + closing.length; // the opening mark is as long as the closing one
  const isClosing = (j) => {
    if (j === from || j + closing.length > end || [...closing].some((c, k) => source.at(j + k) !== c)) return false;
    return closing !== "$" || (!/\s/.test(source.at(j - 1)) && !/\p{N}/u.test(source.at(j + 1)));
  };
  const to = source.find(from, end, isClosing, (j) => (source.at(j) === "\\" ? j + 2 : j + 1));
  if (to < 0) return -1;
  out.formula(i, to + closing.length, { from, to, display });
  return to + closing.length;
}

function readCode(source, i, end, out) {
  const to = source.codeEnd(i);
  if (to < 0 || to > end) return -1;
  const length = source.run(i);
  const inner = source.text.slice(i + length, to - length);
  // One space at each end is left out: in `` ` ``, the spaces only separate the backticks.
  const pad = inner.startsWith(" ") && inner.endsWith(" ") && inner.trim() ? 1 : 0;
  out.open("code");
  out.text(i + length + pad, to - length - pad);
  out.close("code");
  return to;
}

const TAGS = { 1: ["em"], 2: ["strong"], 3: ["em", "strong"] };

function readEmphasis(source, i, end, out) {
  const n = source.run(i);
  if (n > 3 || !opens(source, i, n)) return -1;
  for (const length of n === 3 ? [3, 1, 2] : [n]) {
    const stop = findClosing(source, i + length, end, source.at(i), length);
    if (stop < 0) continue;
    readWithin(TAGS[length], source, i + length, stop, out);
    return stop + length;
  }
  return -1;
}

function readStruck(source, i, end, out) {
  if (source.run(i) !== 2 || !opens(source, i, 2)) return -1;
  const stop = findClosing(source, i + 2, end, "~", 2);
  if (stop < 0) return -1;
  readWithin(["del"], source, i + 2, stop, out);
  return stop + 2;
}

function readWithin(tags, source, from, to, out) {
  for (const tag of tags) out.open(tag);
  readNodes(source, from, to, out);
  for (const tag of tags) out.close(tag);
}

function opens(source, i, n) {
  const before = source.at(i - 1);
  const next = source.at(i + n);
  if (next === "" || /\s/.test(next) || (PUNCTUATION.test(next) && WORD.test(before))) return false;
  return source.at(i) !== "_" || !WORD.test(before);
}

function closes(source, i, n) {
  const before = source.at(i - 1);
  const next = source.at(i + n);
  if (/\s/.test(before) || (PUNCTUATION.test(before) && WORD.test(next))) return false;
  return source.at(i) !== "_" || !WORD.test(next);
}

function findClosing(source, from, end, mark, length) {
  const run = (j) => Math.min(source.run(j), end - j); // marks from `end` on may close an outer construct
  const fits = (n) => n === length || (n === 3 && mark !== "~"); // a run of three marks can close as well
  const matches = (j) => j > from && source.at(j) === mark && fits(run(j)) && closes(source, j, run(j));
  const at = source.find(from, end, matches, (j) => (source.at(j) === mark ? j + source.run(j) : source.over(j)));
  return at < 0 ? -1 : at + run(at) - length;
}

function readLink(source, i, end, out) {
  const close = findMatching(source, i, end, "[", "]", (j) => source.over(j));
  if (close < 0 || source.at(close + 1) !== "(" || close + 1 >= end) return -1;
  const stop = findMatching(source, close + 1, end, "(", ")", (j) => j + 1);
  if (stop < 0) return -1;
  const written = /^\s*(?:<([^<>\n]*)>|(\S*))(?:\s+(?:"[^"]*"|'[^']*'))?\s*$/.exec(source.text.slice(close + 2, stop));
  const href = written && safeAddress(written[1] ?? written[2]);
  if (!href || out.inLink) return -1;
  out.open("a", href);
  readNodes(source, i + 1, close, out);
  out.close("a");
  return stop + 1;
}

function findMatching(source, i, end, open, close, next) {
  let depth = 0;
  const matches = (j) => {
    const c = source.at(j);
    if (c === open) depth++;
    return c === close && --depth === 0;
  };
  return source.find(i, end, matches, next);
}

function readBracketed(source, i, end, out) {
  const stop = source.find(i + 1, end, (j) => /[\s<>]/.test(source.at(j)));
  return stop >= 0 && source.at(stop) === ">" && readAddress(source, i + 1, stop, out) ? stop + 1 : -1;
}

function readBare(source, i, end, out) {
  if (WORD.test(source.at(i - 1)) || [..."http"].some((c, k) => source.at(i + k) !== c)) return -1;
  let stop = source.find(i, end, (j) => /[\s<>`]/.test(source.at(j)));
  if (stop < 0) stop = end - i < LIMIT ? end : i;
  let url = source.text.slice(i, stop).replace(AFTER_ADDRESS, "");
  while (url.endsWith(")") && url.split(")").length > url.split("(").length) {
    url = url.slice(0, -1).replace(AFTER_ADDRESS, "");
  }
  return readAddress(source, i, i + url.length, out) ? i + url.length : -1;
}

function readAddress(source, from, to, out) {
  const href = safeAddress(source.text.slice(from, to));
  if (!href || out.inLink) return false;
  out.open("a", href);
  out.text(from, to);
  out.close("a");
  return true;
}

const READERS = {
  "\\": readEscape,
  "`": readCode,
  "*": readEmphasis,
  _: readEmphasis,
  "~": readStruck,
  "[": readLink,
  "<": readBracketed,
  h: readBare,
  $: readDollars,
};
