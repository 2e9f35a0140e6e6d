// The turns of a conversation on the page: what was asked, and what was answered.

import { firstDifference } from "./answer.js";
import { AnswerView } from "./answer_view.js";
import { copyButton } from "./copy.js";
import { el } from "./dom.js";

/** What the person wrote. */
export class UserTurn {
  #edit;

  /** onEdit: called when it is to be written anew. */
  constructor(text, onEdit) {
    this.text = text;
    this.#edit = el("button", { type: "button", class: "quiet", onclick: onEdit }, "Edit");
    const head = el("header", {}, el("h2", {}, "You"), copyButton(() => text), this.#edit);
    this.element = el("article", { class: "turn user" }, head, el("div", { class: "said" }, text));
  }

  get messages() {
    return [{ role: "user", content: this.text }];
  }

  /** last: it is the last one of the person's. idle: nothing runs. */
  show({ lastOfPerson, idle }) {
    this.#edit.hidden = !lastOfPerson || !idle;
  }
}

/** What the model answered: once, or twice to compare. */
export class AnswerTurn {
  views = [];
  #columns = el("div", { class: "columns" });
  #verdict = el("p", { class: "verdict", role: "status" });
  #error = el("p", { class: "error", role: "alert" });
  #again;
  #compare;
  #goOn;

  /** on: { again, compare, goOn }, called when the person wants these. */
  constructor(on) {
    const button = (label, press) => el("button", { type: "button", class: "quiet", hidden: true, onclick: press }, label);
    this.#again = button("Regenerate", on.again);
    this.#compare = button("", on.compare);
    this.#goOn = button("Send results", on.goOn);
    const copy = copyButton(() => this.answer.content.text);
    const head = el("header", {}, el("h2", {}, "Answer"), copy, this.#again, this.#compare);
    this.element = el("article", { class: "turn" }, head, this.#columns, this.#goOn, this.#verdict, this.#error);
  }

  get answer() {
    return this.views[0].answer;
  }

  /** The answer, and what its calls gave. */
  get messages() {
    const { message, wholeCalls } = this.answer;
    if (!message.content && !wholeCalls.length) return [];
    const views = this.views[0].callViews.filter(({ call }) => wholeCalls.includes(call));
    return [message, ...views.map(({ call, result }) => ({ role: "tool", tool_call_id: call.id, content: result }))];
  }

  /** One more answer, beside the first. */
  add(answer, asMarkdown) {
    const view = new AnswerView(answer, asMarkdown);
    this.views.push(view);
    this.#columns.append(view.element);
    if (this.views.length > 1) for (const each of this.views) each.title = each.answer.usesMtp ? "With MTP" : "Without MTP";
    return view;
  }

  /** Drops the answer that was compared. */
  dropSecond() {
    if (this.views.length > 1) this.views.pop().element.remove();
    this.#verdict.textContent = "";
  }

  /** Says why it failed; null: nothing did. */
  fail(message) {
    this.#error.textContent = message ?? "";
  }

  show({ last, idle }) {
    const { reason, usesMtp, wholeCalls } = this.answer;
    this.#again.hidden = !last || !idle;
    this.#again.textContent = reason === "failed" ? "Try again" : "Regenerate";
    this.#compare.hidden = !last || !idle || reason === "failed";
    this.#compare.textContent = `Run the same again ${usesMtp ? "without" : "with"} MTP`;
    const asks = last && idle && wholeCalls.length > 0;
    this.#goOn.hidden = !asks;
    for (const view of this.views[0].callViews) view.asks = asks && wholeCalls.includes(view.call);
  }

  /** Says what became of two answers to the same request. */
  compare() {
    const [one, two] = this.views.map((view) => view.answer);
    const whole = (answer) => answer.reason !== "failed" && answer.reason !== "stopped";
    const place = firstDifference(one.whole, two.whole);
    if (!whole(one) || !whole(two)) this.#verdict.textContent = "One of the two did not come to its end.";
    else if (place >= 0) this.#verdict.textContent = `The texts differ from character ${place + 1} on.`;
    else this.#verdict.textContent = `The texts are equal.${ratio(one, two)}`;
  }
}

function ratio(one, two) {
  const [mtp, plain] = one.usesMtp ? [one, two] : [two, one];
  return mtp.speed && plain.speed ? ` With MTP: ${(mtp.speed / plain.speed).toFixed(2)} times the speed.` : "";
}
