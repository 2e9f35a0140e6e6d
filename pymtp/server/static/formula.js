// Formulas in LaTeX, typeset by KaTeX.

import { el } from "./dom.js";

const MAX_SOURCE = 4000; // characters; a longer formula is shown as it was written
const MAX_DEPTH = 400; // of a formula's elements; browsers crash at elements that are nested a few thousand times
const MAX_KEPT = 300; // formulas that are kept, because an unfinished paragraph is drawn again and again
const OPTIONS = {
  maxExpand: 500, // of macros, which could make a short formula endless
  maxSize: 20, // em
  strict: "ignore", // no lines in the console about doubtful LaTeX
  throwOnError: true,
  trust: false, // no links, pictures or classes from a formula
};
// The page loads KaTeX before its modules. A build that could not fetch KaTeX has a page without it.
const katex = globalThis.katex;
// Formulas whose MathML, which screen readers read, would have styles that the page's policy forbids.
const WITHOUT_MATHML = /\\(?:pmb|fcolorbox)(?![a-zA-Z])/;
// Characters that KaTeX has no measures for, such as emoji; it would warn in the console.
const UNKNOWN = /[\u{10000}-\u{1d3ff}\u{1d800}-\u{10ffff}]/u;
const kept = new Map(); // the element of each formula by its source; null if KaTeX cannot read it

/** Returns an element with a formula, or null if KaTeX cannot read it. source: LaTeX without its dollar signs. */
export function formula(source, { display = false } = {}) {
  const key = `${display ? "$$" : "$"}${source}`;
  if (!kept.has(key)) {
    if (kept.size >= MAX_KEPT) kept.delete(kept.keys().next().value);
    kept.set(key, typeset(source, display));
  }
  return kept.get(key)?.cloneNode(true) ?? null;
}

function typeset(source, displayMode) {
  if (!katex || source.length > MAX_SOURCE || !source.trim() || UNKNOWN.test(source)) return null;
  const element = el("span", { class: "formula" });
  try {
    const output = WITHOUT_MATHML.test(source) ? "html" : "htmlAndMathml";
    katex.render(source, element, { ...OPTIONS, displayMode, output });
    if (depthOf(element) > MAX_DEPTH) return null;
    if (output === "html") for (const [name, value] of [["role", "math"], ["aria-label", source]]) element.setAttribute(name, value);
    return element;
  } catch {
    return null;
  }
}

/** Returns how many elements are nested within each other. */
function depthOf(root) {
  let depth = 0;
  for (let level = [root]; level.length; depth++) level = level.flatMap((element) => [...element.children]);
  return depth;
}
