// The form for a message: text, files, and the buttons that send it and stop an answer.

import { MAX_FILES_BYTES, labelOf, readFiles, size } from "./attachments.js";
import { byId, el } from "./dom.js";
import { MAX_IMAGES_BYTES } from "./images.js";
import { isSending } from "./keys.js";
import { dismiss, notify } from "./notices.js";

export class Composer {
  #form = byId("composer");
  #question = byId("question");
  #list = byId("files");
  #chosen = byId("attach-file");
  #files = []; // { name, text } or { name, image, width, height }
  #reading = Promise.resolve(); // the files that are being read

  /** on: the handlers { send(text, files), stop() }. `send` returns whether it took the message. */
  constructor(on) {
    this.on = on;
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    this.#question.addEventListener("keydown", (event) => {
      if (!isSending(event)) return;
      event.preventDefault();
      this.#send();
    });
    byId("stop").addEventListener("click", (event) => {
      if (event.detail > 1) return; // the second half of a double click on Send, in whose place this button is
      on.stop();
      this.focus();
    });
    byId("attach").title =
      `Text files, at most ${size(MAX_FILES_BYTES)} together, and images, at most ${size(MAX_IMAGES_BYTES)} together`;
    byId("attach").addEventListener("click", () => this.#chosen.click());
    this.#chosen.addEventListener("change", () => {
      this.#attach([...this.#chosen.files]);
      this.#chosen.value = ""; // so that the same file can be chosen again
    });
    this.#question.addEventListener("paste", (event) => {
      const { files, types } = event.clipboardData;
      if (!files.length || types.includes("text/plain")) return; // some programs copy a picture of a text beside the text
      event.preventDefault();
      this.#attach([...files]);
    });
    this.#takeDropped();
  }

  focus() {
    this.#question.focus();
  }

  /** Shows the button that can be used. isRunning: whether an answer runs. */
  set isRunning(isRunning) {
    byId("send").hidden = isRunning;
    byId("stop").hidden = !isRunning;
  }

  /** Puts a message back that the server refused, before what was written meanwhile. */
  restore(text, files) {
    this.#question.value = [text, this.#question.value].filter(Boolean).join("\n");
    this.#files = [...files, ...this.#files];
    this.#drawFiles();
    this.focus();
  }

  async #send() {
    for (const key of ["refused", "files"]) dismiss(key);
    await this.#reading;
    const [text, files] = [this.#question.value, this.#files];
    if (!(text.trim() || files.length) || !this.on.send(text, files)) return;
    this.#question.value = "";
    this.#files = [];
    this.#drawFiles();
  }

  /** Attaches files after those that are being read, whose size counts. */
  #attach(chosen) {
    this.#reading = this.#reading.then(() => this.#read(chosen));
  }

  async #read(chosen) {
    const { files, problems } = await readFiles(chosen, this.#files);
    this.#files.push(...files);
    this.#drawFiles();
    if (problems.length) notify("files", `Not attached: ${problems.join(" ")}`, { isError: true });
    else dismiss("files");
    this.focus();
  }

  #takeDropped() {
    const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
    document.addEventListener("dragover", (event) => {
      if (hasFiles(event)) event.preventDefault();
    });
    document.addEventListener("drop", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      this.#attach([...event.dataTransfer.files]);
    });
  }

  #drawFiles() {
    this.#list.replaceChildren(...this.#files.map((file) => this.#chip(file)));
    this.#list.hidden = this.#files.length === 0;
  }

  #chip(file) {
    const remove = () => {
      this.#files = this.#files.filter((each) => each !== file);
      this.#drawFiles();
      this.focus();
    };
    const attributes = { type: "button", class: "quiet", "aria-label": `Remove ${file.name}`, onclick: remove };
    const picture = file.image ? [el("img", { src: file.image, alt: "" })] : [];
    return el("li", {}, ...picture, `${labelOf(file)} `, el("button", attributes, "×"));
  }
}
