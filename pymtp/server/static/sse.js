// The text of a text/event-stream, in any pieces, to its events.

/** Reads events as pieces of text come. `push` gives the data of each event that is complete. */
export class EventReader {
  #line = ""; // its beginning, until its end comes
  #data = []; // lines of the event that is not complete
  #afterReturn = false; // the last piece ended with \r: a \n that follows belongs to it

  push(piece) {
    const events = [];
    if (this.#afterReturn && piece.startsWith("\n")) piece = piece.slice(1);
    if (piece !== "") this.#afterReturn = piece.endsWith("\r");
    const lines = piece.split(/\r\n|\n|\r/); // no other character ends a line: U+2028 stands in answers
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
    } // comments and other fields carry nothing for these pages
  }
}

/** The data of each event of a response's body. A character may be cut between two pieces of bytes. */
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
    reader.cancel().catch(() => {}); // whoever leaves the loop wants no more; it may have failed already
  }
}
