// A button that copies text to the clipboard.

import { el } from "./dom.js";

/** Creates a button that copies the text that `text()` returns. */
export function copyButton(text, label = "Copy") {
  const button = el("button", { type: "button", class: "quiet" }, label);
  button.addEventListener("click", async () => {
    button.textContent = (await copy(text())) ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = label), 1500);
  });
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelected(text); // browsers provide no clipboard object to pages from other machines without TLS
  }
}

function copySelected(text) {
  const before = document.activeElement;
  const area = el("textarea", { class: "unseen", "aria-hidden": "true", tabindex: "-1" });
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  before?.focus();
  return copied;
}
