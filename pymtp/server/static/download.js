// Files that the page makes.

import { el } from "./dom.js";

/** Saves a text as a file, as the browser saves downloads. */
export function saveFile(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = el("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000); // the browser may read it after the click
}
