// The tables of the chats: in IndexedDB, or in memory for browsers that store nothing.
//
// Both kinds of database have isKept and run(mode, action). `run` calls `action` with the tables { chats, turns } in one
// transaction: if the action fails, nothing is changed. A table has get, all, ofChat, batch, put and delete.

const [NAME, VERSION] = ["pymtp", 1];
const TABLES = ["chats", "turns"];

/** Opens the database of the browser. Throws an error if the browser stores nothing for this page. */
export async function openDatabase() {
  const opening = indexedDB.open(NAME, VERSION);
  opening.onupgradeneeded = () => {
    opening.result.createObjectStore("chats", { keyPath: "id" });
    opening.result.createObjectStore("turns", { keyPath: "id" }).createIndex("chat", "chat");
  };
  return new StoredTables(await done(opening));
}

function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

class StoredTables {
  isKept = true;
  #database;

  constructor(database) {
    this.#database = database;
    database.onversionchange = () => database.close(); // a newer page in another tab must not wait for this one
  }

  async run(mode, action) {
    const transaction = this.#database.transaction(TABLES, mode);
    const ended = new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(transaction.error ?? new Error("the browser gave up"));
    });
    ended.catch(() => {}); // an error of the action is the one that is thrown
    const tables = Object.fromEntries(TABLES.map((name) => [name, new StoredTable(transaction.objectStore(name))]));
    let result;
    try {
      result = await action(tables);
    } catch (error) {
      if (transaction.error === null) transaction.abort();
      throw error;
    }
    await ended;
    return result;
  }
}

class StoredTable {
  #store;

  constructor(store) {
    this.#store = store;
  }

  get(id) {
    return done(this.#store.get(id));
  }

  all() {
    return done(this.#store.getAll());
  }

  ofChat(chat) {
    return done(this.#store.index("chat").getAll(chat));
  }

  /** Returns the next records, at most `limit`, in the order of their ids. after: the last id before them, or null. */
  batch(after, limit) {
    return done(this.#store.getAll(after === null ? null : IDBKeyRange.lowerBound(after, true), limit));
  }

  put(record) {
    return done(this.#store.put(record));
  }

  delete(id) {
    return done(this.#store.delete(id));
  }
}

/** Tables that are lost with the page. */
export class MemoryTables {
  isKept = false;
  #tables = Object.fromEntries(TABLES.map((name) => [name, new MemoryTable()]));

  async run(_mode, action) {
    return action(this.#tables);
  }
}

class MemoryTable {
  #records = new Map();

  async get(id) {
    return this.#records.get(id);
  }

  async all() {
    return [...this.#records.values()];
  }

  async ofChat(chat) {
    return (await this.all()).filter((record) => record.chat === chat);
  }

  async batch(after) {
    return after === null ? this.all() : [];
  }

  async put(record) {
    this.#records.set(record.id, structuredClone(record));
  }

  async delete(id) {
    this.#records.delete(id);
  }
}
