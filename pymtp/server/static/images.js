// Images in a message.

import { el } from "./dom.js";

export const MAX_IMAGES_BYTES = 8 * 2 ** 20; // of all images of one message together
// Of all images of a chat: what the server takes in a request. Beyond, the oldest are left out, so many together that the
// beginning of the prompt, which the server has read before, stays the same for several turns.
const [MAX_IMAGES, MAX_CHARACTERS] = [64, 24 * 2 ** 20];
const [IMAGES_AT_ONCE, CHARACTERS_AT_ONCE] = [16, 8 * 2 ** 20];
const TYPES = ["image/png", "image/jpeg", "image/gif", "image/webp", "image/bmp"]; // the formats that the server reads
const [MAX_BYTES, MAX_PIXELS] = [4 * 2 ** 20, 5e7]; // of an image that is sent as it is
const [SIDE, QUALITY] = [2048, 0.9]; // the longer side of other images in pixels, and how well JPEG keeps them

/** Whether a file is an image by its type. An SVG file is text. */
export function isImage({ type }) {
  return type.startsWith("image/") && type !== "image/svg+xml";
}

/** Returns the number of bytes of an image. */
export function imageBytes({ image }) {
  const padding = /=*$/.exec(image.slice(-2))[0].length;
  return (image.length - image.indexOf(",") - 1) * 0.75 - padding;
}

/** Reads an image file. Returns { name, image, width, height }, where `image` is a data URL; null if the browser cannot
 * read it. A large image, and one of another format than the server reads, becomes a JPEG image of at most SIDE pixels. */
export async function readImage(file) {
  const bitmap = await createImageBitmap(file).catch(() => null);
  if (!bitmap) return null;
  const { width, height } = bitmap;
  const { name } = file;
  try {
    if (TYPES.includes(file.type) && file.size <= MAX_BYTES && width * height <= MAX_PIXELS) {
      return { name, image: await dataUrl(file), width, height };
    }
    const scale = Math.min(1, SIDE / Math.max(width, height));
    const smaller = [width, height].map((side) => Math.max(1, Math.round(side * scale)));
    const canvas = el("canvas", { width: smaller[0], height: smaller[1] });
    const context = canvas.getContext("2d");
    context.fillStyle = "white"; // JPEG has no transparency
    context.fillRect(0, 0, ...smaller);
    context.drawImage(bitmap, 0, 0, ...smaller);
    return { name, image: canvas.toDataURL("image/jpeg", QUALITY), width: smaller[0], height: smaller[1] };
  } finally {
    bitmap.close();
  }
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

/** Returns the messages of a request, in which the oldest of too many images are left out. */
export function leaveOutImages(messages) {
  const sizes = messages.flatMap(({ content }) => (Array.isArray(content) ? content : []))
    .flatMap((part) => part.type === "image_url" ? [part.image_url.url.length] : []);
  const beyond = (sum, most, atOnce) => Math.ceil(Math.max(0, sum - most) / atOnce) * atOnce;
  let images = beyond(sizes.length, MAX_IMAGES, IMAGES_AT_ONCE);
  let characters = beyond(sizes.reduce((sum, n) => sum + n, 0), MAX_CHARACTERS, CHARACTERS_AT_ONCE);
  const shorter = (part) => {
    if (part.type !== "image_url" || (images <= 0 && characters <= 0)) return part;
    images -= 1;
    characters -= part.image_url.url.length;
    return { type: "text", text: "[an older image, left out] " };
  };
  return messages.map((message) => Array.isArray(message.content)
    ? { ...message, content: message.content.map(shorter) } : message);
}

/** Whether a text is an image as `readImage` makes it: an image of a file must not load anything from elsewhere. */
export function isImageUrl(text) {
  return /^data:image\/(png|jpeg|gif|webp|bmp);base64,[A-Za-z0-9+/]+=*$/.test(text);
}

/** Creates the thumbnail of an image in a message, which a press shows in its size. */
export function imageView({ name, image, width, height }) {
  const label = `${name}, ${width} x ${height} pixels`;
  const view = el("button", { type: "button", class: "picture", "aria-pressed": "false", title: label });
  view.append(el("img", { src: image, alt: label, width, height, decoding: "async" }));
  view.addEventListener("click", () => view.setAttribute("aria-pressed", String(view.getAttribute("aria-pressed") !== "true")));
  return view;
}
