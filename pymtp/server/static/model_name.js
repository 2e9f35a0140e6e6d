// The model's name: at the top of a page, and in each request.

import { get } from "./api.js";
import { byId } from "./dom.js";

let known = null;

/** What the server says of its model, once it has loaded it: a card of /v1/models. Raises Failure. */
async function modelCard(signal) {
  known ??= (await get("v1/models", signal)).data[0];
  return known;
}

/** The name. Raises Failure. */
export async function modelName(signal) {
  return (await modelCard(signal)).id;
}

/** Shows it, sooner or later. shown: called with the card then. */
export async function showModel(shown = () => {}) {
  const place = byId("model");
  try {
    const card = await modelCard();
    place.textContent = card.id;
    shown(card);
  } catch (error) {
    place.textContent = error.message;
    if (error.wait) setTimeout(() => showModel(shown), 1000 * error.wait);
  }
}
