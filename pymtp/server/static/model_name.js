// The model's name, at the top of a page and in each request.

import { get } from "./api.js";
import { byId } from "./dom.js";

let cachedCard = null;

/** Fetches the model's card from /v1/models once. Throws Failure. */
async function modelCard(signal) {
  cachedCard ??= (await get("v1/models", signal)).data[0];
  return cachedCard;
}

/** Returns the name of the model. Throws Failure. */
export async function modelName(signal) {
  return (await modelCard(signal)).id;
}

/** Shows the name once the server has loaded the model. onCard: called with the card then. */
export async function showModel(onCard = () => {}) {
  const element = byId("model");
  try {
    const card = await modelCard();
    element.textContent = card.id;
    onCard(card);
  } catch (error) {
    element.textContent = error.message;
    if (error.wait) setTimeout(() => showModel(onCard), 1000 * error.wait);
  }
}
