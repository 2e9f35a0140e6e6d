// The turns of a conversation on the page: the user's and the model's.

import { firstDifference } from "./answer.js";
import { AnswerView } from "./answer_view.js";
import { fileView } from "./attachments.js";
import { copyButton } from "./copy.js";
import { el } from "./dom.js";
import { isComposing, isSending } from "./keys.js";
import { SiblingSwitch } from "./sibling_switch.js";

const quietButton = (label, press) => el("button", { type: "button", class: "quiet", onclick: press }, label);

/** A turn of the user: one message, with its files. on: the handlers { edit(text), switchTo(turn) }. */
export class UserTurn {
  #editButton = quietButton("Edit", () => this.openEditor());
  #said;
  #editor = null;

  constructor(turn, on) {
    this.turn = turn;
    this.on = on;
    this.switch = new SiblingSwitch(on.switchTo, "message");
    this.#said = el("div", { class: "said" }, turn.text);
    const buttons = el("div", { class: "turn-buttons" }, this.switch.element, copyButton(() => turn.text), this.#editButton);
    const head = el("header", {}, el("h2", {}, "You"), buttons);
    this.element = el("article", { class: "turn user" }, head, ...turn.files.map(fileView), this.#said);
  }

  draw() {}

  /** Shows a field in the place of the message. text: what it has at first. */
  openEditor(text = this.turn.text) {
    this.closeEditor();
    const field = el("textarea", { "aria-label": "Edited message", rows: "3" });
    field.value = text;
    const buttons = [el("button", { type: "submit", class: "main" }, "Send"), quietButton("Cancel", () => this.closeEditor())];
    this.#editor = el("form", { class: "editor" }, field, el("div", { class: "editor-buttons" }, ...buttons));
    const submit = (event) => {
      event.preventDefault();
      if (!field.value.trim() && !this.turn.files.length) return;
      if (this.on.edit(this.turn, field.value)) this.closeEditor();
    };
    this.#editor.addEventListener("submit", submit);
    field.addEventListener("keydown", (event) => {
      if (isComposing(event)) return;
      if (event.key === "Escape") {
        event.stopPropagation(); // Esc on the page stops an answer
        this.closeEditor();
      } else if (isSending(event)) submit(event);
    });
    this.#said.hidden = true;
    this.element.append(this.#editor);
    field.focus();
  }

  /** Shows the message again, as it was. */
  closeEditor() {
    if (!this.#editor) return;
    this.#editor.remove();
    this.#editor = null;
    this.#said.hidden = false;
    this.#editButton.focus();
  }

  updateControls({ idle }) {
    this.#editButton.hidden = !idle;
  }
}

/** A turn of the model: one answer, or two answers to be compared. on: the handlers { regenerate, compare, sendResults,
 * switchTo(turn) }. */
export class AnswerTurn {
  views = [];
  #columns = el("div", { class: "columns" });
  #verdict = el("p", { class: "verdict", role: "status" });
  #error = null;
  #regenerate;
  #compare;
  #sendResults;

  constructor(turn, on, asMarkdown) {
    this.turn = turn;
    this.switch = new SiblingSwitch(on.switchTo, "answer");
    this.#regenerate = quietButton("Regenerate", () => on.regenerate(this));
    this.#compare = quietButton("", () => on.compare(this));
    this.#sendResults = quietButton("Send results", () => on.sendResults(this));
    const copy = copyButton(() => this.answer.content.text);
    const buttons = el("div", { class: "turn-buttons" }, this.switch.element, copy, this.#regenerate, this.#compare);
    const head = el("header", {}, el("h2", {}, "Answer"), buttons);
    this.element = el("article", { class: "turn" }, head, this.#columns, this.#sendResults, this.#verdict);
    this.add(turn.answer, asMarkdown);
  }

  get answer() {
    return this.turn.answer;
  }

  draw() {
    for (const view of this.views) view.draw();
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
    this.#error?.remove();
    this.#error = message === null ? null : el("p", { class: "error", role: "alert" }, message);
    if (this.#error) this.element.append(this.#error);
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
    const difference = firstDifference(first, second);
    if (!ended(first) || !ended(second)) this.#verdict.textContent = "One of the two did not come to its end.";
    else if (difference) this.#verdict.textContent = `The ${difference[0]} differ from character ${difference[1] + 1} on.`;
    else this.#verdict.textContent = `The texts are equal.${ratio(first, second)}`;
  }
}

function ratio(first, second) {
  const [mtp, plain] = first.usesMtp ? [first, second] : [second, first];
  return mtp.speed && plain.speed ? ` With MTP: ${(mtp.speed / plain.speed).toFixed(2)} times the speed.` : "";
}
