// What a change moves: the vector of each token, and the embedding or the score.

import { element, Legend } from "./colours.js";
import { named, Strip } from "./panel.js";

const MOST_CHANGED = 6;

/** Show how far each token's vector moved: 1 − cosine. */
export function changeOf({ tokens, second, cosine, cosines, before, score }, between, name = "") {
  const moved = Array.from(cosines, (value) => Math.max(1 - value, 0));
  const most = Math.max(...moved, 1e-6);
  const panel = element("div", "", "panel");
  const strip = new Strip();
  strip.show(tokens, second);
  strip.colour((at) => moved[at] / most);
  const legend = new Legend();
  legend.show("0", most.toFixed(4), `how far a token's vector moved: 1 − cosine ${between}`);
  const order = [...moved.keys()].sort((one, other) => moved[other] - moved[one]).slice(0, MOST_CHANGED);
  const list = document.createElement("ol");
  list.append(...order.map((at) => element("li", `${named(tokens[at], at)} ${moved[at].toFixed(4)}`)));
  const rank = score === undefined ? `Cosine of the embedding ${between}: ${cosine.toFixed(4)}` : `Score ${between}: ${before.score.toFixed(4)} and ${score.toFixed(4)}`;
  const reading = element("p", `${name && `${name}: `}${rank}. Tokens that moved most:`, "reading");
  panel.append(reading, list, legend.element, strip.element);
  return panel;
}
