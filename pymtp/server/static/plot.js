// Small plots and bars, drawn as SVG.

import { el, svg } from "./dom.js";

const [WIDTH, HEIGHT] = [300, 80];

/** A plot of lines over time. The caption has the names and last values of the lines, also for screen readers. */
export class Plot {
  #lines;
  #caption = el("figcaption");

  /** names: the names of the lines. show: a function that formats a value. steps: whether to draw steps instead of
   * sloped lines. least: the lowest value that the top of the axis may have. */
  constructor(names, { show = String, steps = false, least = 1 } = {}) {
    Object.assign(this, { names, show, steps, least });
    this.#lines = names.map((_, i) => svg("path", { class: i ? "second" : null }));
    const box = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" };
    this.element = el("figure", { class: "plot" }, svg("svg", box, ...this.#lines), this.#caption);
  }

  /** Draws the lines. series: the values of each line. room: the number of points for which the axis has room. */
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

/** Horizontal bars that show shares. Only rows that have changed are drawn again. */
export class Bars {
  #rows = [];

  constructor(element) {
    this.element = element;
  }

  /** Draws the bars. rows: for each bar [label, share from 0 to 1, text]. */
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

/** Returns rows for `Bars`: for each position in the head's draft, the share of verified drafts that were accepted; and
 * this share of the drafts from text, if there were any. */
export function positionRows(verified, accepted, verifiedByText, acceptedByText) {
  const row = (label, n, of) => {
    const share = of ? n / of : 0;
    return [label, share, of ? percent(share) : "–"];
  };
  // `accepted` has no entry for later positions without acceptance
  const rows = verified.map((of, i) => row(String(i + 1), accepted[i] ?? 0, of));
  return verifiedByText ? [...rows, row("text", acceptedByText, verifiedByText)] : rows;
}

/** Fills a <dl> element with names and values. numbers: pairs [name, value]. */
export function drawNumbers(list, numbers) {
  const texts = numbers.map(([name, value]) => `${name}\n${value}`).join("\n");
  if (list.dataset.texts === texts) return;
  list.dataset.texts = texts;
  list.replaceChildren(...numbers.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}
