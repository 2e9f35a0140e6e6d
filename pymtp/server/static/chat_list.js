// The list of the chats: open, rename, export and delete one, and search in all.

import { byId, el } from "./dom.js";
import { isComposing } from "./keys.js";

export class ChatList {
  #list = byId("chat-list");
  #query = byId("search");
  #heads = [];
  #current = null; // the id of the chat that is shown
  #found = null; // the chats that a search has found, and the words around it; null without a search
  #search = new AbortController();

  /** on: the handlers { rename(id, title), exportChat(id), remove(id) }. store: searches the chats. */
  constructor(store, on) {
    this.store = store;
    this.on = on;
    this.#query.addEventListener("input", () => this.#find());
  }

  /** Shows the chats. current: the id of the chat that the page shows; null for a new one. */
  draw(heads, current) {
    this.#heads = heads;
    this.#current = current;
    this.#draw();
  }

  async #find() {
    this.#search.abort();
    const { signal } = (this.#search = new AbortController());
    const text = this.#query.value.trim();
    const found = text ? await this.store.search(text, signal).catch(() => new Map()) : null;
    if (signal.aborted) return;
    this.#found = found;
    this.#draw();
  }

  #draw() {
    if (this.#list.querySelector("input")) return; // a title is being written
    const text = this.#query.value.trim().toLowerCase();
    const fits = ({ id, title }) => !this.#found || this.#found.has(id) || title.toLowerCase().includes(text);
    const heads = this.#heads.filter(fits);
    const refocus = this.#focusKeeper();
    this.#list.replaceChildren(...heads.map((head) => this.#row(head)));
    refocus();
    byId("chats-empty").textContent = heads.length ? "" : this.#found ? "No chat has this text." : "No chats yet.";
  }

  /** Returns a function that gives the focus back to a control of the list after the list was drawn again. */
  #focusKeeper() {
    const controls = (row) => [...(row?.querySelectorAll("a, button") ?? [])];
    const focused = document.activeElement;
    const row = this.#list.contains(focused) ? focused.closest("li") : null;
    const [id, at] = [row?.dataset.chat, controls(row).indexOf(focused)];
    return () => {
      if (row) controls([...this.#list.children].find((each) => each.dataset.chat === id))[at]?.focus();
    };
  }

  #row(head) {
    const isCurrent = head.id === this.#current;
    const link = el("a", { href: `#${head.id}`, "aria-current": isCurrent ? "true" : null, title: head.title }, head.title);
    const row = el("li", { class: isCurrent ? "current" : null, "data-chat": head.id }, link);
    const snippet = this.#found?.get(head.id);
    if (snippet) row.append(el("p", { class: "snippet" }, snippet));
    if (isCurrent) row.append(this.#buttons(head, row));
    return row;
  }

  #buttons(head, row) {
    const button = (label, press) => el("button", { type: "button", class: "quiet", onclick: press }, label);
    const rename = button("Rename", () => this.#rename(head, row));
    const save = button("Export", () => this.on.exportChat(head.id));
    return el("div", { class: "row-buttons" }, rename, save, button("Delete", () => this.on.remove(head.id)));
  }

  /** Shows a field in the place of a title. Enter takes the new title, Esc keeps the old one. */
  #rename(head, row) {
    const field = el("input", { "aria-label": "Title of the chat", value: head.title, maxlength: "200" });
    let isOpen = true;
    const close = (title) => {
      if (!isOpen) return;
      isOpen = false;
      field.remove();
      if (title && title !== head.title) {
        head.title = title;
        this.on.rename(head.id, title);
      }
      this.#draw();
      this.#list.querySelector(".current button")?.focus();
    };
    field.addEventListener("keydown", (event) => {
      if ((event.key !== "Enter" && event.key !== "Escape") || isComposing(event)) return;
      event.preventDefault(); // the key must not press the button that gets the focus
      event.stopPropagation(); // Esc on the page stops an answer
      close(event.key === "Enter" ? field.value.trim() : null);
    });
    field.addEventListener("blur", () => close(field.value.trim()));
    row.replaceChildren(field);
    field.focus();
    field.select();
  }
}
