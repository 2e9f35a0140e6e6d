// Draws the answers of a long chat only when they come near to what is shown.

import { byId } from "./dom.js";

const MARGIN = 8000; // pixels above and below the log, in which answers are drawn
const [LINE_CHARACTERS, LINE_HEIGHT] = [90, 24]; // by which the height of an answer is guessed; the height is in pixels

export class LazyDrawing {
  #views = new Map(); // the view of each element that waits
  #observer = new IntersectionObserver((entries) => this.#onEntries(entries), {
    root: byId("log"),
    rootMargin: `${MARGIN}px 0px`,
  });

  /** Lets a view wait. length: the number of characters that it will show. */
  add(view, length) {
    view.element.style.minHeight = `${Math.ceil(length / LINE_CHARACTERS) * LINE_HEIGHT}px`;
    this.#views.set(view.element, view);
    this.#observer.observe(view.element);
  }

  /** Draws a view now. */
  draw(view) {
    this.#observer.unobserve(view.element);
    this.#views.delete(view.element);
    view.draw();
    view.element.style.minHeight = "";
  }

  /** Forgets the views that wait. */
  clear() {
    this.#observer.disconnect();
    this.#views.clear();
  }

  #onEntries(entries) {
    for (const { target, isIntersecting } of entries) {
      const view = isIntersecting && this.#views.get(target);
      if (view) this.draw(view);
    }
  }
}
