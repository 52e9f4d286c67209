// The page: what is chosen, what is asked for it, and where the answers are shown.

import { ask, askServer, fetchColours, latest } from "./answers.js";
import { paint, setColours } from "./colours.js";
import { HeadGrid } from "./grid.js";
import { Panel, Strip } from "./panel.js";

const PAUSE_MS = 250; // after the last key, before a sentence is sent
const POLL_MS = 3000;
const MOST_CHANGED = 6;
const SENTENCES = ["Sentence", "Second sentence"];

const by = (id) => document.getElementById(id);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];

const chosen = { open: null, silenced: new Set() }; // `open` is "rollout", or {layer, head}
const families = new Map();
const newest = { overview: latest(), detail: latest(), change: latest(), similarity: latest() };
const grids = SENTENCES.map((name) => new HeadGrid(`Heads of: ${name}`, { open: openHead, silence, look }));
const panels = { detail: [], similarity: [] };
const problems = new Map();
let overviews = [];
let looked = null; // the layer and head that the line above the grids is about
let connected = false;

const family = () => families.get(by("family").value);
const weighted = () => by("question").elements.weights.value === "weighted";
const texts = () => [by("text").value, by("other").value].map((text) => text.trim()).filter(Boolean);
const question = (text) => ({
  model: family().name,
  text,
  truncate: by("truncate").checked,
  silenced: [...chosen.silenced].map((key) => key.split(".").map(Number)),
});

// ---- Asking ----------------------------------------------------------------------------------------------

/** Ask for each question, and show all answers, unless something newer is asked for meanwhile. */
async function askAll(kind, element, questions, show) {
  const signal = newest[kind]();
  element.classList.add("busy");
  element.setAttribute("aria-busy", "true");
  try {
    show(await Promise.all(questions.map(([what, asked]) => ask(what, asked, signal))));
    report(kind);
    element.classList.remove("busy");
  } catch (error) {
    if (error.name === "AbortError") return;
    report(kind, error); // and what is shown stays dimmed: it is of another question
  }
  element.removeAttribute("aria-busy");
}

/** Say what is wrong with one kind of question, or that nothing is any more. */
function report(kind, error) {
  if (error) problems.set(kind, error.kind ? error.message : `The page failed: ${error}`);
  else problems.delete(kind);
  const said = [...new Set(problems.values())].join("\n");
  by("problem").hidden = !said;
  if (by("problem").textContent !== said) by("problem").textContent = said;
  if (["Unavailable", "AccessDenied"].includes(error?.kind)) connected = false;
  if (error && !error.kind) console.error(error);
}

/** Ask for everything that is shown. */
function refresh() {
  if (!connected || !family()) return;
  by("silencing").hidden = !family().head_mask;
  by("rollout").disabled = !family().insight;
  by("missing").hidden = !family().missing?.length;
  by("missing").replaceChildren(...(family().missing ?? []).map((line) => element("li", line)));
  for (const id of ["change", "similarity"]) by(id).hidden = true;
  for (const kind of Object.keys(newest)) {
    newest[kind]();
    report(kind);
  }
  if (family().refused || !texts().length) {
    overviews = [];
    by("grids").replaceChildren();
    by("detail").hidden = true;
    by("legend").hidden = true;
    by("about").textContent = family().refused ?? "Type a sentence.";
    return;
  }
  const asked = texts().map((text) => ["overview", question(text)]);
  askAll("overview", by("grids"), asked, (answers) => {
    overviews = answers.map((overview, at) => ({ ...overview, text: asked[at][1].text }));
    showGrids();
    performance.mark("heads shown");
  });
  refreshDetail();
  refreshChange();
  if (texts().length > 1) refreshSimilarity();
}

// ---- Heads -----------------------------------------------------------------------------------------------

function showGrids() {
  const shown = overviews.map((_, at) => grids[at].element);
  // What is moved loses the focus.
  if (by("grids").childElementCount !== shown.length) by("grids").replaceChildren(...shown);
  overviews.forEach((overview, at) => {
    const took = `${overview.tokens.length} tokens, ${overview.total_ms.toFixed(0)} ms`;
    grids[at].show(overview, `${took}: ${overview.text}`);
  });
  const names = overviews[0].scores;
  const select = by("score");
  if (all("option", select).map((option) => option.value).join() !== names.join()) {
    const before = select.value;
    select.replaceChildren(...names.map((name) => element("option", name)));
    select.value = names.includes(before) ? before : names.includes("entropy") ? "entropy" : (names[0] ?? "");
  }
  select.disabled = !names.length;
  showFrames();
}

/** Colour the frames of all heads by the chosen score, on one scale for both sentences. */
function showFrames() {
  const at = overviews[0]?.scores.indexOf(by("score").value) ?? -1;
  const columns = overviews.map((overview) => (at < 0 ? [] : scoresOf(overview, at)));
  const values = columns.flat().filter((value) => !Number.isNaN(value));
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const share = (value) => (most > least ? (value - least) / (most - least) : value - least);
  const open = chosen.open === "rollout" || !chosen.open ? "" : `${chosen.open.layer}.${chosen.open.head}`;
  columns.forEach((column, index) => {
    const labels = column.map((value) => `${by("score").value} ${spelled(value)}`);
    const shares = at < 0 ? null : column.map(share);
    grids[index].frame(shares, at < 0 ? null : labels, chosen.silenced, open);
  });
  by("small-raw").hidden = !weighted();
  if (looked) look(...looked);
  showScores();
  by("legend").hidden = !values.length;
  const [low, high] = all("span", by("legend"));
  low.textContent = spelled(least);
  high.textContent = spelled(most);
}

function scoresOf(overview, at) {
  const [values, width] = [valuesOf(overview), overview.scores.length];
  return Array.from({ length: values.length / width }, (_, head) => values[head * width + at]);
}

const valuesOf = (overview) => (weighted() && overview.weighted) || overview.raw;

const spelled = (value) => (Number.isNaN(value) ? "not defined" : value.toFixed(3));

/** Say what the chosen score of a head is, under the pointer or the focus. */
function look(layer, head) {
  looked = [layer, head];
  const label = (grid) => grid.cells.find((cell) => cell.dataset.layer === `${layer}` && cell.dataset.head === `${head}`);
  const found = grids.slice(0, overviews.length).map((grid) => label(grid)?.getAttribute("aria-label"));
  by("about").textContent = [...new Set(found)].filter(Boolean).join("; second sentence: ");
}

// ---- One head, or rollout --------------------------------------------------------------------------------

function openHead(layer, head) {
  chosen.open = { layer, head };
  refreshDetail();
  showFrames();
}

function closeDetail() {
  const { open } = chosen;
  chosen.open = null;
  newest.detail();
  by("detail").hidden = true;
  by("detail").classList.remove("busy");
  if (overviews.length) showFrames();
  if (open?.layer !== undefined) grids[0].focus(open.layer, open.head);
  else by("rollout").focus();
}

function refreshDetail() {
  const { open } = chosen;
  if (!open || !texts().length) return;
  const rollout = open === "rollout";
  const title = rollout ? "Rollout" : `Layer ${open.layer}, head ${open.head}`;
  by("detail-title").textContent = title;
  by("detail").hidden = false;
  const off = !rollout && chosen.silenced.has(`${open.layer}.${open.head}`);
  by("silence").hidden = rollout || !family().head_mask;
  by("silence").textContent = off ? "Restore this head" : "Silence this head";
  const kind = weighted() ? "Norm-weighted attention" : "Attention";
  const asked = texts().map((text) => [
    rollout ? "rollout" : "head",
    { ...question(text), ...(rollout ? {} : { ...open, weighted: weighted() }) },
  ]);
  askAll("detail", by("detail"), asked, (frames) => {
    const words = rollout
      ? { label: title, joined: "comes from" }
      : { label: `${title}, ${kind.toLowerCase()}`, joined: "attends to" };
    showPanels("detail", frames, (at) => ({ ...words, caption: `${rollout ? "Rollout" : kind} of: ${asked[at][1].text}` }));
  });
}

/** List all scores of the open head, of the first sentence. */
function showScores() {
  const [overview] = overviews;
  const row = chosen.open === "rollout" ? -1 : (overview?.layers.indexOf(chosen.open?.layer) ?? -1);
  const names = row < 0 ? [] : overview.scores;
  const at = row * (overview?.thumbnails.shape[1] ?? 0) + (chosen.open?.head ?? 0);
  by("scores").replaceChildren(
    ...names.map((name, index) => {
      const pair = document.createElement("div");
      const value = valuesOf(overview)[at * names.length + index];
      pair.append(element("dt", name), element("dd", spelled(value)));
      return pair;
    }),
  );
}

function showPanels(id, frames, words) {
  const parent = by(id).querySelector(".panels");
  while (panels[id].length < frames.length) panels[id].push(new Panel(parent));
  panels[id].forEach((panel, at) => {
    panel.element.hidden = at >= frames.length;
    if (at < frames.length) panel.show(frames[at], words(at));
  });
}

// ---- Silenced heads, and two sentences -----------------------------------------------------------------------

function silence(layer, head) {
  if (!family().head_mask) return;
  const key = `${layer}.${head}`;
  if (!chosen.silenced.delete(key)) chosen.silenced.add(key);
  refresh();
}

function refreshChange() {
  newest.change();
  by("change").hidden = !chosen.silenced.size;
  if (!chosen.silenced.size) return;
  const asked = texts().map((text) => ["change", question(text)]);
  askAll("change", by("change"), asked, (frames) => {
    const heads = [...chosen.silenced].map((key) => `layer ${key.split(".")[0]} head ${key.split(".")[1]}`);
    by("silenced").textContent = `Without ${heads.join(", ")}.`;
    by("change").querySelector(".panels").replaceChildren(...frames.map(changeOf));
  });
}

/** Show how far each token's vector moved: 1 − cosine. */
function changeOf({ tokens, cosine, cosines }) {
  const moved = Array.from(cosines, (value) => Math.max(1 - value, 0));
  const most = Math.max(...moved, 1e-6);
  const panel = element("div", "");
  panel.className = "panel";
  const strip = new Strip();
  strip.show(tokens);
  strip.colour((at) => moved[at] / most);
  const order = [...moved.keys()].sort((one, other) => moved[other] - moved[one]).slice(0, MOST_CHANGED);
  const list = document.createElement("ol");
  list.append(...order.map((at) => element("li", `${tokens[at]} (${at}) ${cosines[at].toFixed(4)}`)));
  const reading = element("p", `Cosine of the embedding with all heads and without these: ${cosine.toFixed(4)}. Tokens that changed most:`);
  reading.className = "reading";
  panel.append(reading, list, strip.element);
  return panel;
}

function refreshSimilarity() {
  by("similarity").hidden = false;
  const asked = [["similarity", { ...question(texts()[0]), other: texts()[1] }]];
  askAll("similarity", by("similarity"), asked, (frames) => {
    by("cosine").textContent = `Cosine of the two sentences: ${frames[0].cosine.toFixed(4)}, the sum of what these pairs of tokens add to it.`;
    const words = { label: "Similarity of token pairs", joined: "with", caption: `Rows: ${asked[0][1].text}`, pairs: true };
    showPanels("similarity", frames, () => words);
  });
}

// ---- The server --------------------------------------------------------------------------------------------

/** Look whether the server answers and what it serves; ask again for what is shown when that changes. */
async function poll() {
  try {
    const server = await askServer();
    const news = JSON.stringify(server.families) !== JSON.stringify([...families.values()]);
    by("connection").textContent = `connected to ${server.address}`;
    if (news) showFamilies(server);
    if (!connected || news) {
      connected = true;
      report("server", server.families.length ? null : { kind: "NotFound", message: `${server.address} serves no models.` });
      refresh();
    }
  } catch (error) {
    by("connection").textContent = "not connected; the page continues when the server answers";
    report("server", error);
    connected = false;
  }
  setTimeout(poll, POLL_MS);
}

function showFamilies(server) {
  const select = by("family");
  const before = select.value || server.model;
  families.clear();
  for (const one of server.families) families.set(one.name, one);
  select.replaceChildren(...server.families.map(({ name }) => element("option", name)));
  const first = server.families.find((one) => !one.refused) ?? server.families[0];
  select.value = families.has(before) ? before : (first?.name ?? "");
}

function element(tag, text) {
  const made = document.createElement(tag);
  made.textContent = text;
  return made;
}

let timer;
for (const id of ["text", "other"]) {
  by(id).addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(refresh, PAUSE_MS);
  });
}
by("family").addEventListener("change", () => {
  chosen.silenced.clear();
  if (chosen.open) closeDetail();
  refresh();
});
by("truncate").addEventListener("change", refresh);
by("score").addEventListener("change", showFrames);
for (const radio of by("question").elements.weights) {
  radio.addEventListener("change", () => {
    if (overviews.length) showFrames();
    refreshDetail();
  });
}
by("rollout").addEventListener("click", () => {
  chosen.open = "rollout";
  refreshDetail();
  if (overviews.length) showFrames();
});
by("silence").addEventListener("click", () => silence(chosen.open.layer, chosen.open.head));
by("close").addEventListener("click", closeDetail);
by("restore").addEventListener("click", () => {
  chosen.silenced.clear();
  refresh();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && chosen.open) closeDetail();
});

setColours(await fetchColours());
paint(by("legend").querySelector("canvas"), 256, 1, (at) => at / 255);
poll();
