// The chat page: shows one chat of the browser, and the list of them.

import { FileError, chatsOf, fileOf } from "./chat_file.js";
import { ChatList } from "./chat_list.js";
import { ChatStore } from "./chat_store.js";
import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { byId } from "./dom.js";
import { saveFile } from "./download.js";
import { isComposing } from "./keys.js";
import { forgetModels, showModel } from "./model_name.js";
import { dismiss, notify } from "./notices.js";
import { Running } from "./running.js";
import { Settings } from "./settings.js";

const MAX_NAME = 60; // characters of the name of an exported file
const log = byId("log");
const store = new ChatStore();
const live = new Map(); // the conversations whose answers run, and the one that is shown, by the id of their chat
const page = {
  store,
  settings: new Settings({ onMarkdown: () => current.show() }),
  running: new Running(),
  announce: (text) => (byId("status").textContent = text), // at the start and the end of an answer, not for every token
  onChange: updateControls,
  onStored: () => {
    if (current.head && !location.hash) history.replaceState(null, "", `#${current.head.id}`);
    drawList();
  },
  onForgotten: (conversation) => {
    if (conversation === current) history.replaceState(null, "", location.pathname);
    drawList();
  },
  onRefused: (conversation, text, files, message) => {
    if (conversation === current) {
      composer.restore(text, files);
      notify("refused", `Not sent: ${message}`, { isError: true });
      return;
    }
    const action = text || files.length ? ["Put it into the field", () => composer.restore(text, files)] : null;
    notify("refused elsewhere", `Not sent in another chat: ${message}`, { action, isError: true });
  },
  onUnauthorized: () => page.settings.askForKey(),
  onUnknownModel: () => {
    forgetModels(); // the server was started with another model after this page was loaded
    showCard();
  },
  onLost: (conversation) => {
    const keep = ["Keep it", () => attempt(async () => store.insert([conversation.stored]).then(drawList))];
    const text = `Deleted in another tab, and not stored any more: ${conversation.head.title}`;
    notify("lost", text, { action: keep, isError: true });
  },
  onUnsaved: (error) => notify("unsaved", `This chat is not stored: ${reasonOf(error)}`, { isError: true }),
};
const list = new ChatList(store, { rename, exportChat, remove });
const composer = new Composer({ send: (text, files) => current.send(text, files), stop: () => current.stop() });
let current = new Conversation(page);
let wasRunning = false; // whether the answer of the conversation that is shown ran at the last change

function updateControls() {
  composer.isRunning = current.isRunning;
  byId("welcome").hidden = !current.isEmpty;
  for (const [id, conversation] of live) if (conversation !== current && !conversation.isRunning) live.delete(id);
  if (current.head) live.set(current.head.id, current);
  if (wasRunning !== current.isRunning) keepFocus();
  wasRunning = current.isRunning;
}

/** Moves the focus to the conversation if the element that had it is hidden or gone. */
function keepFocus() {
  const { activeElement } = document;
  if (activeElement === document.body || !activeElement.checkVisibility()) log.focus({ preventScroll: true });
}

/** Shows a conversation in the place of the one before. */
function show(conversation) {
  current = conversation;
  log.replaceChildren(byId("welcome"), conversation.element);
  log.scrollTop = log.scrollHeight;
  conversation.show();
  page.running.draw(conversation.lastAnswer);
  for (const key of ["refused", "lost", "missing"]) dismiss(key);
  if (closeChats()) keepFocus();
  drawList();
}

async function drawList() {
  list.draw(await store.heads().catch(() => []), current.head?.id ?? null);
}

/** Shows the chat that the address names, or a new one. */
async function openAddressed() {
  const id = location.hash.slice(1);
  if (id === (current.head?.id ?? "")) return;
  const chat = id && !live.has(id) ? await store.chat(id).catch(() => null) : null;
  if (id !== location.hash.slice(1)) return; // the user went on to another chat meanwhile
  show(live.get(id) ?? (chat ? Conversation.from(page, chat) : new Conversation(page)));
  if (!id || current.head) return;
  history.replaceState(null, "", location.pathname);
  notify("missing", "This browser has no such chat.");
}

function startNew() {
  if (location.hash) history.pushState(null, "", location.pathname);
  show(new Conversation(page));
  composer.focus();
}

async function rename(id, title) {
  if (current.head?.id === id) current.head = { ...current.head, title };
  await attempt(() => store.update(id, { title }));
  drawList();
}

async function remove(id) {
  const conversation = live.get(id);
  if (conversation) conversation.isDeleted = true;
  conversation?.stop();
  const removed = await attempt(() => store.remove(id));
  if (current.head?.id === id) startNew();
  live.delete(id);
  if (!removed) return;
  const undo = async () => {
    const turns = conversation ? conversation.stored.turns : removed.turns; // what a running answer had not stored
    await attempt(() => store.insert([{ head: removed.head, turns }]));
    location.hash = id;
    composer.focus();
  };
  notify("undo", `Deleted: ${removed.head.title}`, { action: ["Undo", undo], takesFocus: true });
}

async function exportChat(id) {
  const chat = await attempt(() => store.chat(id));
  if (chat) saveFile(`${fileName(chat.head.title)}.json`, fileOf([chat]));
}

async function exportAll() {
  const chats = await attempt(async () => Promise.all((await store.heads()).map(({ id }) => store.chat(id))));
  if (chats) saveFile("pymtp-chats.json", fileOf(chats.filter((chat) => chat !== null)));
}

/** Adds the chats of a file. A damaged file changes nothing. */
async function importFile(file) {
  try {
    const chats = chatsOf(await file.text());
    await store.insert(chats);
    notify("import", `Imported: ${chats.length} ${chats.length === 1 ? "chat" : "chats"}.`);
  } catch (error) {
    const reason = error instanceof FileError ? error.message : reasonOf(error);
    notify("import", `${file.name} was not imported, and nothing is changed: ${reason}.`, { isError: true });
  }
  drawList();
}

/** Returns what `action` returns; shows an error, and returns null. */
async function attempt(action) {
  try {
    return await action();
  } catch (error) {
    notify("unsaved", `The browser's storage failed: ${reasonOf(error)}`, { isError: true });
    return null;
  }
}

function reasonOf(error) {
  if (error.name === "QuotaExceededError") return "the browser has no more room for this page. Delete chats, or export them first";
  return error.message;
}

function fileName(title) {
  return [...title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "")].slice(0, MAX_NAME).join("") || "chat";
}

/** Another tab has changed a chat. turn: the id of a new turn, or null. */
async function onOtherTab({ chat, turn }) {
  drawList();
  const record = turn && live.has(chat) ? await store.turn(turn).catch(() => null) : null;
  if (record) live.get(chat)?.receive(record);
  else if (chat === current.head?.id) {
    const stored = await store.chat(chat).catch(() => undefined);
    if (chat !== current.head?.id) return; // the user went on to another chat meanwhile
    if (stored === null) page.onLost(current);
    else if (stored) dismiss("lost"); // the other tab has undone it
  }
}

/** Closes the list on a narrow screen. Returns whether it was open. */
function closeChats() {
  const wasOpen = byId("chats").classList.contains("open");
  byId("chats").classList.remove("open");
  byId("show-chats").setAttribute("aria-expanded", "false");
  return wasOpen;
}

byId("show-chats").addEventListener("click", () => {
  const isOpen = byId("chats").classList.toggle("open");
  byId("show-chats").setAttribute("aria-expanded", String(isOpen));
  if (isOpen) byId("new-chat").focus();
});
byId("new-chat").addEventListener("click", startNew);
byId("export-all").addEventListener("click", exportAll);
byId("import").addEventListener("click", () => byId("import-file").click());
byId("import-file").addEventListener("change", () => {
  const [file] = byId("import-file").files;
  if (file) importFile(file);
  byId("import-file").value = ""; // so that the same file can be chosen again
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || isComposing(event)) return;
  if (event.target.id === "search" && event.target.value) return; // the key empties the field
  if (closeChats()) byId("show-chats").focus();
  else current.stop();
});
document.addEventListener("pointerdown", ({ target }) => {
  if (!target.closest("#chats, #show-chats")) closeChats();
});
byId("chats").addEventListener("focusout", ({ relatedTarget }) => {
  if (relatedTarget && !relatedTarget.closest("#chats, #show-chats")) closeChats(); // it would hide what has the focus now
});
window.addEventListener("hashchange", openAddressed);
if (matchMedia("(max-width: 800px)").matches) for (const part of ["figures", "legend"]) byId(part).open = false;
const showCard = () => showModel((card) => page.settings.showDefaults(card.meta?.sampling ?? {}));
byId("key").addEventListener("change", showCard);
showCard();
store.listen(onOtherTab);
store.isKept.then((isKept) => {
  if (!isKept) notify("storage", "This browser stores nothing for this page: chats are lost when it is left. Export keeps them.");
});
show(current);
openAddressed();
