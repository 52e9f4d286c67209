// What is shown, in the page's address: a view can be sent, and survives a reload.

import { saved } from "./answers.js";

const ADDRESS_PAUSE_MS = 300; // browsers limit how often an address may change

let pending;

/** Return the names and values in the address; those that a saved page begins with, if it has none. */
export function readState() {
  const found = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  return saved && !Object.keys(found).length ? saved.state : found;
}

/** Put names and values into the address, soon; those that are empty are left out, but for the text, which begins with one. */
export function writeState(state) {
  clearTimeout(pending);
  pending = setTimeout(() => {
    const kept = Object.entries(state()).filter(([name, value]) => value || name === "text");
    if (location.protocol !== "about:") history.replaceState(null, "", `#${new URLSearchParams(kept)}`); // not in a notebook
  }, ADDRESS_PAUSE_MS);
}
