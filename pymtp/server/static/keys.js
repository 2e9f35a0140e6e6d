// What keys mean: those of input methods, which write a character of several keys, and Enter.

/** Returns whether an input method takes a key, such as the Enter that ends a word in Japanese. */
export function isComposing(event) {
  return event.isComposing || event.keyCode === 229; // Safari ends the composition before it reports the last key
}

/** Returns whether a key sends a message. On a phone's keyboard Enter begins a line: it has no Shift+Enter. */
export function isSending(event) {
  if (event.key !== "Enter" || event.shiftKey || isComposing(event)) return false;
  return event.ctrlKey || event.metaKey || !matchMedia("(hover: none) and (pointer: coarse)").matches;
}
