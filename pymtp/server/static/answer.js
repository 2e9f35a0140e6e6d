// One answer of the model: its texts, its calls, and how it was drafted. No element of the page in sight.

import { ColouredText } from "./coloured_text.js";

/** reason: null while it runs; "stop", "length", "tool_calls" of the server; "stopped" by the person; "failed". */
export class Answer {
  thinking = new ColouredText();
  content = new ColouredText();
  calls = []; // { id, name, arguments }
  rounds = []; // [drafted, accepted] of each
  verified = []; // drafts by position
  accepted = [];
  figures = null; // the server's, at the end
  tokens = 0;
  reason = null;
  #said = "stop"; // the server's reason
  #begun = 0; // when the first token came, and the last
  #last = 0;

  /** request: what it was asked with. */
  constructor(request) {
    this.request = request;
  }

  get usesMtp() {
    return this.request.draft_tokens !== 0;
  }

  /** Tokens after the first, a second. */
  get speed() {
    if (this.figures) return this.figures.tokens_per_second;
    const seconds = (this.#last - this.#begun) / 1000;
    return seconds > 0 ? (this.tokens - 1) / seconds : 0;
  }

  /** Of the drafts, how many were accepted; null without drafts. */
  get acceptance() {
    const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
    return this.verified.length ? sum(this.accepted) / sum(this.verified) : null;
  }

  /** All of it, to compare. */
  get whole() {
    return JSON.stringify([this.thinking.text, this.content.text, this.calls.map((call) => [call.name, call.arguments])]);
  }

  /** A chunk of the stream. */
  take(chunk) {
    this.#takeFigures(chunk.pymtp ?? {});
    if (chunk.usage) this.tokens = chunk.usage.completion_tokens;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const delta = choice.delta ?? {};
    const origins = chunk.pymtp?.origins ?? [];
    const runs = (field) => origins.filter(([of]) => of === field).map(([, count, step]) => [count, step]);
    this.thinking.append(delta.reasoning_content ?? "", runs("reasoning_content"));
    this.content.append(delta.content ?? "", runs("content"));
    for (const call of delta.tool_calls ?? []) this.#takeCall(call);
    if (choice.finish_reason) this.#said = choice.finish_reason;
  }

  /** No more comes. reason: where it is not the server's. */
  end(reason = this.#said) {
    this.reason = reason;
  }

  #takeFigures(told) {
    if (!told.origins) {
      if (told.tokens_per_second !== undefined) this.figures = told;
      return;
    }
    this.#last = performance.now();
    if (!this.rounds.length) this.#begun = this.#last;
    for (const [drafted, accepted] of told.rounds) {
      this.rounds.push([drafted, accepted]);
      this.tokens += accepted + 1;
      for (let i = 0; i < drafted; i++) {
        this.verified[i] = (this.verified[i] ?? 0) + 1;
        this.accepted[i] = (this.accepted[i] ?? 0) + (i < accepted ? 1 : 0);
      }
    }
  }

  #takeCall({ index, id, function: called }) {
    const call = (this.calls[index] ??= { id: "", name: "", arguments: "" });
    if (id) call.id = id;
    call.name += called?.name ?? "";
    call.arguments += called?.arguments ?? "";
  }

  /** The calls that came to their end. */
  get wholeCalls() {
    return this.calls.filter((call) => isJson(call.arguments));
  }

  /** As a message of the next request. */
  get message() {
    const message = { role: "assistant", content: this.content.text };
    if (this.thinking.text) message.reasoning_content = this.thinking.text;
    const calls = this.wholeCalls.map(({ id, ...called }) => ({ id, type: "function", function: called }));
    if (calls.length) message.tool_calls = calls;
    return message;
  }
}

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** Where two texts differ first, in UTF-16 units; -1: they are equal. */
export function firstDifference(one, two) {
  if (one === two) return -1;
  let i = 0;
  while (one[i] === two[i]) i++;
  return i;
}

