// The panels of the figures page. Each panel has a method add(now, before, seconds): `now` is the last response of the
// server, `before` is the previous response, if any, and `seconds` is the time between the two.

import { el } from "./dom.js";
import { Bars, Plot, drawNumbers } from "./plot.js";

const MAX_POINTS = 120; // the most points of a plot

export const rate = (value) => value.toFixed(value < 100 ? 1 : 0);
export const bytes = (n) => (n < 2 ** 20 ? `${(n / 2 ** 10).toFixed(1)} KiB` : `${(n / 2 ** 20).toFixed(1)} MiB`);

function panel(title, ...parts) {
  return el("section", { class: "panel" }, el("h2", {}, title), ...parts);
}

/** A plot of values over time. lines: for the name of each line, a function that returns its value. */
export class PlotPanel {
  #getters;
  #values;
  #plot;

  constructor(title, lines, options) {
    this.#getters = Object.values(lines);
    this.#values = this.#getters.map(() => []);
    this.#plot = new Plot(Object.keys(lines), options);
    this.element = panel(title, this.#plot.element);
  }

  add(now, before, seconds) {
    if (!before) return;
    for (const [i, getter] of this.#getters.entries()) {
      this.#values[i].push(getter(now, before, seconds));
      if (this.#values[i].length > MAX_POINTS) this.#values[i].shift();
    }
    this.#plot.draw(this.#values, MAX_POINTS);
  }
}

/** Bars for counters since the model was loaded. rows: a function that returns the rows for `Bars`. */
export class BarsPanel {
  #bars = new Bars(el("div", { class: "bars" }));

  constructor(title, rows) {
    this.rows = rows;
    this.element = panel(title, this.#bars.element);
  }

  add(now) {
    this.#bars.draw(this.rows(now));
  }
}

/** A list of names and numbers. numbers: a function that returns pairs [name, number]. */
export class NumbersPanel {
  #list = el("dl", { class: "numbers" });

  constructor(title, numbers) {
    this.numbers = numbers;
    this.element = panel(title, this.#list);
  }

  add(now) {
    drawNumbers(this.#list, this.numbers(now));
  }
}
