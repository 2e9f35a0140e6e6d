// The chats that the browser keeps, and the messages between the tabs that show them.
//
// A chat is a head { id, title, created, updated, leaf } and turns { id, chat, parent, role, … }. Each turn is a record of
// its own and names the turn before it, so two tabs that write in one chat add turns, and overwrite none.

import { MemoryTables, openDatabase } from "./database.js";

const CHANNEL = "pymtp.chats";
const BATCH = 200; // the number of turns that a search reads at once
const SNIPPET = 30; // the number of characters that a search shows before and after what it found

/** Returns an id that no other chat or turn has. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12)); // randomUUID is missing on pages without TLS
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The chats of the browser; chats in memory if the browser stores nothing. */
export class ChatStore {
  /** Resolves to whether the chats are still there after the page is left. */
  isKept;
  #opening = openDatabase().catch(() => new MemoryTables());
  #channel = new BroadcastChannel(CHANNEL);

  constructor() {
    this.isKept = this.#opening.then((database) => database.isKept);
  }

  async #run(mode, action) {
    return (await this.#opening).run(mode, action);
  }

  /** Calls `onChange` with { chat, turn } when another tab has changed a chat; turn: the id of a new turn, or null. */
  listen(onChange) {
    this.#channel.addEventListener("message", ({ data }) => onChange(data));
  }

  /** Returns the heads of all chats, the last used one first. */
  async heads() {
    const heads = await this.#run("readonly", ({ chats }) => chats.all());
    return heads.sort((a, b) => b.updated - a.updated);
  }

  /** Returns { head, turns }; null if there is no such chat. */
  async chat(id) {
    return this.#run("readonly", async ({ chats, turns }) => {
      const head = await chats.get(id);
      return head ? { head, turns: await turns.ofChat(id) } : null;
    });
  }

  /** Adds or replaces whole chats: all of them, or none if there is an error. */
  async insert(added) {
    await this.#run("readwrite", async ({ chats, turns }) => {
      for (const { head, turns: records } of added) {
        await chats.put(head);
        for (const record of records) await turns.put(record);
      }
    });
    for (const { head } of added) this.#tell(head.id);
  }

  /** Returns the turn of a chat with an id; undefined if there is none. */
  async turn(id) {
    return this.#run("readonly", ({ turns }) => turns.get(id));
  }

  /** Adds or replaces turns of a chat. leaf: the last turn that is shown. Returns false, and stores nothing, if the chat
   * was deleted. */
  async putTurns(id, records, leaf, { tell = true } = {}) {
    const stored = await this.#run("readwrite", async ({ chats, turns }) => {
      const head = await chats.get(id);
      if (!head) return false;
      for (const record of records) await turns.put(record);
      await chats.put({ ...head, updated: Math.max(head.updated, Date.now()), leaf });
      return true;
    });
    if (stored && tell) for (const record of records) this.#tell(id, record.id);
    return stored;
  }

  /** Removes a turn that the server has refused. leaf: the last turn that is shown without it. */
  async removeTurn(turn, leaf) {
    await this.#run("readwrite", async ({ chats, turns }) => {
      await turns.delete(turn.id);
      const head = await chats.get(turn.chat);
      if (head?.leaf === turn.id) await chats.put({ ...head, leaf });
    });
    this.#tell(turn.chat);
  }

  /** Changes fields of a head. Does nothing if the chat was deleted. */
  async update(id, fields) {
    await this.#run("readwrite", async ({ chats }) => {
      const head = await chats.get(id);
      if (head) await chats.put({ ...head, ...fields });
    });
    this.#tell(id);
  }

  /** Deletes a chat. Returns it, so that it can be inserted again; null if it was gone already. */
  async remove(id) {
    const removed = await this.#run("readwrite", async ({ chats, turns }) => {
      const head = await chats.get(id);
      if (!head) return null;
      const records = await turns.ofChat(id);
      await chats.delete(id);
      for (const record of records) await turns.delete(record.id);
      return { head, turns: records };
    });
    this.#tell(id);
    return removed;
  }

  /** Returns a map of the chats whose turns have the text, in any case, to the words around it. */
  async search(text, signal) {
    const found = new Map();
    let last = null;
    for (;;) {
      const records = await this.#run("readonly", ({ turns }) => turns.batch(last, BATCH));
      if (!records.length || signal.aborted) return found;
      for (const record of records) {
        const snippet = found.has(record.chat) ? null : snippetOf(record, text.toLowerCase());
        if (snippet !== null) found.set(record.chat, snippet);
      }
      last = records.at(-1).id;
    }
  }

  async #tell(chat, turn = null) {
    if (await this.isKept) this.#channel.postMessage({ chat, turn });
  }
}

/** Returns the words around a text in a turn; null if the turn does not have it. text: in lower case. */
function snippetOf(record, text) {
  const files = (record.files ?? []).flatMap(({ name, text: content }) => [name, content]);
  for (const part of [record.text, record.content?.text, ...files]) {
    const at = part?.toLowerCase().indexOf(text) ?? -1;
    if (at < 0) continue;
    const [from, to] = [Math.max(0, at - SNIPPET), at + text.length + SNIPPET];
    return `${from ? "…" : ""}${part.slice(from, to)}${to < part.length ? "…" : ""}`;
  }
  return null;
}
