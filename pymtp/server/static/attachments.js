// Text files in a message.

import { el } from "./dom.js";

export const MAX_FILES_BYTES = 2 ** 20; // of all files of one message together

/** Formats a number of bytes. */
export function size(bytes) {
  if (bytes < 1024) return `${bytes} bytes`;
  return bytes < 2 ** 20 ? `${(bytes / 1024).toFixed(1)} KiB` : `${(bytes / 2 ** 20).toFixed(1)} MiB`;
}

/** Reads files as text. present: the files that the message has already.
 *
 * Returns { files, problems }: { name, text } for each file that is text and within the limit, and a sentence for each
 * other one. */
export async function readFiles(chosen, present) {
  const [files, problems] = [[], []];
  let left = MAX_FILES_BYTES - present.reduce((sum, { text }) => sum + new Blob([text]).size, 0);
  for (const file of chosen) {
    if (file.size > left) {
      problems.push(`${file.name} has ${size(file.size)}: the files of one message have at most ${size(MAX_FILES_BYTES)} together.`);
      continue;
    }
    const text = decode(await file.arrayBuffer().catch(() => null));
    if (text === null) problems.push(`${file.name} is not text in UTF-8, or cannot be read.`);
    else {
      files.push({ name: file.name, text });
      left -= file.size;
    }
  }
  return { files, problems };
}

function decode(bytes) {
  if (bytes === null) return null;
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    return text.includes("\0") ? null : text;
  } catch {
    return null;
  }
}

/** Returns the content of a message with files: each file as a block of code with its name, then the text. */
export function contentOf({ text, files }) {
  const blocks = files.map((file) => {
    let fence = "```"; // longer than any run of backticks in the file
    for (const [run] of file.text.matchAll(/`{3,}/g)) if (run.length >= fence.length) fence = `${run}\``;
    return `${file.name}:\n${fence}\n${file.text}${file.text.endsWith("\n") ? "" : "\n"}${fence}`;
  });
  return [...blocks, ...(text ? [text] : [])].join("\n\n");
}

/** Creates the view of a file in a message, which shows the text when it is opened. */
export function fileView(file) {
  const view = el("details", { class: "file" }, el("summary", {}, `${file.name} · ${size(new Blob([file.text]).size)}`));
  view.addEventListener("toggle", () => view.append(el("pre", { tabindex: "0" }, file.text)), { once: true });
  return view;
}
