// The model's name, at the top of a page.

import { get } from "./api.js";
import { byId } from "./dom.js";

/** Shows it, once the server has loaded the model. */
export async function showModel() {
  const place = byId("model");
  try {
    place.textContent = (await get("v1/models")).data[0].id;
  } catch (error) {
    place.textContent = error.message;
    if (error.wait !== null && error.wait !== undefined) setTimeout(showModel, 1000 * Math.max(1, error.wait));
  }
}
