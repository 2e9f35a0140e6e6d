// A parser of server-sent events, for pieces of any size.

/** An incremental parser; `push` returns the data of the completed events. */
export class EventReader {
  #line = ""; // the incomplete last line
  #data = []; // data lines of the incomplete event
  #afterReturn = false; // the last piece ended with \r, so a following \n belongs to it

  push(piece) {
    const events = [];
    if (this.#afterReturn && piece.startsWith("\n")) piece = piece.slice(1);
    if (piece !== "") this.#afterReturn = piece.endsWith("\r");
    const lines = piece.split(/\r\n|\n|\r/); // no other character ends a line: answers may have U+2028
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
    } // comments and other fields are ignored
  }
}

/** Yields the data of each event of a response's body. Pieces may cut characters. */
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
    reader.cancel().catch(() => {}); // the loop was left early; the stream may have failed already
  }
}
