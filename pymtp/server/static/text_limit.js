// The limit of a text that the user writes or pastes: a browser takes half a second to lay out a line of it, and 30 times as
// long for eight times as much.

import { dismiss, notify } from "./notices.js";

const MAX_TEXT = 2 ** 17; // characters

/** Returns whether a text is too long, and says so. what: the beginning of the sentence. length: its characters. */
export function isTooLong(what, length) {
  dismiss("too long");
  if (length <= MAX_TEXT) return false;
  const [given, limit] = [length, MAX_TEXT].map((n) => n.toLocaleString("en"));
  notify("too long", `${what} ${given} characters, at most ${limit} are possible. Attach a longer text as a file.`, { isError: true });
  return true;
}

// before the browser lays the text out
document.addEventListener("beforeinput", (event) => {
  const added = event.data ?? event.dataTransfer?.getData("text/plain") ?? "";
  if (event.target.localName !== "textarea" || !added) return;
  const kept = event.target.textLength - (event.target.selectionEnd - event.target.selectionStart);
  if (isTooLong("Not inserted: the field would have", kept + added.length)) event.preventDefault();
});
