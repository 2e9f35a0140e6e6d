// The chat page: a conversation, kept as long as the page is open.

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
let stopper = null; // of the answer that is written

/** Shows what may be done now. */
function show() {
  const idle = stopper === null;
  const lastOfPerson = turns.findLast((turn) => turn instanceof UserTurn);
  for (const turn of turns) turn.show({ idle, last: turn === turns.at(-1), lastOfPerson: turn === lastOfPerson });
  byId("send").hidden = !idle;
  byId("stop").hidden = idle;
  byId("welcome").hidden = turns.length > 0;
}

/** To those who do not see the page: the beginning and the end of an answer, not every token. */
function tell(text) {
  byId("status").textContent = text;
}

function push(turn) {
  turns.push(turn);
  log.append(turn.element);
  log.scrollTop = log.scrollHeight;
}

function cut(from) {
  for (const turn of turns.splice(from)) turn.element.remove();
}

function send() {
  const text = question.value;
  const request = stopper || !text.trim() ? null : settings.request();
  if (!request) return;
  question.value = "";
  push(new UserTurn(text, edit));
  goOn(request);
}

function edit() {
  const at = turns.findLastIndex((turn) => turn instanceof UserTurn);
  question.value = turns[at].text;
  cut(at);
  show();
  question.focus();
}

function again() {
  const request = settings.request();
  if (!request) return;
  cut(turns.length - 1);
  goOn(request);
}

/** One more answer to what was said so far. */
function goOn(request = settings.request()) {
  if (!request) return;
  const system = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  const messages = [...system, ...turns.flatMap((turn) => turn.messages)];
  const turn = new AnswerTurn({ again, compare, goOn: () => goOn() });
  push(turn);
  write(turn, { ...request, messages });
}

/** The same request once more, with drafts where there were none and without where there were. */
async function compare() {
  const turn = turns.at(-1);
  const { draft_tokens: _, ...request } = turn.answer.request;
  turn.dropSecond();
  await write(turn, turn.answer.usesMtp ? { ...request, draft_tokens: 0 } : request);
  turn.compare();
  running.draw(turn.answer);
}

async function write(turn, request) {
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
  stopper = new AbortController();
  turn.fail(null);
  show();
  tell("The answer begins.");
  try {
    const { signal } = stopper;
    const asked = { model: await modelName(signal), ...request, pymtp: { origins: true } };
    for await (const chunk of answerChunks(asked, signal)) {
      answer.take(chunk);
      frame ||= requestAnimationFrame(draw);
    }
    answer.end();
    tell(`The answer has ended: ${answer.tokens} tokens.`);
  } catch (error) {
    answer.end(error.name === "AbortError" ? "stopped" : "failed");
    if (error.name === "AbortError") tell("Stopped.");
    else fail(turn, error);
  }
  cancelAnimationFrame(frame);
  stopper = null;
  draw();
  show();
}

function fail(turn, error) {
  turn.fail(error.message);
  tell("");
  if (error.status === 401) settings.askForKey();
}

function stop() {
  stopper?.abort();
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
