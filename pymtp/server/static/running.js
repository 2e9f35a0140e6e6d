// The panel with the statistics of the running answer, beside the conversation.

import { byId } from "./dom.js";
import { Bars, Plot, drawNumbers, percent, positionRows } from "./plot.js";

const MAX_ROUNDS = 100; // the most rounds that the plot shows

export class Running {
  #numbers = byId("numbers");
  #bars = new Bars(byId("positions"));
  #plot = new Plot(["drafts", "accepted"], { steps: true });

  constructor() {
    byId("depths").append(this.#plot.element);
  }

  /** Draws the statistics of an answer; null: of none. */
  draw(answer) {
    byId("figures").hidden = answer === null;
    if (!answer) return;
    const { figures, acceptance } = answer;
    drawNumbers(this.#numbers, [
      ["Tokens/s", answer.speed ? answer.speed.toFixed(answer.speed < 100 ? 1 : 0) : "–"],
      ["Tokens", String(answer.tokens)],
      ["Rounds", String(answer.rounds.length)],
      ["Drafts accepted", acceptance === null ? "no drafts" : percent(acceptance)],
      ["First token after", figures ? `${(1000 * figures.time_to_first_token).toFixed(0)} ms` : "–"],
      ["Prompt tokens from cache", figures ? String(figures.cached_tokens) : "–"],
    ]);
    const { verifiedByText, acceptedByText } = answer.drafts;
    this.#bars.draw(positionRows(answer.verified, answer.accepted, verifiedByText, acceptedByText));
    const last = answer.rounds.slice(-MAX_ROUNDS);
    this.#plot.draw([last.map(([drafted]) => drafted), last.map(([, accepted]) => accepted)], MAX_ROUNDS);
  }
}
