// The view of a tool call, with a field for its result.

import { el } from "./dom.js";

export class CallView {
  #name = el("strong");
  #arguments = el("pre");
  #field = el("textarea", { rows: "2" });
  #result = el("label", { hidden: true }, "Result", this.#field);

  constructor(call) {
    this.call = call;
    this.#field.value = call.result;
    this.#field.addEventListener("input", () => (call.result = this.#field.value));
    this.element = el("section", { class: "call", "aria-label": "Tool call" }, "Calls ", this.#name, this.#arguments, this.#result);
  }

  /** Draws the call. ended: whether the answer has ended; if so, the arguments are formatted. */
  draw(ended) {
    this.#name.textContent = this.call.name;
    this.#arguments.textContent = ended ? pretty(this.call.arguments) : this.call.arguments;
  }

  /** Sets whether the user is asked for the result. */
  set asks(asks) {
    this.#result.hidden = !asks && this.#field.value === "";
    this.#field.readOnly = !asks;
  }
}

/** Returns JSON with indentation; the text as it is if it is no JSON, or so nested that it would be mostly blanks. */
function pretty(text) {
  try {
    const indented = JSON.stringify(JSON.parse(text), null, 2);
    return indented.length < 20 * text.length + 1000 ? indented : text;
  } catch {
    return text; // the arguments are not JSON, because the call was cut off
  }
}
