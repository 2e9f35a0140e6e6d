// The page of the engine's statistics. The page polls the server once a second while it is visible.

import { get, readKey, storeKey } from "./api.js";
import { byId } from "./dom.js";
import { BarsPanel, NumbersPanel, PlotPanel, bytes, rate } from "./figures_panels.js";
import { modelQuery, showModel } from "./model_name.js";
import { percent, positionRows } from "./plot.js";

const POLL_INTERVAL = 1000; // milliseconds

const share = (part, whole) => (whole > 0 ? part / whole : 0);
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

/** Returns rows for Bars: for each key, the share of its count in the sum of all counts. */
function frequencyRows(times) {
  const all = sum(Object.values(times));
  return Object.entries(times).map(([name, n]) => [name, share(n, all), percent(share(n, all))]);
}

const panels = [
  new PlotPanel("Requests", {
    running: ({ engine }) => engine.running,
    waiting: ({ engine }) => engine.waiting,
  }),
  new PlotPanel("Tokens/s", {
    written: ({ engine }, previous, seconds) => (engine.tokens - previous.engine.tokens) / seconds,
    "read of prompts": ({ engine }, previous, seconds) => (engine.read - previous.engine.read) / seconds,
  }, { show: rate }),
  new PlotPanel("Drafts accepted", {
    share: ({ engine }, { engine: previous }) => share(engine.accepted - previous.accepted, engine.drafted - previous.drafted),
  }, { show: percent }),
  new BarsPanel("Drafts accepted, by position", ({ engine }) =>
    positionRows(engine.drafted_per_position, engine.accepted_per_position, engine.drafted_by_text, engine.accepted_by_text)),
  new BarsPanel("Rounds by drafts", ({ engine }) => frequencyRows(engine.depths)),
  new BarsPanel("Rounds by sequences", ({ engine }) => frequencyRows(engine.sequences)),
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
  new NumbersPanel("Memory", ({ engine, memory, places, n_ctx }) => [
    ["Places", `${places} × ${n_ctx} tokens`],
    ["Outputs kept for drafts", bytes(engine.output_bytes)],
    ...memory.map(({ device, total }) => [device, bytes(total)]),
  ]),
];

let previous = null; // the last response of the server, and the time of the response
let timer = 0;
let isPolling = false; // two polls at once would show the rates of almost no time

async function poll() {
  clearTimeout(timer);
  if (document.hidden || isPolling) return;
  isPolling = true;
  try {
    const current = { ...(await get(`figures${await modelQuery()}`)), at: performance.now() };
    for (const panel of panels) panel.add(current, previous, previous && (current.at - previous.at) / 1000);
    previous = current;
    showProblem(null);
  } catch (error) {
    previous = null;
    showProblem(error);
    if (error.status === 401) return; // until a key is entered
  } finally {
    isPolling = false;
  }
  timer = setTimeout(poll, POLL_INTERVAL);
}

/** Forgets the last response: the model may be another one than before. */
function restart() {
  previous = null;
}

function showProblem(error) {
  const text = error?.message ?? "";
  if (byId("problem").textContent !== text) byId("problem").textContent = text;
  byId("problem").hidden = !error;
  byId("key-form").hidden = error?.status !== 401;
}

byId("panels").append(...panels.map((panel) => panel.element));
byId("key").value = readKey();
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  storeKey(byId("key").value.trim());
  showModel(restart);
  poll();
});
document.addEventListener("visibilitychange", poll);
showModel(restart);
poll();
