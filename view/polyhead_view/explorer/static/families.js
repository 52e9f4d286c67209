// The families that the server has, and those that are chosen: one, and perhaps another beside it.

import { saved } from "./answers.js";
import { element } from "./colours.js";

const families = new Map();
let servedBy = "";

const selectOf = (id) => document.getElementById(id);

export const family = () => families.get(selectOf("family").value);
export const against = () => (saved ? undefined : families.get(selectOf("against").value));

/** Take what the server has; return whether it is new. */
export function setFamilies(server) {
  servedBy = server.address;
  if (JSON.stringify(server.families) === JSON.stringify([...families.values()])) return false;
  families.clear();
  for (const one of server.families) families.set(one.name, one);
  const first = server.families.find((one) => one.text) ?? server.families.find((one) => !one.refused) ?? server.families[0];
  offer("family", [...families.keys()], selectOf("family").value || server.model || (first?.name ?? ""));
  return true;
}

/** Offer the families that take the same inputs, to be shown beside the first. */
export function offerAgainst() {
  const others = [...families.values()].filter((one) => !one.refused && one !== family() && one.text === family().text);
  const select = selectOf("against");
  offer("against", ["", ...others.map(({ name }) => name)], select.value);
  select.parentElement.hidden = !others.length && !select.value;
}

/** Choose a family, also one that is not served. */
export function choose(id, name) {
  offer(id, [...selectOf(id).options].map(({ value }) => value), name);
}

/** Say that what is chosen is not served; nothing if it is, or nothing is chosen. */
export function missingOf(id) {
  const name = selectOf(id).value;
  if (!name || families.has(name)) return null;
  return { kind: "NotFound", message: `${name} is not served by ${servedBy}. Choose another family; it is shown once it is served.` };
}

function offer(id, names, name) {
  const every = (names.includes(name) ? names : [...names, name]).filter((one) => one || id === "against");
  const spelled = (one) => (one === "" ? "–" : families.has(one) ? one : `${one} (not served)`);
  const select = selectOf(id);
  const options = every.map((one) => Object.assign(element("option", spelled(one)), { value: one }));
  // Options that are drawn anew would close a list that is open.
  if ([...select.options].map(({ text }) => text).join() !== options.map(({ text }) => text).join()) select.replaceChildren(...options);
  select.value = name;
}
