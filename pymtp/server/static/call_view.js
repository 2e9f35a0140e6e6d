// A call of a tool, and a field for what it gave.

import { el } from "./dom.js";

export class CallView {
  #name = el("strong");
  #arguments = el("pre");
  #field = el("textarea", { rows: "2" });
  #result = el("label", { hidden: true }, "Result", this.#field);

  constructor(call) {
    this.call = call;
    this.element = el("section", { class: "call", "aria-label": "Tool call" }, "Calls ", this.#name, this.#arguments, this.#result);
  }

  get result() {
    return this.#field.value;
  }

  /** ended: its arguments are whole. */
  draw(ended) {
    this.#name.textContent = this.call.name;
    this.#arguments.textContent = ended ? pretty(this.call.arguments) : this.call.arguments;
  }

  /** Whether a result may be given. */
  set asks(asks) {
    this.#result.hidden = !asks && this.#field.value === "";
    this.#field.readOnly = !asks;
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // it was stopped in the middle
  }
}
