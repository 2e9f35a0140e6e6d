// One answer of the model: its texts, its tool calls and its draft statistics, without any DOM.

import { ColouredText } from "./coloured_text.js";

/** reason: null while it runs; the server's "stop", "length" or "tool_calls"; "stopped" by the user; "failed". */
export class Answer {
  thinking = new ColouredText();
  content = new ColouredText();
  calls = []; // { id, name, arguments }
  rounds = []; // [drafted, accepted] of each round
  verified = []; // drafts verified, by position
  accepted = [];
  figures = null; // the server's statistics in the last chunk
  tokens = 0;
  reason = null;
  #finishReason = "stop"; // the server's finish reason
  #firstTokenTime = 0; // in milliseconds
  #lastTokenTime = 0;

  /** request: the body of its request. */
  constructor(request) {
    this.request = request;
  }

  get usesMtp() {
    return this.request.draft_tokens !== 0;
  }

  /** Tokens per second after the first token. */
  get speed() {
    if (this.figures) return this.figures.tokens_per_second;
    const seconds = (this.#lastTokenTime - this.#firstTokenTime) / 1000;
    return seconds > 0 ? (this.tokens - 1) / seconds : 0;
  }

  /** The share of accepted drafts; null without drafts. */
  get acceptance() {
    const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
    return this.verified.length ? sum(this.accepted) / sum(this.verified) : null;
  }

  /** All output as one string, to compare two answers. */
  get comparable() {
    return JSON.stringify([this.thinking.text, this.content.text, this.calls.map((call) => [call.name, call.arguments])]);
  }

  /** Adds a chunk of the stream. */
  push(chunk) {
    this.#pushStats(chunk.pymtp ?? {});
    if (chunk.usage) this.tokens = chunk.usage.completion_tokens;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const delta = choice.delta ?? {};
    const origins = chunk.pymtp?.origins ?? [];
    const runs = (field) => origins.filter(([of]) => of === field).map(([, count, step]) => [count, step]);
    this.thinking.append(delta.reasoning_content ?? "", runs("reasoning_content"));
    this.content.append(delta.content ?? "", runs("content"));
    for (const call of delta.tool_calls ?? []) this.#pushCall(call);
    if (choice.finish_reason) this.#finishReason = choice.finish_reason;
  }

  /** Ends the answer. reason: where it differs from the server's. */
  end(reason = this.#finishReason) {
    this.reason = reason;
  }

  #pushStats(stats) {
    if (!stats.origins) {
      if (stats.tokens_per_second !== undefined) this.figures = stats;
      return;
    }
    this.#lastTokenTime = performance.now();
    if (!this.rounds.length) this.#firstTokenTime = this.#lastTokenTime;
    for (const [drafted, accepted] of stats.rounds) {
      this.rounds.push([drafted, accepted]);
      this.tokens += accepted + 1;
      for (let i = 0; i < drafted; i++) {
        this.verified[i] = (this.verified[i] ?? 0) + 1;
        this.accepted[i] = (this.accepted[i] ?? 0) + (i < accepted ? 1 : 0);
      }
    }
  }

  #pushCall({ index, id, function: called }) {
    const call = (this.calls[index] ??= { id: "", name: "", arguments: "" });
    if (id) call.id = id;
    call.name += called?.name ?? "";
    call.arguments += called?.arguments ?? "";
  }

  /** The calls with complete arguments. */
  get completeCalls() {
    return this.calls.filter((call) => isJson(call.arguments));
  }

  /** The message for the next request. */
  get message() {
    const message = { role: "assistant", content: this.content.text };
    if (this.thinking.text) message.reasoning_content = this.thinking.text;
    const calls = this.completeCalls.map(({ id, ...called }) => ({ id, type: "function", function: called }));
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

/** Returns the first difference of two texts in UTF-16 units; -1 where they are equal. */
export function firstDifference(first, second) {
  if (first === second) return -1;
  let i = 0;
  while (first[i] === second[i]) i++;
  return i;
}

