// The view of an answer: thinking, text, tool calls, number of tokens and speed.

import { CallView } from "./call_view.js";
import { el } from "./dom.js";
import { Markdown } from "./markdown.js";
import { percent } from "./plot.js";

// The reasons that are shown. A Map, because an imported chat may name as its reason what every object has.
const ENDS = new Map([
  ["length", "ended at its limit"],
  ["stopped", "stopped"],
  ["failed", "failed"],
]);

export class AnswerView {
  #thinking = el("div", { class: "answer" });
  #summary = el("summary", {}, "Thinking …");
  #details = el("details", { class: "thinking", hidden: true }, this.#summary, this.#thinking);
  #content = el("div", { class: "answer content" });
  #calls = el("div");
  #facts = el("p", { class: "facts" });
  #title = el("h3", { hidden: true });
  #callViews = [];
  #texts;

  constructor(answer, asMarkdown) {
    this.answer = answer;
    const Text = asMarkdown ? Markdown : Plain;
    this.#texts = [new Text(this.#thinking, answer.thinking), new Text(this.#content, answer.content)];
    this.element = el("div", { class: "column" }, this.#title, this.#details, this.#content, this.#calls, this.#facts);
    this.#content.classList.add("writing");
  }

  /** Sets the title, which an answer has only if a second answer is shown beside it. */
  set title(text) {
    this.#title.textContent = text;
    this.#title.hidden = false;
  }

  /** Draws the output that was added since the last call. */
  draw() {
    const { answer } = this;
    const ended = answer.reason !== null;
    for (const text of this.#texts) text.draw(ended);
    this.#details.hidden = answer.thinking.text === "";
    const thinks = !ended && answer.content.text === "" && !answer.calls.length;
    const summary = thinks ? "Thinking …" : "Thoughts";
    if (this.#summary.textContent !== summary) this.#summary.textContent = summary;
    for (const [i, call] of answer.calls.entries()) {
      this.#callViews[i] ??= this.#newCall(call);
      this.#callViews[i].draw(ended);
    }
    if (ended) this.#end();
  }

  /** The views of the tool calls. Each view has a field for the result of the call. */
  get callViews() {
    return this.#callViews;
  }

  #newCall(call) {
    const view = new CallView(call);
    this.#calls.append(view.element);
    return view;
  }

  #end() {
    const { answer } = this;
    this.#content.classList.remove("writing");
    const facts = [`${answer.tokens} ${answer.tokens === 1 ? "token" : "tokens"}`];
    if (answer.speed) facts.push(`${answer.speed.toFixed(answer.speed < 100 ? 1 : 0)} tokens/s`);
    facts.push(accepted(answer));
    if (ENDS.has(answer.reason)) facts.push(ENDS.get(answer.reason));
    this.#facts.textContent = facts.join(" · ");
  }
}

/** Returns which drafts of an answer were accepted, in words. */
function accepted({ acceptance, drafts: { verifiedByText, acceptedByText } }) {
  if (acceptance === null) return "no drafts";
  const fromText = verifiedByText ? ` (${acceptedByText} of ${verifiedByText} from text)` : "";
  return `${percent(acceptance)} of drafts accepted${fromText}`;
}

/** A view that shows text as it is, without Markdown. */
class Plain {
  #drawn = 0;

  constructor(root, colouredText) {
    this.colouredText = colouredText;
    this.root = root;
    root.classList.add("plain");
  }

  draw() {
    this.colouredText.paint(this.root, this.#drawn, this.colouredText.text.length);
    this.#drawn = this.colouredText.text.length;
  }
}
