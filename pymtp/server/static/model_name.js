// The model's name: at the top of a page, and in each request.

import { get } from "./api.js";
import { byId } from "./dom.js";

let known = null;

/** The name, once the server has loaded the model. Raises Failure. */
export async function modelName(signal) {
  known ??= (await get("v1/models", signal)).data[0].id;
  return known;
}

/** Shows it, sooner or later. */
export async function showModel() {
  const place = byId("model");
  try {
    place.textContent = await modelName();
  } catch (error) {
    place.textContent = error.message;
    if (error.wait) setTimeout(showModel, 1000 * error.wait);
  }
}
