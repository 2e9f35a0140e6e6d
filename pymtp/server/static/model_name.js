// The model of a page: its name at the top, or the choice among the models of a server, sent with each request.

import { get } from "./api.js";
import { byId } from "./dom.js";
import { session } from "./storage.js";

const CHOSEN = "pymtp.model"; // the name in sessionStorage: each tab has its own model
const STATES = { loading: "is loading", unloaded: "not loaded" };

let cachedCards = null;

/** Returns the cards of all models, which are fetched from /v1/models only once. Throws Failure. */
async function modelCards(signal) {
  cachedCards ??= (await get("v1/models", signal)).data;
  return cachedCards;
}

/** Makes the next request fetch the cards again. */
export function forgetModels() {
  cachedCards = null;
}

/** Returns the card of the chosen model, without a choice that of the first. Throws Failure. */
async function modelCard(signal) {
  const cards = await modelCards(signal);
  return cards.find((card) => card.id === session.get(CHOSEN)) ?? cards[0];
}

/** Returns the name of the model. Throws Failure. */
export async function modelName(signal) {
  return (await modelCard(signal)).id;
}

/** Returns the query of a GET request about the model, "" if the server has only one. Throws Failure. */
export async function modelQuery(signal) {
  const card = await modelCard(signal);
  return card.status ? `?model=${encodeURIComponent(card.id)}` : ""; // only servers of several models tell a status
}

/** Shows the name of the model as soon as the server has loaded the model, and then calls `onCard` with its card.
 * Of several models, one can be chosen; `onCard` is called for each choice. */
export async function showModel(onCard = () => {}) {
  const element = byId("model");
  try {
    const cards = await modelCards();
    const card = await modelCard();
    if (card.status) element.replaceChildren(choice(cards, card, onCard));
    else element.textContent = card.id;
    onCard(card);
  } catch (error) {
    element.textContent = error.message;
    if (error.wait) setTimeout(() => showModel(onCard), 1000 * error.wait);
  }
}

function choice(cards, chosen, onCard) {
  const select = document.createElement("select");
  select.setAttribute("aria-label", "Model");
  for (const card of cards) {
    const option = new Option(card.id, card.id, false, card.id === chosen.id);
    option.title = STATES[card.status.value] ?? "loaded";
    select.append(option);
  }
  select.addEventListener("change", () => {
    session.set(CHOSEN, select.value);
    onCard(cards.find((card) => card.id === select.value));
  });
  // what is loaded changes with the requests of all clients, so it is asked for when the list is opened
  select.addEventListener("pointerdown", async () => {
    const now = (await get("v1/models").catch(() => null))?.data ?? [];
    for (const card of now) {
      const option = [...select.options].find((each) => each.value === card.id);
      if (option) option.title = STATES[card.status.value] ?? "loaded";
    }
  });
  return select;
}
