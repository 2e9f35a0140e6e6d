// Which addresses a page may link to.

/** The address that a text names; null where it is none, or of a kind that could run something. */
export function safeAddress(text) {
  if (!/^(https?:\/\/|mailto:)/i.test(text)) return null;
  try {
    return new URL(text).href;
  } catch {
    return null;
  }
}
