// Files in a message: texts and images.

import { el } from "./dom.js";
import { MAX_IMAGES_BYTES, imageBytes, imageView, isImage, readImage } from "./images.js";

export const MAX_FILES_BYTES = 2 ** 20; // of all text files of one message together

/** Formats a number of bytes. */
export function size(bytes) {
  if (bytes < 1024) return `${bytes} bytes`;
  return bytes < 2 ** 20 ? `${(bytes / 1024).toFixed(1)} KiB` : `${(bytes / 2 ** 20).toFixed(1)} MiB`;
}

/** Returns the number of bytes of a file in a message. */
function bytesOf(file) {
  return file.image ? imageBytes(file) : new Blob([file.text]).size;
}

/** Returns the name and the size of a file in a message. */
export function labelOf(file) {
  const pixels = file.image ? ` · ${file.width} x ${file.height}` : "";
  return `${file.name}${pixels} · ${size(bytesOf(file))}`;
}

/** Reads files. present: the files that the message has already.
 *
 * Returns { files, problems }: { name, text } for each text and { name, image, width, height } for each image within the
 * limits, and a sentence for each other file. */
export async function readFiles(chosen, present) {
  const [files, problems] = [[], []];
  const sum = (isCounted) => present.filter(isCounted).reduce((total, file) => total + bytesOf(file), 0);
  let left = MAX_FILES_BYTES - sum(({ image }) => !image);
  let leftForImages = MAX_IMAGES_BYTES - sum(({ image }) => image);
  for (const file of chosen) {
    if (isImage(file)) {
      const image = await readImage(file);
      if (image === null) problems.push(`${file.name} is an image that this browser cannot read.`);
      else if (imageBytes(image) > leftForImages) {
        const limit = `the images of one message have at most ${size(MAX_IMAGES_BYTES)} together`;
        problems.push(`${file.name} has ${size(imageBytes(image))}: ${limit}.`);
      } else {
        files.push(image);
        leftForImages -= imageBytes(image);
      }
      continue;
    }
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

/** Returns the content of a message with files: each text file as a block of code with its name, then the text. With
 * images, the content is a list, in which the images come first. */
export function contentOf({ text, files }) {
  const images = files.filter(({ image }) => image).map(({ image }) => ({ type: "image_url", image_url: { url: image } }));
  const whole = textOf(text, files.filter(({ image }) => !image));
  if (!images.length) return whole;
  return whole ? [...images, { type: "text", text: whole }] : images;
}

function textOf(text, files) {
  const blocks = files.map((file) => {
    let fence = "```"; // longer than any run of backticks in the file
    for (const [run] of file.text.matchAll(/`{3,}/g)) if (run.length >= fence.length) fence = `${run}\``;
    return `${file.name}:\n${fence}\n${file.text}${file.text.endsWith("\n") ? "" : "\n"}${fence}`;
  });
  return [...blocks, ...(text ? [text] : [])].join("\n\n");
}

/** Creates the view of a file in a message: an image, or a text that is shown when it is opened. */
export function fileView(file) {
  if (file.image) return imageView(file);
  const view = el("details", { class: "file" }, el("summary", {}, labelOf(file)));
  view.addEventListener("toggle", () => view.append(el("pre", { tabindex: "0" }, file.text)), { once: true });
  return view;
}
