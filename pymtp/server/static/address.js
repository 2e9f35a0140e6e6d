// The addresses that a page may link to.

/** Returns `text` as a URL; null if `text` is not a URL, or if the URL's scheme could run code. */
export function safeAddress(text) {
  if (!/^(https?:\/\/|mailto:)/i.test(text)) return null;
  try {
    return new URL(text).href;
  } catch {
    return null;
  }
}
