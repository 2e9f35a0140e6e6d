// The buttons ‹ 1/2 › that switch between turns in the same place of a chat.

import { el } from "./dom.js";

export class SiblingSwitch {
  #position = el("span", { class: "position" });
  #previous;
  #next;
  #siblings = [];
  #at = 0;

  /** switchTo: called with the turn to show. noun: what is switched, for screen readers. */
  constructor(switchTo, noun) {
    const button = (text, label, step) => {
      const press = () => switchTo(this.#siblings[this.#at + step]);
      return el("button", { type: "button", class: "quiet", "aria-label": `${label} ${noun}`, onclick: press }, text);
    };
    this.#previous = button("‹", "Previous", -1);
    this.#next = button("›", "Next", 1);
    this.element = el("span", { class: "siblings", hidden: true }, this.#previous, this.#position, this.#next);
  }

  /** Shows the place of a turn among its siblings. idle: whether one can be chosen. */
  draw(siblings, turn, idle) {
    this.#siblings = siblings;
    this.#at = siblings.indexOf(turn);
    this.element.hidden = siblings.length < 2;
    this.#position.textContent = `${this.#at + 1}/${siblings.length}`;
    this.#previous.disabled = !idle || this.#at === 0;
    this.#next.disabled = !idle || this.#at === siblings.length - 1;
  }

  /** Moves the focus to the button that switches on in a direction, or else to the other one. */
  focus(forward) {
    const buttons = forward ? [this.#next, this.#previous] : [this.#previous, this.#next];
    buttons.find((button) => !button.disabled)?.focus();
  }
}
