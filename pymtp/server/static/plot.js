// Small plots and bars, drawn as SVG.

import { el, svg } from "./dom.js";

const [WIDTH, HEIGHT] = [300, 80];

/** Lines over time. The caption has their names and last values, for screen readers too. */
export class Plot {
  #lines;
  #caption = el("figcaption");

  /** names: of the lines. show: formats a value. steps: draws steps. least: the smallest maximum of the axis. */
  constructor(names, { show = String, steps = false, least = 1 } = {}) {
    Object.assign(this, { names, show, steps, least });
    this.#lines = names.map((_, i) => svg("path", { class: i ? "second" : null }));
    const box = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" };
    this.element = el("figure", { class: "plot" }, svg("svg", box, ...this.#lines), this.#caption);
  }

  /** series: the last values of each line. room: the number of points on the axis. */
  draw(series, room) {
    const top = Math.max(this.least, ...series.flat());
    for (const [i, values] of series.entries()) this.#lines[i].setAttribute("d", this.#path(values, room, top));
    const last = series.map((values, i) => `${this.names[i]}: ${values.length ? this.show(values.at(-1)) : "–"}`);
    this.#caption.textContent = `${last.join(", ")} (top: ${this.show(top)})`;
  }

  #path(values, room, top) {
    const x = (i) => ((i / (room - (this.steps ? 0 : 1))) * WIDTH).toFixed(1);
    const y = (value) => (HEIGHT - 2 - (value / top) * (HEIGHT - 4)).toFixed(1);
    if (!this.steps) return values.map((value, i) => `${i ? "L" : "M"}${x(i)} ${y(value)}`).join("");
    return values.map((value, i) => `${i ? "V" : `M${x(0)} `}${y(value)}H${x(i + 1)}`).join("");
  }
}

/** Horizontal bars of shares. Only changed rows are drawn again. */
export class Bars {
  #rows = [];

  constructor(element) {
    this.element = element;
  }

  /** rows: [label, share of 1, text]. */
  draw(rows) {
    while (this.#rows.length > rows.length) this.#rows.pop().row.remove();
    for (const [i, [label, share, text]] of rows.entries()) {
      const { name, bar, value } = (this.#rows[i] ??= this.#newRow());
      if (name.textContent !== label) name.textContent = label;
      bar.setAttribute("width", (100 * share).toFixed(1));
      if (value.textContent !== text) value.textContent = text;
    }
  }

  #newRow() {
    const [name, value, bar] = [el("span"), el("span"), svg("rect", { height: 10, width: 0 })];
    const box = { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" };
    const row = el("div", { class: "bar" }, name, svg("svg", box, bar), value);
    this.element.append(row);
    return { row, name, bar, value };
  }
}

export function percent(share) {
  return `${(100 * share).toFixed(share === 1 ? 0 : 1)} %`;
}

/** Returns rows of Bars: the share of accepted drafts by position. */
export function positionRows(verified, accepted) {
  return verified.map((n, i) => {
    const share = n ? (accepted[i] ?? 0) / n : 0; // `accepted` may lack positions without accepted drafts
    return [String(i + 1), share, n ? percent(share) : "–"];
  });
}

/** Fills a <dl> with names and values. */
export function drawNumbers(list, numbers) {
  const texts = numbers.map(([name, value]) => `${name}\n${value}`).join("\n");
  if (list.dataset.texts === texts) return;
  list.dataset.texts = texts;
  list.replaceChildren(...numbers.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}
