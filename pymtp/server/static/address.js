// The addresses that a page may link to.

/** Returns the URL in a text; null where it is none, or of a scheme that could run code. */
export function safeAddress(text) {
  if (!/^(https?:\/\/|mailto:)/i.test(text)) return null;
  try {
    return new URL(text).href;
  } catch {
    return null;
  }
}
