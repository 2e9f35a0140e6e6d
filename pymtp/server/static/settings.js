// The settings of the chat page: the fields of requests. The browser stores their values for the next visit.

import { readKey, storeKey } from "./api.js";
import { byId } from "./dom.js";
import { local } from "./storage.js";

const STORAGE_KEY = "pymtp.settings"; // the name in localStorage
const DEFAULTS = ["temperature", "top_p", "top_k", "min_p", "presence_penalty", "repeat_penalty"]; // what the model has
const NUMBERS = [...DEFAULTS, "max_tokens", "seed"];
const TEXTS = ["system", "thinking", "tools", "tool_choice"];
const SWITCHES = ["markdown", "coloured", "mtp"];
const MAX_SEED = 2 ** 32 - 2;

export class Settings {
  #form = byId("settings-form");
  #placeholders = new Map(DEFAULTS.map((id) => [id, byId(id).placeholder])); // for models whose defaults are unknown

  /** onMarkdown: called when the user turns Markdown on or off. */
  constructor({ onMarkdown }) {
    this.#restore();
    byId("markdown").addEventListener("change", onMarkdown);
    byId("reset").addEventListener("click", () => this.#reset());
    byId("key").value = readKey();
    byId("key").addEventListener("input", () => storeKey(byId("key").value.trim()));
    this.#form.addEventListener("submit", (event) => event.preventDefault());
    for (const id of [...NUMBERS, ...TEXTS, ...SWITCHES]) byId(id).addEventListener("input", () => this.#store([id]));
    byId("tools").addEventListener("input", () => this.#checkTools());
    byId("coloured").addEventListener("change", () => this.#colour());
    this.#colour();
  }

  get showsMarkdown() {
    return byId("markdown").checked;
  }

  get system() {
    return byId("system").value;
  }

  /** Returns the fields of a request. If a field is invalid, moves the focus to it and returns null. */
  request() {
    this.#checkTools();
    const invalidField = this.#form.querySelector(":invalid");
    if (invalidField) {
      byId("settings").open = true;
      invalidField.focus();
      return null;
    }
    const request = { seed: Math.floor(Math.random() * MAX_SEED) };
    for (const id of NUMBERS) if (byId(id).value !== "") request[id] = byId(id).valueAsNumber;
    const thinking = byId("thinking").value;
    if (thinking) request.chat_template_kwargs = { enable_thinking: thinking === "on" };
    if (byId("tools").value.trim()) request.tools = JSON.parse(byId("tools").value);
    if (request.tools && byId("tool_choice").value) request.tool_choice = byId("tool_choice").value;
    if (!byId("mtp").checked) request.draft_tokens = 0;
    return request;
  }

  /** Shows the server's defaults as placeholders of empty fields. defaults: maps request fields to their defaults. */
  showDefaults(defaults) {
    for (const id of DEFAULTS) {
      const isKnown = defaults[id] !== undefined && !(id === "top_k" && defaults[id] === 0);
      byId(id).placeholder = isKnown ? String(defaults[id]) : this.#placeholders.get(id);
    }
  }

  /** Opens the settings, and moves the focus to the field for the API key. */
  askForKey() {
    byId("settings").open = true;
    byId("key").focus();
  }

  #checkTools() {
    const field = byId("tools");
    const problem = problemOf(field.value);
    field.setCustomValidity(problem);
    field.setAttribute("aria-invalid", String(problem !== ""));
    byId("tools-error").textContent = problem;
    byId("tools-error").hidden = problem === "";
  }

  #colour() {
    document.documentElement.dataset.colours = byId("coloured").checked ? "on" : "off";
  }

  /** Empties the numbers, so that the model's defaults hold. */
  #reset() {
    for (const id of NUMBERS) byId(id).value = "";
    this.#store(NUMBERS);
  }

  /** Stores the fields that the user has changed: another tab may have changed others. */
  #store(ids) {
    const values = storedValues();
    for (const id of ids) values[id] = SWITCHES.includes(id) ? byId(id).checked : byId(id).value;
    local.set(STORAGE_KEY, JSON.stringify(values));
  }

  #restore() {
    const values = storedValues();
    for (const id of [...NUMBERS, ...TEXTS]) if (typeof values[id] === "string") byId(id).value = values[id];
    for (const id of SWITCHES) if (typeof values[id] === "boolean") byId(id).checked = values[id];
  }
}

function storedValues() {
  try {
    return { ...JSON.parse(local.get(STORAGE_KEY)) };
  } catch {
    local.remove(STORAGE_KEY);
    return {};
  }
}

function problemOf(text) {
  if (!text.trim()) return "";
  try {
    const tools = JSON.parse(text);
    return Array.isArray(tools) ? "" : "Tools are a list: [{\"type\": \"function\", \"function\": {…}}]";
  } catch (error) {
    return `This is no JSON: ${error.message}`;
  }
}
