// Messages of the page above the composer, each with a button that dismisses it.

import { byId, el } from "./dom.js";

const shown = new Map(); // the element of each message by its key

/** Shows a message until it is dismissed, or until another one with its key is shown.
 *
 * action: [label, press] of a button. takesFocus: whether the button gets the focus. isError: whether something failed. */
export function notify(key, text, { action = null, takesFocus = false, isError = false } = {}) {
  dismiss(key);
  const button = (label, press) => el("button", { type: "button", class: "quiet", onclick: press }, label);
  const close = (next) => () => {
    dismiss(key);
    byId("question").focus(); // before the action, which may move it on
    next();
  };
  const buttons = action ? [button(action[0], close(action[1]))] : [];
  const attributes = { class: isError ? "notice error" : "notice", role: isError ? "alert" : "status" };
  const element = el("div", attributes, el("span", {}, text), ...buttons, button("Dismiss", close(() => {})));
  shown.set(key, element);
  byId("notices").append(element);
  if (takesFocus) buttons[0].focus();
}

/** Removes the message with this key, if there is one. */
export function dismiss(key) {
  shown.get(key)?.remove();
  shown.delete(key);
}
