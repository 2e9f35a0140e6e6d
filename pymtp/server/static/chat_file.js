// Files of chats: their form, and the check of a file that is imported.

import { newId } from "./chat_store.js";
import { ChatTree } from "./chat_tree.js";
import { BY_TEXT } from "./coloured_text.js";
import { isImageUrl } from "./images.js";

const FORMAT = "pymtp chats";
const VERSION = 1;

// The fields of a request, which the page sends again for a comparison, and whether a value is of their kind.
const REQUEST = new Map([
  ...["temperature", "top_p", "top_k", "min_p", "presence_penalty", "repeat_penalty"].map((name) => [name, Number.isFinite]),
  ...["max_tokens", "seed", "draft_tokens"].map((name) => [name, Number.isFinite]),
  ["chat_template_kwargs", isObject],
  ["tools", Array.isArray],
  ["tool_choice", (value) => typeof value === "string"],
]);

/** An error in a file, with a message for the user. */
export class FileError extends Error {}

/** Returns the text of a file with chats, each { head, turns }. */
export function fileOf(chats) {
  const made = chats.map(({ head, turns }) => {
    const { title, created, updated, leaf } = head;
    const tree = new ChatTree(); // in a file, each turn stands after the turn that it follows
    for (const turn of turns) tree.add(turn);
    return { title, created, updated, leaf, turns: tree.all().map(({ chat: _, ...turn }) => turn) };
  });
  return `${JSON.stringify({ format: FORMAT, version: VERSION, chats: made }, null, 1)}\n`;
}

/** Returns the chats of a file, each { head, turns }, with new ids, so that they replace none. Throws FileError. */
export function chatsOf(text) {
  const file = parse(text);
  if (!isObject(file) || file.format !== FORMAT) throw new FileError(`it is no file of chats: it has no "format": "${FORMAT}"`);
  const version = JSON.stringify(file.version);
  if (file.version !== VERSION) throw new FileError(`its version is ${version}, and this page reads version ${VERSION}`);
  return list(file.chats, "chats").map((chat, i) => readChat(chat, `chats[${i}]`));
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new FileError(`it is no JSON, or not all of it: ${error.message}`);
  }
}

function readChat(chat, at) {
  object(chat, at);
  const id = newId();
  const ids = new Map([[null, null]]); // the new id of each turn by its id in the file
  const head = { id, title: string(chat.title, `${at}.title`) };
  if (!head.title.trim()) throw new FileError(`${at}.title is empty`);
  head.created = number(chat.created, `${at}.created`);
  head.updated = number(chat.updated, `${at}.updated`);
  const turns = list(chat.turns, `${at}.turns`).map((turn, i) => readTurn(turn, id, ids, `${at}.turns[${i}]`));
  if (!turns.length) throw new FileError(`${at}.turns is empty`);
  head.leaf = ids.get(chat.leaf) ?? turns.at(-1).id;
  return { head, turns };
}

function readTurn(turn, chat, ids, at) {
  object(turn, at);
  const old = string(turn.id, `${at}.id`);
  if (ids.has(old)) throw new FileError(`${at}.id is the id of an earlier turn`);
  if (!ids.has(turn.parent)) throw new FileError(`${at}.parent is not null, and not the id of an earlier turn`);
  const id = newId();
  ids.set(old, id);
  const { role } = turn;
  const made = { id, chat, parent: ids.get(turn.parent), role, at: number(turn.at, `${at}.at`) };
  if (role === "user") return { ...made, ...readMessage(turn, at) };
  if (role === "assistant") return { ...made, ...readAnswer(turn, at) };
  throw new FileError(`${at}.role is neither "user" nor "assistant"`);
}

function readMessage({ text, files }, at) {
  const readFile = (file, i) => {
    const where = `${at}.files[${i}]`;
    const name = string(object(file, where).name, `${where}.name`);
    if (file.image === undefined) return { name, text: string(file.text, `${where}.text`) };
    if (!isImageUrl(string(file.image, `${where}.image`))) throw new FileError(`${where}.image is no data URL of an image`);
    return { name, image: file.image, width: natural(file.width, `${where}.width`), height: natural(file.height, `${where}.height`) };
  };
  return { text: string(text, `${at}.text`), files: list(files, `${at}.files`).map(readFile) };
}

function readAnswer(turn, at) {
  const calls = list(turn.calls, `${at}.calls`).map((call, i) => {
    object(call, `${at}.calls[${i}]`);
    const field = (name) => [name, string(call[name], `${at}.calls[${i}].${name}`)];
    return Object.fromEntries(["id", "name", "arguments", "result"].map(field));
  });
  const figures = turn.figures === null ? null : object(turn.figures, `${at}.figures`);
  for (const name of figures ? ["tokens_per_second", "time_to_first_token", "cached_tokens"] : []) {
    number(figures[name], `${at}.figures.${name}`);
  }
  return {
    model: string(turn.model, `${at}.model`),
    system: string(turn.system, `${at}.system`),
    request: readRequest(turn.request, `${at}.request`),
    thinking: readText(turn.thinking, `${at}.thinking`),
    content: readText(turn.content, `${at}.content`),
    calls,
    rounds: list(turn.rounds, `${at}.rounds`).map((round, i) => readRound(round, `${at}.rounds[${i}]`)),
    figures,
    tokens: natural(turn.tokens, `${at}.tokens`),
    reason: turn.reason === null ? null : string(turn.reason, `${at}.reason`),
  };
}

function readRequest(request, at) {
  for (const [name, value] of Object.entries(object(request, at))) {
    if (!REQUEST.get(name)?.(value)) throw new FileError(`${at}.${name} is no field of this page's requests, or not of its kind`);
  }
  return request;
}

/** Reads a round. The numbers of drafts from text are missing in files of earlier versions. */
function readRound(round, at) {
  const counts = list(round, at).map((count, i) => natural(count, `${at}[${i}]`));
  const [drafted, accepted, draftedByText = 0, acceptedByText = 0] = counts;
  const byHead = [drafted - draftedByText, accepted - acceptedByText];
  const fits = acceptedByText <= draftedByText && 0 <= byHead[1] && byHead[1] <= byHead[0] && drafted <= 1000;
  if (![2, 4].includes(counts.length) || !fits) {
    throw new FileError(`${at} is not [drafted, accepted, drafted from text, accepted from text]`);
  }
  return counts;
}

/** Reads a text with its origins: the ends of runs ascend to the end of the text. */
function readText(value, at) {
  object(value, at);
  const text = string(value.text, `${at}.text`);
  const ends = list(value.ends, `${at}.ends`).map((end, i) => natural(end, `${at}.ends[${i}]`));
  const steps = list(value.steps, `${at}.steps`);
  const isStep = (step) => step === BY_TEXT || (Number.isInteger(step) && step >= -1 && step < 1000);
  if (steps.length !== ends.length || !steps.every(isStep)) throw new FileError(`${at}.steps has not a step for each of its ends`);
  const ascend = ends.every((end, i) => end > (ends[i - 1] ?? 0));
  if (!ascend || (ends.at(-1) ?? 0) !== text.length) throw new FileError(`${at}.ends does not ascend to the end of the text`);
  return { text, ends, steps };
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function object(value, at) {
  if (!isObject(value)) throw new FileError(`${at} is missing, or no object`);
  return value;
}

function list(value, at) {
  if (!Array.isArray(value)) throw new FileError(`${at} is missing, or no list`);
  return value;
}

function string(value, at) {
  if (typeof value !== "string") throw new FileError(`${at} is missing, or no text`);
  return value;
}

function number(value, at) {
  if (!Number.isFinite(value)) throw new FileError(`${at} is missing, or no number`);
  return value;
}

function natural(value, at) {
  if (!Number.isInteger(value) || value < 0) throw new FileError(`${at} is not a natural number`);
  return value;
}
