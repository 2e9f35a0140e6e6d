// The data of one answer of the model: thinking, content, tool calls and draft statistics. This module has no DOM code.

import { ColouredText } from "./coloured_text.js";

/** An answer. reason: why the answer ended; null while it runs. It is the server's finish reason ("stop", "length",
 * "tool_calls"), "stopped" if the user stopped the answer, or "failed". */
export class Answer {
  thinking = new ColouredText();
  content = new ColouredText();
  calls = []; // { id, name, arguments, result }; result: the text that the user gives
  rounds = []; // [drafted, accepted, drafted from text, accepted from text] of each round
  verified = []; // the number of the head's verified drafts by position in the draft
  accepted = []; // the number of the head's accepted drafts by position in the draft
  drafts = { verified: 0, accepted: 0, verifiedByText: 0, acceptedByText: 0 }; // of all rounds together
  figures = null; // the server's statistics, which the last chunk has
  tokens = 0;
  reason = null;
  #finishReason = "stop"; // the finish reason from the server
  #firstTokenTime = 0; // the time of the first token, in milliseconds
  #lastTokenTime = 0;

  /** request: the body of the request that the answer belongs to, without model and messages. */
  constructor(request) {
    this.request = request;
  }

  /** Returns the answer of a record that `record` returned. An answer that ran when it was recorded has stopped. */
  static from(record) {
    const answer = new Answer(record.request);
    answer.thinking = ColouredText.from(record.thinking);
    answer.content = ColouredText.from(record.content);
    answer.calls = record.calls.map((call) => ({ ...call }));
    for (const round of record.rounds) answer.#pushRound(round);
    answer.figures = record.figures;
    answer.tokens = record.tokens;
    answer.reason = record.reason ?? "stopped";
    return answer;
  }

  /** The answer as plain data. */
  get record() {
    return {
      request: this.request,
      thinking: this.thinking.record,
      content: this.content.record,
      calls: this.calls.map((call) => ({ ...call })),
      rounds: this.rounds,
      figures: this.figures,
      tokens: this.tokens,
      reason: this.reason,
    };
  }

  /** Whether the model wrote nothing. */
  get isEmpty() {
    return this.thinking.text === "" && this.content.text === "" && this.calls.length === 0;
  }

  get usesMtp() {
    return this.request.draft_tokens !== 0;
  }

  /** The number of tokens per second, measured from the first token to the last. */
  get speed() {
    if (this.figures) return this.figures.tokens_per_second;
    const seconds = (this.#lastTokenTime - this.#firstTokenTime) / 1000;
    return seconds > 0 ? (this.tokens - 1) / seconds : 0;
  }

  /** The share of verified drafts that were accepted; null without drafts. */
  get acceptance() {
    const { verified, accepted } = this.drafts;
    return verified ? accepted / verified : null;
  }

  /** The parts of the output by their names, by which two answers can be compared. */
  get parts() {
    const calls = JSON.stringify(this.calls.map((call) => [call.name, call.arguments]));
    return { thoughts: this.thinking.text, texts: this.content.text, "tool calls": calls };
  }

  /** Adds the output and statistics of a chunk of the stream. */
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

  /** Ends the answer. reason: why it ended; by default, the server's finish reason. */
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
    for (const round of stats.rounds) {
      this.#pushRound(round);
      this.tokens += round[1] + 1;
    }
  }

  // Chats of earlier versions have rounds of two numbers, without drafts from text.
  #pushRound([drafted, accepted, draftedByText = 0, acceptedByText = 0]) {
    this.rounds.push([drafted, accepted, draftedByText, acceptedByText]);
    this.drafts.verified += drafted;
    this.drafts.accepted += accepted;
    this.drafts.verifiedByText += draftedByText;
    this.drafts.acceptedByText += acceptedByText;
    for (let i = 0; i < drafted - draftedByText; i++) {
      this.verified[i] = (this.verified[i] ?? 0) + 1;
      this.accepted[i] = (this.accepted[i] ?? 0) + (i < accepted - acceptedByText ? 1 : 0);
    }
  }

  #pushCall({ index, id, function: called }) {
    const call = (this.calls[index] ??= { id: "", name: "", arguments: "", result: "" });
    if (id) call.id = id;
    call.name += called?.name ?? "";
    call.arguments += called?.arguments ?? "";
  }

  /** The tool calls whose arguments are complete JSON. */
  get completeCalls() {
    return this.calls.filter((call) => isJson(call.arguments));
  }

  /** The messages for the next request: the answer, and the results of its tool calls. */
  get messages() {
    const { message, completeCalls } = this;
    if (!message.content && !completeCalls.length) return [];
    return [message, ...completeCalls.map(({ id, result }) => ({ role: "tool", tool_call_id: id, content: result }))];
  }

  /** The answer as an assistant message. */
  get message() {
    const message = { role: "assistant", content: this.content.text };
    if (this.thinking.text) message.reasoning_content = this.thinking.text;
    const called = ({ id, name, arguments: json }) => ({ id, type: "function", function: { name, arguments: json } });
    const calls = this.completeCalls.map(called);
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

/** Returns where two answers differ first: the name of the part, and the number of equal characters before. Returns null
 * for equal answers. */
export function firstDifference(first, second) {
  for (const [name, text] of Object.entries(first.parts)) {
    const other = [...second.parts[name]];
    const at = [...text, ""].findIndex((character, i) => character !== (other[i] ?? ""));
    if (at >= 0) return [name, at];
  }
  return null;
}

