// The model's name, which is shown at the top of a page and sent with each request.

import { get } from "./api.js";
import { byId } from "./dom.js";

let cachedCard = null;

/** Returns the model's card, which is fetched from /v1/models only once. Throws Failure. */
async function modelCard(signal) {
  cachedCard ??= (await get("v1/models", signal)).data[0];
  return cachedCard;
}

/** Returns the name of the model. Throws Failure. */
export async function modelName(signal) {
  return (await modelCard(signal)).id;
}

/** Shows the name of the model as soon as the server has loaded the model, and then calls `onCard` with its card. */
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
