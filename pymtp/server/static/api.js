// Requests of the pages to the server, and messages for the user when a request fails.

import { events } from "./sse.js";
import { session } from "./storage.js";

const KEY = "pymtp.key"; // the name in sessionStorage, which the browser deletes with the tab

/** An error with a message for the user. status: the HTTP status; 0 without a response. wait: the number of seconds
 * after which a retry makes sense; null if unknown. */
export class Failure extends Error {
  constructor(message, { status = 0, wait = null } = {}) {
    super(message);
    this.status = status;
    this.wait = wait;
  }
}

export function readKey() {
  return session.get(KEY) ?? "";
}

export function storeKey(key) {
  if (key) session.set(KEY, key);
  else session.remove(KEY);
}

/** Returns the headers of a request. Throws Failure for a key that no header can have. */
function headers() {
  const key = readKey();
  if (/[^\x20-\x7e]/.test(key)) {
    throw new Failure("The API key has characters that no key has. Enter it again in the settings.", { status: 401 });
  }
  return key ? { Authorization: `Bearer ${key}` } : {};
}

/** Sends a GET request, and returns the JSON of the response. Throws Failure. */
export async function get(path, signal) {
  const response = await send(path, { headers: headers(), signal });
  try {
    return await response.json();
  } catch (error) {
    throw connectionFailure(error);
  }
}

/** Yields the chunks of a streamed chat completion. Throws Failure, or an AbortError when `signal` aborts. */
export async function* answerChunks(request, signal) {
  const response = await send("v1/chat/completions", {
    method: "POST",
    headers: { ...headers(), "Content-Type": "application/json" },
    body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  let isComplete = false;
  try {
    for await (const data of events(response.body)) {
      isComplete ||= data === "[DONE]";
      if (isComplete) continue; // read to the end, because leaving the loop would cancel the request
      const chunk = parse(data);
      if (chunk.error) throw new Failure(chunk.error.message ?? "the server gave up");
      yield chunk;
    }
  } catch (error) {
    throw connectionFailure(error);
  }
  if (!isComplete) throw new Failure("The connection ended before the answer did.");
}

async function send(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("The server does not answer. Is it running?");
  }
  if (!response.ok) throw await responseFailure(response);
  return response;
}

function connectionFailure(error) {
  if (error instanceof Failure || error.name === "AbortError") return error;
  return new Failure("The connection was lost before the answer ended.");
}

function parse(data) {
  try {
    return JSON.parse(data);
  } catch {
    throw new Failure("The server sent something that is no JSON.");
  }
}

async function responseFailure(response) {
  const { status } = response;
  const wait = retryAfter(response.headers.get("Retry-After"));
  let message = "";
  try {
    message = (await response.json()).error.message;
  } catch {
    // the body is not JSON of this server, but perhaps an error page of a proxy
  }
  const retryHint = wait === null ? "Try again later." : `Try again in ${wait} s.`;
  if (status === 401) return new Failure("The server asks for an API key. Enter it in the settings.", { status });
  if (status === 429) return new Failure(`The server is busy. ${retryHint}`, { status, wait });
  if (status === 503) return new Failure(`${message || "The server is not ready"}. ${retryHint}`.replace("..", "."), { status, wait });
  return new Failure(message || `The server answered with status ${status}.`, { status });
}

function retryAfter(value) {
  if (value === null) return null;
  const seconds = /^\d+$/.test(value) ? Number(value) : (Date.parse(value) - Date.now()) / 1000;
  return Number.isFinite(seconds) ? Math.max(0, Math.ceil(seconds)) : null;
}
