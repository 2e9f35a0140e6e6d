// Keys of input methods, which write a character of several keys.

/** Returns whether an input method takes a key, such as the Enter that ends a word in Japanese. */
export function isComposing(event) {
  return event.isComposing || event.keyCode === 229; // Safari ends the composition before it reports the last key
}
