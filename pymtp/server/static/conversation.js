// A chat on the page: its turns, the branch of them that is shown, and the answer that runs.

import { Answer } from "./answer.js";
import { answerChunks } from "./api.js";
import { contentOf } from "./attachments.js";
import { newId } from "./chat_store.js";
import { ChatTree } from "./chat_tree.js";
import { byId, el } from "./dom.js";
import { leaveOutImages } from "./images.js";
import { LazyDrawing } from "./lazy_drawing.js";
import { modelName } from "./model_name.js";
import { isTooLong } from "./text_limit.js";
import { recordOf, turnOf } from "./turn_record.js";
import { AnswerTurn, UserTurn } from "./turns.js";

const DRAWN_AT_ONCE = 2; // the last turns of a chat
const SAVE_INTERVAL = 1000; // milliseconds between two records of an answer that runs
const MAX_TITLE = 60; // characters of a chat's first title
const REFUSED = [400, 413, 422]; // the statuses of a request that must be changed before it is sent again

export class Conversation {
  element = el("div", { class: "turns" });
  head = null; // the chat's head in the store; null before the first turn
  isDeleted = false; // whether the user deleted the chat on this page
  #tree = new ChatTree();
  #leaf = null; // the id of the last turn that is shown
  #views = new Map(); // the view of each turn by id
  #shown = [];
  #undrawn = new Set(); // the views that were made, and neither are drawn nor wait for it
  #lazy = new LazyDrawing();
  #showsMarkdown; // whether the answers were drawn as Markdown
  #isStored = false; // whether the store has the chat
  #unsaved = new Map(); // the turns that the store must take, and whether other tabs are told of it
  #storing = Promise.resolve(); // the work that the store was given; each part begins when the one before has ended
  #parts = 0; // the number of parts of this work that have not ended; the element says so
  #abort = null; // aborts the running answer; null if no answer runs

  /** page: { store, settings, running, announce(text), onChange(), onStored(), onForgotten(conversation),
   * onRefused(conversation, text, files, message), onUnauthorized(), onUnknownModel(), onLost(conversation),
   * onUnsaved(error) }. */
  constructor(page) {
    this.page = page;
    this.#showsMarkdown = page.settings.showsMarkdown;
  }

  /** Returns the conversation of a chat from the store. */
  static from(page, { head, turns }) {
    const made = new Conversation(page);
    made.head = head;
    made.#isStored = true;
    for (const record of turns) made.#tree.add(turnOf(record));
    made.#leaf = made.#tree.get(head.leaf) ? head.leaf : made.#tree.lastAfter(null);
    made.show();
    return made;
  }

  get isEmpty() {
    return this.#shown.length === 0;
  }

  get isRunning() {
    return this.#abort !== null;
  }

  get lastAnswer() {
    return this.#tree.path(this.#leaf).findLast((turn) => turn.answer)?.answer ?? null;
  }

  /** The chat as it is stored. */
  get stored() {
    return { head: this.head, turns: this.#tree.all().filter((turn) => !isRefused(turn)).map(recordOf) };
  }

  /** Adds a message of the user, and generates the answer. Returns whether the settings allow it. */
  send(text, files) {
    const last = this.#tree.get(this.#leaf);
    const parent = isRefused(last) ? last.parent : this.#leaf;
    return this.#ask(parent, text, files, (message) => this.page.onRefused(this, text, files, message));
  }

  stop() {
    this.#abort?.abort();
  }

  /** Takes a turn that another tab has added, and shows it if it continues what is shown. */
  receive(record) {
    if (this.isRunning && this.#leaf === record.id) return;
    this.#tree.add(turnOf(record));
    this.#views.delete(record.id);
    if (!this.isRunning && [record.parent, record.id].includes(this.#leaf)) this.#leaf = record.id;
    this.show();
  }

  /** Shows the branch that ends with the last turn, and draws the answers again if the settings draw them otherwise. */
  show() {
    if (!this.isRunning && this.#showsMarkdown !== this.page.settings.showsMarkdown) this.#dropAnswerViews();
    this.#shown = this.#tree.path(this.#leaf).map((turn) => this.#viewOf(turn));
    const elements = this.#shown.map((view) => view.element);
    let same = 0;
    while (same < elements.length && this.element.children[same] === elements[same]) same++;
    while (this.element.children.length > same) this.element.lastChild.remove();
    this.element.append(...elements.slice(same));
    this.#drawNew();
    this.updateControls();
  }

  /** Shows only the controls that can be used in the current state. */
  updateControls() {
    const idle = !this.isRunning;
    for (const view of this.#shown) {
      view.updateControls({ idle, last: view === this.#shown.at(-1) });
      view.switch.draw(this.#tree.siblings(view.turn), view.turn, idle);
    }
    this.page.onChange();
  }

  #dropAnswerViews() {
    this.#showsMarkdown = this.page.settings.showsMarkdown;
    this.#lazy.clear();
    for (const [id, view] of this.#views) if (view.turn.answer) this.#views.delete(id);
  }

  #viewOf(turn) {
    if (!this.#views.has(turn.id)) {
      const view = turn.answer ? this.#answerView(turn) : this.#userView(turn);
      this.#views.set(turn.id, view);
      this.#undrawn.add(view);
    }
    return this.#views.get(turn.id);
  }

  #userView(turn) {
    return new UserTurn(turn, { edit: (...edited) => this.#edit(...edited), switchTo: (other) => this.#switchTo(other) });
  }

  #answerView(turn) {
    const on = {
      regenerate: (view) => this.#regenerate(view.turn),
      compare: (view) => this.#compare(view),
      sendResults: (view) => this.#sendResults(view.turn),
      switchTo: (other) => this.#switchTo(other),
    };
    return new AnswerTurn(turn, on, this.#showsMarkdown);
  }

  /** Draws the last turns now, and the others when they come near to what is shown. */
  #drawNew() {
    for (const [i, view] of this.#shown.entries()) {
      if (!this.#undrawn.delete(view)) continue;
      if (i < this.#shown.length - DRAWN_AT_ONCE && view.turn.answer) this.#lazy.add(view, view.answer.content.text.length);
      else this.#lazy.draw(view);
    }
  }

  #switchTo(turn) {
    const before = this.#tree.siblings(turn).findIndex(({ id }) => this.#shown.some((view) => view.turn.id === id));
    const forward = this.#tree.siblings(turn).indexOf(turn) > before;
    this.#leaf = this.#tree.lastAfter(turn.id);
    this.show();
    this.#views.get(turn.id).switch.focus(forward);
    if (isRefused(this.#tree.get(this.#leaf))) return;
    const [{ id }, leaf] = [this.head, this.#leaf];
    this.head = { ...this.head, leaf };
    this.#queue(() => this.page.store.update(id, { leaf }));
  }

  /** Asks a message in other words, beside the old one. Returns whether the settings allow it. */
  #edit(turn, text) {
    return this.#ask(turn.parent, text, turn.files, (message) => {
      this.page.onRefused(this, "", [], message);
      this.#views.get(turn.id).openEditor(text);
    });
  }

  #ask(parent, text, files, onRefused) {
    if (isTooLong("Not sent: the message has", text.length)) return false;
    const request = this.isRunning ? null : this.page.settings.request();
    if (!request) return false;
    const before = this.#leaf;
    this.#dropRefused();
    const turn = this.#add({ parent, role: "user", text, files });
    this.#save(turn);
    const takeBack = (message) => {
      this.#tree.remove(turn);
      this.#leaf = this.#tree.get(before) ? before : parent;
      this.#forget(turn);
      this.show();
      this.#drawFigures(this.lastAnswer);
      onRefused(message);
    };
    this.#generate(turn.id, request, takeBack);
    return true;
  }

  #regenerate(turn) {
    const request = this.page.settings.request();
    if (!request) return;
    this.#dropRefused();
    this.#generate(turn.parent, request);
  }

  async #sendResults(turn) {
    const request = this.page.settings.request();
    if (!request) return;
    this.#save(turn);
    this.#generate(turn.id, request);
  }

  /** Repeats the request of an answer without drafts, or with drafts if the answer had none. */
  async #compare(view) {
    const { request } = view.answer;
    const { draft_tokens: _, ...rest } = request;
    const messages = this.#messages(view.turn.parent, view.turn.system);
    const second = new Answer({ ...rest, ...(view.answer.usesMtp ? { draft_tokens: 0 } : {}) });
    view.dropSecond();
    const column = view.add(second, this.#showsMarkdown);
    const error = await this.#stream(view, column, second, messages);
    if (error) this.#viewOf(view.turn).fail(error.message);
    view.compare();
    this.#drawFigures(view.answer);
  }

  #drawFigures(answer) {
    if (this.element.isConnected) this.page.running.draw(answer);
  }

  /** Generates an answer to the branch that ends with the turn `parent`. onRefused: takes the message of the server if it
   * refuses the request; without it, the answer shows the message. */
  async #generate(parent, request, onRefused = null) {
    const { system } = this.page.settings;
    const answer = new Answer(request);
    const messages = this.#messages(parent, system);
    const turn = this.#add({ parent, role: "assistant", model: "", system, answer });
    const view = this.#viewOf(turn);
    const error = await this.#stream(view, view.views[0], answer, messages, turn);
    const refused = error && REFUSED.includes(error.status) && answer.isEmpty;
    if (refused && onRefused) {
      this.#tree.remove(turn);
      onRefused(error.message);
    } else if (error) this.#viewOf(turn).fail(error.message); // not of `view`: Markdown may have been switched meanwhile
    if (!isRefused(turn) && !(refused && onRefused)) this.#save(turn);
  }

  #messages(leaf, system) {
    const first = system.trim() ? [{ role: "system", content: system }] : [];
    return leaveOutImages([...first, ...this.#tree.path(leaf).flatMap(messagesOf)]);
  }

  /** Streams an answer into a view. turn: the turn that is stored meanwhile. Returns the error; null for none, or after a
   * stop. */
  async #stream(view, column, answer, messages, turn = null) {
    const { announce } = this.page;
    const log = byId("log");
    let frame = 0;
    const draw = () => {
      frame = 0;
      const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
      column.draw();
      this.#drawFigures(answer);
      if (follows && this.element.isConnected) log.scrollTop = log.scrollHeight;
    };
    this.#abort = new AbortController();
    view.fail(null);
    this.show();
    log.scrollTop = log.scrollHeight;
    announce("The answer begins.");
    let failure = null;
    try {
      const { signal } = this.#abort;
      const model = await modelName(signal);
      if (turn) turn.model = model;
      let savedAt = performance.now();
      for await (const chunk of answerChunks({ ...answer.request, messages, model, pymtp: { origins: true } }, signal)) {
        answer.push(chunk);
        frame ||= requestAnimationFrame(draw);
        if (!turn || performance.now() - savedAt < SAVE_INTERVAL) continue;
        savedAt = performance.now();
        this.#save(turn, { tell: false });
      }
      answer.end();
      announce(`The answer has ended: ${answer.tokens} tokens.`);
    } catch (error) {
      const stopped = error.name === "AbortError";
      answer.end(stopped ? "stopped" : "failed");
      announce(stopped ? "Stopped." : "");
      if (!stopped) failure = error;
    }
    cancelAnimationFrame(frame);
    this.#abort = null;
    draw();
    this.show();
    if (failure?.status === 401) this.page.onUnauthorized();
    if (failure?.status === 404) this.page.onUnknownModel();
    return failure;
  }

  /** Adds a new turn, and makes it the last one that is shown. */
  #add(fields) {
    if (!this.head) {
      const [id, now] = [newId(), Date.now()];
      this.head = { id, title: titleOf(fields), created: now, updated: now, leaf: null };
    }
    const turn = { id: newId(), chat: this.head.id, at: Date.now(), ...fields };
    this.#tree.add(turn);
    this.#leaf = turn.id;
    return turn;
  }

  /** Removes an answer without content, whose request was refused. It was not stored. */
  #dropRefused() {
    const last = this.#tree.get(this.#leaf);
    if (!isRefused(last)) return;
    this.#tree.remove(last);
    this.#leaf = last.parent;
  }

  /** Stores a turn, and those that could not be stored before. tell: whether other tabs are told, and the user of an error. */
  #save(turn, { tell = true } = {}) {
    this.head = { ...this.head, leaf: turn.id };
    this.#unsaved.set(turn, tell || this.#unsaved.get(turn) === true);
    this.#queue(() => this.#storeUnsaved());
  }

  async #storeUnsaved() {
    const turns = [...this.#unsaved.keys()];
    const tell = [...this.#unsaved.values()].includes(true);
    if (this.isDeleted || !turns.length) return;
    this.#unsaved.clear();
    let isStored = false;
    try {
      isStored = await this.#put(turns, tell);
      if (tell && isStored) this.page.onStored();
      else if (tell) this.page.onLost(this);
    } catch (error) {
      if (tell) this.page.onUnsaved(error);
    }
    // turns that follow these would be lost without them
    if (!isStored) this.#unsaved = new Map([...turns.map((turn) => [turn, false]), ...this.#unsaved]);
  }

  /** Returns false if another tab has deleted the chat. */
  async #put(turns, tell) {
    const { store } = this.page;
    if (this.#isStored) return store.putTurns(this.head.id, turns.map(recordOf), this.head.leaf, { tell });
    await store.insert([this.stored]);
    return (this.#isStored = true);
  }

  /** Removes a refused message from the store, and the chat if it has no other. */
  #forget(turn) {
    const [leaf, isLast] = [this.#leaf, this.#tree.isEmpty];
    const { store } = this.page;
    this.#unsaved.delete(turn);
    this.head = isLast ? null : { ...this.head, leaf };
    this.#queue(async () => {
      if (isLast) this.#isStored = false;
      await (isLast ? store.remove(turn.chat) : store.removeTurn(turn, leaf));
      this.page.onStored();
    });
    if (isLast) this.page.onForgotten(this);
  }

  /** Gives the store a part of its work. */
  #queue(work) {
    this.element.toggleAttribute("data-saving", ++this.#parts > 0);
    const ended = () => this.element.toggleAttribute("data-saving", --this.#parts > 0);
    this.#storing = this.#storing.then(work).catch(this.page.onUnsaved).finally(ended);
  }
}

/** Whether a turn is an answer that has no content, because its request failed. */
function isRefused(turn) {
  return turn?.answer?.reason === "failed" && turn.answer.isEmpty;
}

function messagesOf(turn) {
  return turn.answer ? turn.answer.messages : [{ role: "user", content: contentOf(turn) }];
}

function titleOf({ text, files }) {
  const line = text.trim().split("\n")[0].trim() || files[0].name;
  const characters = [...line.slice(0, 4 * MAX_TITLE)];
  return characters.length > MAX_TITLE ? `${characters.slice(0, MAX_TITLE).join("").trimEnd()}…` : line;
}
