// A parser of server-sent events, which may arrive in pieces of any size.

/** An incremental parser of events. `push` takes a piece, and returns the data of the events that are now complete. */
export class EventReader {
  #line = ""; // the incomplete last line
  #data = []; // the data lines of the incomplete event
  #afterReturn = false; // whether the last piece ended with \r, so that a following \n does not end another line

  push(piece) {
    const events = [];
    if (this.#afterReturn && piece.startsWith("\n")) piece = piece.slice(1);
    if (piece !== "") this.#afterReturn = piece.endsWith("\r");
    const lines = piece.split(/\r\n|\n|\r/); // other line separators, such as U+2028, do not end a line of the stream
    for (let i = 0; i < lines.length - 1; i++) {
      this.#take(this.#line + lines[i], events);
      this.#line = "";
    }
    this.#line += lines[lines.length - 1];
    return events;
  }

  #take(line, events) {
    if (line === "") {
      if (this.#data.length) events.push(this.#data.join("\n"));
      this.#data = [];
    } else if (line === "data" || line.startsWith("data:")) {
      const value = line.slice(5);
      this.#data.push(value.startsWith(" ") ? value.slice(1) : value);
    } // comments and fields other than `data` are ignored
  }
}

/** Yields the data of each event of a response's body. A piece of the body may end within a character. */
export async function* events(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const lines = new EventReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* lines.push(decoder.decode(value, { stream: true }));
    }
  } finally {
    reader.cancel().catch(() => {}); // ignore errors: the stream may have failed already
  }
}
