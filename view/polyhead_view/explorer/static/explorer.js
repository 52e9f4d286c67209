// The page: what is chosen, what is asked for it, and where the answers are shown.

import { ask, askFile, askServer, fetchColours, latest, saved } from "./answers.js";
import { element, Legend, setColours } from "./colours.js";
import { csvOf, download } from "./downloads.js";
import { HeadGrid } from "./grid.js";
import { named, Panel, Strip } from "./panel.js";
import { readState, writeState } from "./state.js";

const PAUSE_MS = 250; // after the last key, before a sentence is sent
const POLL_MS = 3000;
const MOST_CHANGED = 6;
const SENTENCES = ["Sentence", "Second sentence"];
const WHOLE = {
  rollout: { title: "Rollout", label: "Rollout", joined: "comes from", quantity: "rollout" },
  contacts: { title: "Contacts", label: "Contacts", joined: "touches", quantity: "probability of a contact" },
};
const SAVED_FROM = "saved: works without a server";

const by = (id) => document.getElementById(id);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];

const chosen = { open: null, silenced: new Set(), cell: "", trace: "" }; // `trace` is "open", or the place that is patched; `open` is one of `WHOLE`, or {layer, head}
const families = new Map();
const newest = { overview: latest(), detail: latest(), change: latest(), similarity: latest(), trace: latest(), patch: latest() };
const grids = SENTENCES.map((name) => new HeadGrid(`Heads of: ${name}`, { open: openHead, silence, look }));
const panels = { detail: [], similarity: [], trace: [] };
const picks = { detail: { move, ...(saved ? {} : { npz }) }, similarity: {}, trace: { pick: patch } }; // what panels call
const problems = new Map();
const frameLegend = new Legend();
let overviews = [];
let looked = null; // the layer and head that the line above the grids is about
let connected = false;
let file = ""; // with what is encoded in families that take no texts
let wanted = ""; // the family that the address names, until it is served

const family = () => families.get(by("family").value);
const weighted = () => (saved ? family().weighted : by("question").elements.weights.value === "weighted");
const made = () => file || (saved ? "vectors" : "vectors that are made up");
const texts = () => (family()?.text || saved ? [by("text").value, by("other").value].map((text) => text.trim()).filter(Boolean) : [""]);
const sentences = () => (saved ? [by("text").value] : texts());
const question = (text) => ({
  model: family().name,
  text,
  truncate: by("truncate").checked,
  silenced: [...chosen.silenced].map((key) => key.split(".").map(Number)),
  cross: by("cross").value !== "" && family().cross,
  length: Math.min(Math.max(Math.round(by("length").valueAsNumber) || 1, 1), Number(by("length").max)),
});

// ---- What is chosen, in the address --------------------------------------------------------------------------

const keyOf = (open) => (open in WHOLE ? open : open ? `${open.layer}.${open.head}` : "");

function state() {
  return {
    family: by("family").value,
    text: by("text").value,
    other: by("other").value,
    length: family()?.text === false ? by("length").value : "",
    score: by("score").dataset.wanted || by("score").value,
    weights: by("question").elements.weights.value === "weighted" ? "weighted" : "",
    cross: by("cross").value,
    truncate: by("truncate").checked ? "1" : "",
    open: keyOf(chosen.open),
    cell: chosen.open ? chosen.cell : "",
    silenced: [...chosen.silenced].join(),
    trace: chosen.trace,
  };
}

const remember = () => writeState(state);

/** Choose what the address says; `null` for what it does not name. */
function restore() {
  const found = readState();
  if ("text" in found) by("text").value = found.text;
  by("other").value = found.other ?? "";
  if (found.length) by("length").value = found.length;
  by("score").dataset.wanted = found.score ?? "";
  if ([...by("score").options].some((one) => one.value === found.score)) by("score").value = found.score;
  by("question").elements.weights.value = found.weights === "weighted" ? "weighted" : "raw";
  by("cross").value = found.cross ? "1" : "";
  by("truncate").checked = Boolean(found.truncate);
  const pair = /^\d+\.\d+$/;
  const [layer, head] = (found.open ?? "").split(".").map(Number);
  chosen.open = Object.hasOwn(WHOLE, found.open) ? found.open : pair.test(found.open) ? { layer, head } : null;
  chosen.cell = pair.test(found.cell) ? found.cell : "";
  chosen.silenced = new Set((found.silenced ?? "").split(",").filter((one) => pair.test(one)));
  chosen.trace = found.trace === "open" || pair.test(found.trace) ? found.trace : "";
  for (const panel of panels.detail) startAt(panel, chosen.cell);
  for (const panel of panels.trace) startAt(panel, chosen.trace);
  wanted = found.family ?? "";
  if (families.has(wanted)) by("family").value = wanted;
}

/** Have a panel begin at the cell that the address names. */
function startAt(panel, cell) {
  if (cell.includes(".")) [panel.row, panel.column] = cell.split(".").map(Number);
}

// ---- Asking ----------------------------------------------------------------------------------------------

/** Ask for each question, and show all answers, unless something newer is asked for meanwhile. */
async function askAll(kind, within, questions, show) {
  const signal = newest[kind]();
  within.classList.add("busy");
  within.setAttribute("aria-busy", "true");
  try {
    show(await Promise.all(questions.map(([what, asked]) => ask(what, asked, signal))));
    report(kind);
    within.classList.remove("busy");
  } catch (error) {
    if (error.name === "AbortError") return;
    report(kind, error); // and what is shown stays dimmed: it is of another question
  }
  within.removeAttribute("aria-busy");
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

/** Fetch a file of what is shown, and have the browser save it. */
async function fetchFile(what, asked, name, type) {
  try {
    download(name, await askFile(what, asked), type);
    report("file");
  } catch (error) {
    report("file", error);
  }
}

/** Ask for everything that is shown. */
function refresh() {
  if (!connected || !family()) return;
  remember();
  showForm();
  for (const id of ["change", "similarity", "trace"]) by(id).hidden = true;
  for (const kind of Object.keys(newest)) {
    newest[kind]();
    report(kind);
  }
  report("page");
  if (family().refused || !sentences().length) {
    overviews = [];
    by("grids").replaceChildren();
    for (const id of ["detail", "legend", "meaning", "save", "definitions"]) by(id).hidden = true;
    by("about").textContent = family().refused ?? "Type a sentence.";
    return;
  }
  const asked = sentences().map((text) => ["overview", question(text)]);
  if (!saved || family().layers) {
    askAll("overview", by("grids"), asked, (answers) => {
      overviews = answers.map((overview, at) => ({ ...overview, text: asked[at][1].text || made() }));
      showGrids();
      performance.mark("heads shown");
    });
  }
  refreshDetail();
  if (saved) return;
  refreshChange();
  if (texts().length > 1) refreshSimilarity();
  refreshTrace();
}

/** Show of the form what the family has a use for. */
function showForm() {
  document.body.classList.toggle("of-texts", family().text !== false);
  document.body.classList.toggle("of-vectors", family().text === false);
  by("silencing").hidden = !family().head_mask;
  for (const whole of Object.keys(WHOLE)) by(whole).hidden = !family().whole?.includes(whole);
  by("trace-texts").hidden = !traceable();
  by("both").hidden = !family().cross;
  by("missing").hidden = !family().missing?.length;
  by("missing").replaceChildren(...(family().missing ?? []).map((line) => element("li", line)));
}

// ---- Heads -----------------------------------------------------------------------------------------------

/** Say how long a sentence is, and what of it was left out. */
function captionOf({ tokens, left_out: leftOut, total_ms: milliseconds, text }) {
  const cut = leftOut ? `; ${leftOut} of ${tokens.length + leftOut} tokens were left out` : leftOut === null ? "; the rest was left out" : "";
  return `${tokens.length} tokens, ${milliseconds.toFixed(0)} ms${cut}: ${text}`;
}

function showGrids() {
  const shown = overviews.map((_, at) => grids[at].element);
  // What is moved loses the focus.
  if (by("grids").childElementCount !== shown.length) by("grids").replaceChildren(...shown);
  overviews.forEach((overview, at) => grids[at].show(overview, captionOf(overview)));
  const { scores } = overviews[0];
  const names = scores.map(({ name }) => name);
  const select = by("score");
  if (all("option", select).map((option) => option.value).join() !== names.join()) {
    const before = select.dataset.wanted || select.value;
    select.replaceChildren(...scores.map(({ name, title }) => Object.assign(element("option", title), { value: name })));
    select.value = names.includes(before) ? before : names.includes("entropy") ? "entropy" : (names[0] ?? "");
    define(scores);
  }
  select.parentElement.hidden = !names.length;
  by("definitions").hidden = !names.length;
  by("save").hidden = false;
  by("save-scores").hidden = !names.length;
  showFrames();
}

/** List what all scores mean. */
function define(scores) {
  by("definitions").querySelector("dl").replaceChildren(
    ...scores.flatMap(({ title, meaning, formula }) => [element("dt", title), element("dd", `${meaning}${formula && ` ${formula}`}`)]),
  );
}

/** Colour the frames of all heads by the chosen score, on one scale for both sentences. */
function showFrames() {
  const at = overviews[0]?.scores.findIndex(({ name }) => name === by("score").value) ?? -1;
  const score = overviews[0]?.scores[at];
  const columns = overviews.map((overview) => (at < 0 ? [] : scoresOf(overview, at)));
  const values = columns.flat().filter((value) => !Number.isNaN(value));
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const share = (value) => (most > least ? (value - least) / (most - least) : value - least);
  const open = keyOf(chosen.open);
  columns.forEach((column, index) => {
    const labels = column.map((value) => `${score.title} ${spelled(value)}`);
    const shares = at < 0 ? null : column.map(share);
    grids[index].frame(shares, at < 0 ? null : labels, chosen.silenced, open);
  });
  by("small-raw").hidden = !weighted();
  by("off-means").hidden = !chosen.silenced.size;
  if (looked) look(...looked);
  showScores();
  by("legend").hidden = by("meaning").hidden = !values.length;
  if (score) {
    frameLegend.show(spelled(least), spelled(most), `${score.title}, the colour of a frame`);
    by("meaning").firstElementChild.textContent = score.meaning;
  }
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

function saveScores() {
  const rows = overviews.flatMap((overview, sentence) =>
    overview.layers.flatMap((layer, row) =>
      overview.heads.map((head, column) => {
        const at = (row * overview.heads.length + column) * overview.scores.length;
        return [sentence, layer, head, ...valuesOf(overview).subarray(at, at + overview.scores.length)];
      })));
  const header = ["sentence", "layer", "head", ...overviews[0].scores.map(({ name }) => name)];
  download(`${family().name} scores.csv`, csvOf([header, ...rows]), "text/csv");
}

// ---- One head, or all of them together -------------------------------------------------------------------

function openHead(layer, head) {
  chosen.open = { layer, head };
  refreshDetail();
  showFrames();
}

function closeDetail() {
  const { open } = chosen;
  chosen.open = null;
  newest.detail();
  report("detail");
  by("detail").hidden = true;
  by("detail").classList.remove("busy");
  if (overviews.length) showFrames();
  if (open?.layer !== undefined) grids[0].focus(open.layer, open.head);
  else by(open).focus();
  remember();
}

/** Ask about the map, or the head, that is open. */
const detailOf = (text) => ({ ...question(text), ...(chosen.open in WHOLE ? { whole: chosen.open } : { ...chosen.open, weighted: weighted() }) });

function refreshDetail() {
  const { open } = chosen;
  remember();
  if (!open || !sentences().length || family().refused) {
    by("detail").hidden = true;
    return;
  }
  const whole = WHOLE[open];
  const title = whole?.title ?? `Layer ${open.layer}, head ${open.head}`;
  by("detail-title").textContent = title;
  by("detail").hidden = false;
  const off = chosen.silenced.has(keyOf(open));
  by("silence").hidden = Boolean(whole) || !family().head_mask;
  by("silence").textContent = off ? "Restore this head" : "Silence this head";
  by("off").hidden = !off;
  by("off").textContent = "This head is silenced: the encoder runs without what it adds. The map is where it would look.";
  const kind = weighted() ? "Norm-weighted attention" : "Attention";
  const asked = sentences().map((text) => ["map", detailOf(text)]);
  showCode();
  askAll("detail", by("detail"), asked, (frames) => {
    const words = whole ?? { title: off ? `${title} (silenced)` : title, label: `${title}, ${kind.toLowerCase()}`, joined: "attends to", quantity: kind === "Attention" ? "weight" : "weight times norm" };
    showPanels("detail", frames, (at) => ({ ...words, caption: `${whole?.title ?? kind} of: ${asked[at][1].text || made()}` }));
  });
}

/** Show the request for the first sentence as code, once someone looks. */
async function showCode() {
  if (!by("code").open || !chosen.open || saved) return;
  try {
    const { python, curl } = await ask("code", detailOf(texts()[0]));
    by("python").textContent = python;
    by("curl").textContent = curl || "Vectors are long as text: use Python.";
    report("code");
  } catch (error) {
    report("code", error);
  }
}

/** List all scores of the open head, of the first sentence. */
function showScores() {
  const [overview] = overviews;
  const row = overview?.layers.indexOf(chosen.open?.layer) ?? -1;
  const column = overview?.heads.indexOf(chosen.open?.head) ?? -1;
  const scores = row < 0 || column < 0 ? [] : overview.scores;
  const at = row * (overview?.heads.length ?? 0) + column;
  by("scores").replaceChildren(
    ...scores.map(({ title, meaning }, index) => {
      const pair = Object.assign(element("div"), { title: meaning });
      pair.append(element("dt", title), element("dd", spelled(valuesOf(overview)[at * scores.length + index])));
      return pair;
    }),
  );
}

function showPanels(id, frames, words) {
  const parent = by(id).querySelector(".panels");
  while (panels[id].length < frames.length) {
    const panel = new Panel(parent, picks[id]);
    startAt(panel, { detail: chosen.cell, trace: chosen.trace }[id] ?? "");
    panels[id].push(panel);
  }
  panels[id].forEach((panel, at) => {
    panel.element.hidden = at >= frames.length;
    if (at < frames.length) panel.show(frames[at], words(at));
  });
}

/** Remember the cell that someone has chosen in the map of the first sentence. */
function move(panel) {
  if (panel !== panels.detail[0]) return;
  chosen.cell = `${panel.row}.${panel.column}`;
  remember();
}

function npz(panel) {
  const name = `${family().name} ${panel.words.title}.npz`;
  fetchFile("npz", detailOf(texts()[panels.detail.indexOf(panel)]), name, "application/zip");
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
    by("change").querySelector(".panels").replaceChildren(...frames.map((frame) => changeOf(frame, "with all heads and without these")));
  });
}

/** Show how far each token's vector moved: 1 − cosine. */
function changeOf({ tokens, cosine, cosines }, between) {
  const moved = Array.from(cosines, (value) => Math.max(1 - value, 0));
  const most = Math.max(...moved, 1e-6);
  const panel = element("div", "", "panel");
  const strip = new Strip();
  strip.show(tokens);
  strip.colour((at) => moved[at] / most);
  const legend = new Legend();
  legend.show("0", most.toFixed(4), `how far a token's vector moved: 1 − cosine ${between}`);
  const order = [...moved.keys()].sort((one, other) => moved[other] - moved[one]).slice(0, MOST_CHANGED);
  const list = document.createElement("ol");
  list.append(...order.map((at) => element("li", `${named(tokens[at], at)} ${moved[at].toFixed(4)}`)));
  const reading = element("p", `Cosine of the embedding ${between}: ${cosine.toFixed(4)}. Tokens that moved most:`, "reading");
  panel.append(reading, list, legend.element, strip.element);
  return panel;
}

function refreshSimilarity() {
  by("similarity").hidden = false;
  const asked = [["similarity", { ...question(texts()[0]), other: texts()[1] }]];
  askAll("similarity", by("similarity"), asked, (frames) => {
    by("cosine").textContent = `Cosine of the two sentences: ${frames[0].cosine.toFixed(4)}, the sum of what these pairs of tokens add to it.`;
    const words = { title: "Similarity", label: "Similarity of token pairs", joined: "with", quantity: "added to the cosine", caption: `Rows: ${asked[0][1].text}`, pairs: true };
    showPanels("similarity", frames, () => words);
  });
}

// ---- What makes two sentences differ ---------------------------------------------------------------------------

const traceable = () => Boolean(family()?.stream) && texts().length > 1;

function refreshTrace() {
  remember();
  for (const kind of ["trace", "patch"]) {
    newest[kind]();
    report(kind);
    by(kind).hidden = true;
  }
  if (!chosen.trace || !traceable()) return;
  by("trace").hidden = false;
  const asked = { ...question(texts()[0]), other: texts()[1] };
  askAll("trace", by("trace"), [["trace", asked]], (frames) => {
    const [{ clean, corrupted }] = frames;
    by("traced").textContent = `The cosine with the first sentence, or a reranker's score: ${clean.toFixed(4)} for the first sentence, ${corrupted.toFixed(4)} for the second`;
    const words = { title: "Causal trace", label: "Causal trace", joined: "at", quantity: "recovered share", plain: true, columns: ["layer", "stream", "token", "tokens"] };
    showPanels("trace", frames, () => ({ ...words, caption: `Rows: the stream of: ${asked.text}` }));
    refreshPatch(asked);
  });
}

/** Patch the chosen place. */
function patch(panel) {
  chosen.trace = `${panel.row}.${panel.column}`;
  remember();
  refreshPatch({ ...question(texts()[0]), other: texts()[1] });
}

/** Show which tokens of the second sentence's run the patch moves; the share is in the map. */
function refreshPatch(asked) {
  const [panel] = panels.trace;
  const [layer, token] = chosen.trace.split(".").map(Number);
  by("patch").hidden = !(layer < panel.frame.rows && token < panel.frame.columnCount);
  if (by("patch").hidden) return;
  by("patch-title").textContent = `Patched: ${panel.read(layer, token)}`;
  askAll("patch", by("patch"), [["patch", { ...asked, layer, token }]], (frames) => {
    by("patch").querySelector(".panels").replaceChildren(...frames.map((frame) => changeOf(frame, "of the second sentence without and with the patch")));
  });
}

function closeTrace() {
  chosen.trace = "";
  refreshTrace();
  by("trace-texts").focus();
}

// ---- The server --------------------------------------------------------------------------------------------

/** Look whether the server answers and what it serves; ask again for what is shown when that changes. */
async function poll() {
  try {
    const server = await askServer();
    const news = JSON.stringify(server.families) !== JSON.stringify([...families.values()]);
    by("connection").textContent = saved ? SAVED_FROM : `connected to ${server.address}`;
    file = server.input ?? "";
    by("made-up").textContent = file ? `those of ${file}` : "made up; polyhead explore --input FILE.npy shows your own";
    by("length").hidden = Boolean(file);
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
  if (!saved) setTimeout(poll, POLL_MS);
}

function showFamilies(server) {
  const select = by("family");
  const before = select.value || wanted || server.model;
  families.clear();
  for (const one of server.families) families.set(one.name, one);
  select.replaceChildren(...server.families.map(({ name }) => element("option", name)));
  const first = server.families.find((one) => one.text) ?? server.families.find((one) => !one.refused) ?? server.families[0];
  select.value = families.has(before) ? before : (first?.name ?? "");
}

let timer;
for (const id of ["text", "other", "length"]) {
  by(id).addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(refresh, PAUSE_MS);
  });
}
by("question").addEventListener("submit", (event) => event.preventDefault());
by("family").addEventListener("change", () => {
  chosen.silenced.clear();
  chosen.trace = "";  // of another family it would take long, unasked
  if (chosen.open) closeDetail();
  refresh();
});
for (const id of ["truncate", "cross"]) by(id).addEventListener("change", refresh);
by("score").addEventListener("change", () => {
  by("score").dataset.wanted = by("score").value;
  showFrames();
  remember();
});
for (const radio of by("question").elements.weights) {
  radio.addEventListener("change", () => {
    if (overviews.length) showFrames();
    refreshDetail();
  });
}
for (const whole of Object.keys(WHOLE)) {
  by(whole).addEventListener("click", () => {
    chosen.open = whole;
    refreshDetail();
    if (overviews.length) showFrames();
  });
}
by("trace-texts").addEventListener("click", () => {
  chosen.trace ||= "open";
  refreshTrace();
});
by("close-trace").addEventListener("click", closeTrace);
by("silence").addEventListener("click", () => silence(chosen.open.layer, chosen.open.head));
by("close").addEventListener("click", closeDetail);
by("restore").addEventListener("click", () => {
  chosen.silenced.clear();
  refresh();
});
by("code").addEventListener("toggle", showCode);
by("define").addEventListener("click", () => {
  by("definitions").open = true;
  by("definitions").querySelector("summary").focus();
});
by("save-scores").addEventListener("click", saveScores);
by("save-page").addEventListener("click", () => {
  const asked = { ...question(texts()[0]), weighted: weighted(), ...(chosen.open?.layer === undefined ? {} : chosen.open) };
  fetchFile("page", asked, `${family().name}.html`, "text/html");
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && chosen.open) closeDetail();
});
window.addEventListener("unhandledrejection", (event) => report("page", event.reason));
window.addEventListener("hashchange", () => {
  restore();
  refresh();
});

setColours(await fetchColours());
by("legend").append(frameLegend.element);
document.body.classList.toggle("saved", Boolean(saved));
by("text").readOnly = Boolean(saved);
restore();
poll();
