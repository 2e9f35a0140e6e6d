// Turns as plain data, for the store and for files.

import { Answer } from "./answer.js";

/** Returns the record of a turn. */
export function recordOf({ answer, ...fields }) {
  return answer ? { ...fields, ...answer.record } : fields;
}

/** Returns the turn of a record. */
export function turnOf(record) {
  const { id, chat, parent, role, at } = record;
  if (role === "user") return { id, chat, parent, role, at, text: record.text, files: record.files };
  return { id, chat, parent, role, at, model: record.model, system: record.system, answer: Answer.from(record) };
}
