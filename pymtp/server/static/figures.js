// The page of the engine's figures: asks once a second while it is seen.

import { get, keepKey, readKey } from "./api.js";
import { byId } from "./dom.js";
import { BarsPanel, NumbersPanel, PlotPanel, bytes, rate } from "./figures_panels.js";
import { showModel } from "./model_name.js";
import { percent, positionRows } from "./plot.js";

const EVERY = 1000; // milliseconds

const share = (part, whole) => (whole > 0 ? part / whole : 0);
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

/** Bars of how often each of some numbers was the case. */
function oftenRows(times) {
  const all = sum(Object.values(times));
  return Object.entries(times).map(([name, n]) => [name, share(n, all), percent(share(n, all))]);
}

const panels = [
  new PlotPanel("Requests", {
    running: ({ engine }) => engine.running,
    waiting: ({ engine }) => engine.waiting,
  }),
  new PlotPanel("Tokens/s", {
    written: ({ engine }, before, seconds) => (engine.tokens - before.engine.tokens) / seconds,
    "read of prompts": ({ engine }, before, seconds) => (engine.read - before.engine.read) / seconds,
  }, { show: rate }),
  new PlotPanel("Drafts accepted", {
    share: ({ engine }, { engine: before }) => share(engine.accepted - before.accepted, engine.drafted - before.drafted),
  }, { show: percent }),
  new BarsPanel("Drafts accepted, by position", ({ engine }) =>
    positionRows(engine.drafted_per_position, engine.accepted_per_position)),
  new BarsPanel("Rounds by drafts", ({ engine }) => oftenRows(engine.depths)),
  new BarsPanel("Rounds by sequences", ({ engine }) => oftenRows(engine.sequences)),
  new PlotPanel("Prefix cache", {
    "in host memory": ({ engine }) => engine.prefixes.nbytes,
  }, { show: bytes, least: 2 ** 20 }),
  new NumbersPanel("Prefixes", ({ engine: { prefixes, read } }) => [
    ["Prompts that found one", `${prefixes.hits} of ${prefixes.lookups}`],
    ["Tokens found", String(prefixes.found)],
    ["Tokens read", String(read)],
    ["Checkpoints", String(prefixes.checkpoints)],
    ["Checkpoints evicted", String(prefixes.evicted)],
  ]),
  new NumbersPanel("Requests that ended", ({ engine }) => [
    ["Finished", String(engine.finished)],
    ["Cancelled", String(engine.cancelled)],
    ["Failed", String(engine.failed)],
    ["Tokens written", String(engine.tokens)],
    ["Rounds", String(engine.rounds)],
  ]),
  new NumbersPanel("Memory", ({ memory, places, n_ctx }) => [
    ["Places", `${places} × ${n_ctx} tokens`],
    ...memory.map(({ device, total }) => [device, bytes(total)]),
  ]),
];

let before = null; // the last answer, and when it came
let waiting = 0; // the timer

async function poll() {
  clearTimeout(waiting);
  if (document.hidden) return;
  try {
    const now = { ...(await get("figures")), at: performance.now() };
    for (const panel of panels) panel.add(now, before, before && (now.at - before.at) / 1000);
    before = now;
    tellProblem(null);
  } catch (error) {
    before = null;
    tellProblem(error);
    if (error.status === 401) return;
  }
  clearTimeout(waiting); // another call may have come in between
  waiting = setTimeout(poll, EVERY);
}

function tellProblem(error) {
  const text = error?.message ?? "";
  if (byId("problem").textContent !== text) byId("problem").textContent = text;
  byId("problem").hidden = !error;
  byId("key-form").hidden = error?.status !== 401;
}

byId("panels").append(...panels.map((panel) => panel.element));
byId("key").value = readKey();
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepKey(byId("key").value.trim());
  showModel();
  poll();
});
document.addEventListener("visibilitychange", poll);
showModel();
poll();
