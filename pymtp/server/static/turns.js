// The turns of a conversation on the page: the user's and the model's.

import { firstDifference } from "./answer.js";
import { AnswerView } from "./answer_view.js";
import { copyButton } from "./copy.js";
import { el } from "./dom.js";

/** A turn of the user: one message. */
export class UserTurn {
  #edit;

  /** onEdit: called when the user wants to edit the turn. */
  constructor(text, onEdit) {
    this.text = text;
    this.#edit = el("button", { type: "button", class: "quiet", onclick: onEdit }, "Edit");
    const head = el("header", {}, el("h2", {}, "You"), copyButton(() => text), this.#edit);
    this.element = el("article", { class: "turn user" }, head, el("div", { class: "said" }, text));
  }

  get messages() {
    return [{ role: "user", content: this.text }];
  }

  /** lastOfPerson: whether this is the user's last turn. idle: whether no answer runs. */
  updateControls({ lastOfPerson, idle }) {
    this.#edit.hidden = !lastOfPerson || !idle;
  }
}

/** A turn of the model: one answer, or two answers to be compared. */
export class AnswerTurn {
  views = [];
  #columns = el("div", { class: "columns" });
  #verdict = el("p", { class: "verdict", role: "status" });
  #error = el("p", { class: "error", role: "alert" });
  #regenerate;
  #compare;
  #sendResults;

  /** on: the event handlers { regenerate, compare, sendResults } of the buttons. */
  constructor(on) {
    const button = (label, press) => el("button", { type: "button", class: "quiet", hidden: true, onclick: press }, label);
    this.#regenerate = button("Regenerate", on.regenerate);
    this.#compare = button("", on.compare);
    this.#sendResults = button("Send results", on.sendResults);
    const copy = copyButton(() => this.answer.content.text);
    const head = el("header", {}, el("h2", {}, "Answer"), copy, this.#regenerate, this.#compare);
    this.element = el("article", { class: "turn" }, head, this.#columns, this.#sendResults, this.#verdict, this.#error);
  }

  get answer() {
    return this.views[0].answer;
  }

  /** The messages for the next request: the answer, and the results of its tool calls. */
  get messages() {
    const { message, completeCalls } = this.answer;
    if (!message.content && !completeCalls.length) return [];
    const views = this.views[0].callViews.filter(({ call }) => completeCalls.includes(call));
    return [message, ...views.map(({ call, result }) => ({ role: "tool", tool_call_id: call.id, content: result }))];
  }

  /** Adds an answer; a second answer is shown beside the first one. */
  add(answer, asMarkdown) {
    const view = new AnswerView(answer, asMarkdown);
    this.views.push(view);
    this.#columns.append(view.element);
    if (this.views.length > 1) for (const each of this.views) each.title = each.answer.usesMtp ? "With MTP" : "Without MTP";
    return view;
  }

  /** Removes the second answer. */
  dropSecond() {
    if (this.views.length > 1) this.views.pop().element.remove();
    this.#verdict.textContent = "";
  }

  /** Shows the message why the answer failed; null removes the message. */
  fail(message) {
    this.#error.textContent = message ?? "";
  }

  updateControls({ last, idle }) {
    const { reason, usesMtp, completeCalls } = this.answer;
    this.#regenerate.hidden = !last || !idle;
    this.#regenerate.textContent = reason === "failed" ? "Try again" : "Regenerate";
    this.#compare.hidden = !last || !idle || reason === "failed";
    this.#compare.textContent = `Run the same again ${usesMtp ? "without" : "with"} MTP`;
    const asks = last && idle && completeCalls.length > 0;
    this.#sendResults.hidden = !asks;
    for (const view of this.views[0].callViews) view.asks = asks && completeCalls.includes(view.call);
  }

  /** Shows whether the two answers of this turn are equal. */
  compare() {
    const [first, second] = this.views.map((view) => view.answer);
    const ended = (answer) => answer.reason !== "failed" && answer.reason !== "stopped";
    const index = firstDifference(first.comparable, second.comparable);
    if (!ended(first) || !ended(second)) this.#verdict.textContent = "One of the two did not come to its end.";
    else if (index >= 0) this.#verdict.textContent = `The texts differ from character ${index + 1} on.`;
    else this.#verdict.textContent = `The texts are equal.${ratio(first, second)}`;
  }
}

function ratio(first, second) {
  const [mtp, plain] = first.usesMtp ? [first, second] : [second, first];
  return mtp.speed && plain.speed ? ` With MTP: ${(mtp.speed / plain.speed).toFixed(2)} times the speed.` : "";
}
