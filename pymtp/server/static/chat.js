// The chat page: a conversation that lasts until the page is closed.

import { Answer } from "./answer.js";
import { answerChunks } from "./api.js";
import { byId } from "./dom.js";
import { modelName, showModel } from "./model_name.js";
import { Running } from "./running.js";
import { Settings } from "./settings.js";
import { AnswerTurn, UserTurn } from "./turns.js";

const log = byId("log");
const question = byId("question");
const settings = new Settings();
const running = new Running();
const turns = [];
let abortController = null; // aborts the running answer; null if no answer runs

/** Shows only the controls that can be used in the current state. */
function updateControls() {
  const idle = abortController === null;
  const lastOfPerson = turns.findLast((turn) => turn instanceof UserTurn);
  for (const turn of turns) turn.updateControls({ idle, last: turn === turns.at(-1), lastOfPerson: turn === lastOfPerson });
  byId("send").hidden = !idle;
  byId("stop").hidden = idle;
  byId("welcome").hidden = turns.length > 0;
}

/** Announces a text to screen readers. Used at the start and the end of an answer, not for every token. */
function announce(text) {
  byId("status").textContent = text;
}

function push(turn) {
  turns.push(turn);
  log.append(turn.element);
  log.scrollTop = log.scrollHeight;
}

function removeTurns(from) {
  for (const turn of turns.splice(from)) turn.element.remove();
}

function send() {
  const text = question.value;
  const request = abortController || !text.trim() ? null : settings.request();
  if (!request) return;
  question.value = "";
  push(new UserTurn(text, edit));
  generate(request);
}

function edit() {
  const at = turns.findLastIndex((turn) => turn instanceof UserTurn);
  question.value = turns[at].text;
  removeTurns(at);
  updateControls();
  question.focus();
}

function regenerate() {
  const request = settings.request();
  if (!request) return;
  removeTurns(turns.length - 1);
  generate(request);
}

/** Generates an answer to the current conversation. */
function generate(request = settings.request()) {
  if (!request) return;
  const system = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  const messages = [...system, ...turns.flatMap((turn) => turn.messages)];
  const turn = new AnswerTurn({ regenerate, compare, sendResults: () => generate() });
  push(turn);
  streamAnswer(turn, { ...request, messages });
}

/** Repeats the last request without drafts, or with drafts if the first answer had none. */
async function compare() {
  const turn = turns.at(-1);
  const { draft_tokens: _, ...request } = turn.answer.request;
  turn.dropSecond();
  await streamAnswer(turn, turn.answer.usesMtp ? { ...request, draft_tokens: 0 } : request);
  turn.compare();
  running.draw(turn.answer);
}

async function streamAnswer(turn, request) {
  const answer = new Answer(request);
  const view = turn.add(answer, settings.showsMarkdown);
  let frame = 0;
  const draw = () => {
    frame = 0;
    const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
    view.draw();
    running.draw(answer);
    if (follows) log.scrollTop = log.scrollHeight;
  };
  abortController = new AbortController();
  turn.fail(null);
  updateControls();
  announce("The answer begins.");
  try {
    const { signal } = abortController;
    const body = { model: await modelName(signal), ...request, pymtp: { origins: true } };
    for await (const chunk of answerChunks(body, signal)) {
      answer.push(chunk);
      frame ||= requestAnimationFrame(draw);
    }
    answer.end();
    announce(`The answer has ended: ${answer.tokens} tokens.`);
  } catch (error) {
    answer.end(error.name === "AbortError" ? "stopped" : "failed");
    if (error.name === "AbortError") announce("Stopped.");
    else fail(turn, error);
  }
  cancelAnimationFrame(frame);
  abortController = null;
  draw();
  updateControls();
}

function fail(turn, error) {
  turn.fail(error.message);
  announce("");
  if (error.status === 401) settings.askForKey();
}

function stop() {
  abortController?.abort();
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
question.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
byId("stop").addEventListener("click", () => {
  stop();
  question.focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
});
if (matchMedia("(max-width: 800px)").matches) for (const part of ["figures", "legend"]) byId(part).open = false;
const showCard = () => showModel((card) => settings.showDefaults(card.meta?.sampling ?? {}));
byId("key").addEventListener("change", showCard);
showCard();
