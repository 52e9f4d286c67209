// The page: what is chosen, what is asked for it, and where the answers are shown.

import { ask, askFile, askServer, fetchColours, latest, saved } from "./answers.js";
import { changeOf } from "./change.js";
import { element, Legend, setColours } from "./colours.js";
import { csvOf, download } from "./downloads.js";
import { against, choose, family, missingOf, offerAgainst, setFamilies } from "./families.js";
import { HeadGrid } from "./grid.js";
import { Panel } from "./panel.js";
import { readState, writeState } from "./state.js";

const PAUSE_MS = 250; // after the last key, before a sentence is sent
const POLL_MS = 3000;
const WHOLE = {
  rollout: { title: "Rollout", label: "Rollout", joined: "comes from", quantity: "rollout" },
  contacts: { title: "Contacts", label: "Contacts", joined: "touches", quantity: "probability of a contact" },
};
const SAVED_FROM = "saved: works without a server";

const by = (id) => document.getElementById(id);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];

const chosen = { open: null, silenced: new Set(), cell: "", trace: "", together: "" }; // `trace` is "open", or the place that is patched; `open` is one of `WHOLE`, or {layer, head}; `together` is "pair", "apart" or the family's own
const newest = { overview: latest(), detail: latest(), change: latest(), similarity: latest(), trace: latest(), patch: latest() };
const grids = [];
const panels = { detail: [], similarity: [], trace: [] };
const picks = { detail: { move, ...(saved ? {} : { npz }) }, similarity: {}, trace: { pick: patch } }; // what panels call
const problems = new Map();
const frameLegend = new Legend();
let overviews = [];
let drawn = []; // what the maps of the open head are of
let looked = null; // the layer and head that the line above the grids is about
let connected = false;
let file = ""; // with what is encoded in families that take no texts

const weighted = () => (saved ? family().weighted : by("question").elements.weights.value === "weighted");
const made = () => file || (saved ? "vectors" : "vectors that are made up");
const texts = () => (family()?.text || saved ? [by("text").value, by("other").value].map((text) => text.trim()).filter(Boolean) : [""]);
const paired = () => Boolean(family()?.pairs) && texts().length > 1 && (chosen.together ? chosen.together === "pair" : family().ranks);

/** What stands side by side: the pair, or each sentence, in each family. */
function shown() {
  const [first, second] = texts();
  const inputs = paired() ? [{ text: first, pair: second }] : (saved ? [by("text").value] : texts()).map((text) => ({ text, pair: "" }));
  return inputs.flatMap((input, at) => [family(), against()].filter(Boolean).map((one) => ({ ...input, at, family: one })));
}

/** Name what is shown, where there is more: the family, and the second sentence. */
function nameOf({ family: { name }, at }) {
  return [...(against() ? [name] : []), ...(at ? ["second sentence"] : [])].join(", ");
}

const textOf = ({ text, pair }) => (pair ? `${text} | ${pair}` : text || made());

const hasHead = (one, layer, head) => layer < one.layers && head < one.heads;

const question = ({ family: one, text, pair }) => ({
  model: one.name,
  text,
  pair,
  truncate: by("truncate").checked,
  silenced: [...chosen.silenced].map((key) => key.split(".").map(Number)).filter((key) => one.head_mask && hasHead(one, ...key)),
  cross: by("cross").value !== "" && one.cross,
  length: Math.min(Math.max(Math.round(by("length").valueAsNumber) || 1, 1), Number(by("length").max)),
});

// ---- What is chosen, in the address --------------------------------------------------------------------------

const keyOf = (open) => (open in WHOLE ? open : open ? `${open.layer}.${open.head}` : "");

function state() {
  return {
    family: by("family").value,
    against: by("against").value,
    text: by("text").value,
    other: by("other").value,
    together: by("other").value ? chosen.together : "",
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
  chosen.together = ["pair", "apart"].includes(found.together) ? found.together : "";
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
  if (found.family) choose("family", found.family);
  choose("against", found.against ?? "");
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
  if (!connected) return;
  remember();
  if (family()) showForm();
  for (const id of ["change", "similarity", "trace"]) by(id).hidden = true;
  for (const kind of Object.keys(newest)) {
    newest[kind]();
    report(kind);
  }
  report("page");
  for (const id of ["family", "against"]) report(id, missingOf(id));
  for (const id of ["question", "heads"]) by(id).hidden = !family();
  const refused = family() ? family().refused ?? against()?.refused : "";
  if (!family() || refused || !texts().length) {
    overviews = [];
    by("grids").replaceChildren();
    for (const id of ["detail", "legend", "meaning", "save", "definitions"]) by(id).hidden = true;
    by("about").textContent = family() ? refused ?? "Type a sentence." : "";
    return;
  }
  const entries = shown();
  document.querySelector("main").classList.toggle("beside", entries.length > 1);
  if (!saved || family().layers) {
    askAll("overview", by("grids"), entries.map((entry) => ["overview", question(entry)]), (answers) => {
      overviews = answers.map((overview, at) => ({ ...overview, ...entries[at] }));
      showGrids();
      performance.mark("heads shown");
    });
  }
  refreshDetail();
  if (saved) return;
  refreshChange();
  refreshSimilarity();
  refreshTrace();
}

/** Show of the form what the family has a use for. */
function showForm() {
  document.body.classList.toggle("of-texts", family().text !== false);
  document.body.classList.toggle("of-vectors", family().text === false);
  document.body.classList.toggle("of-pair", paired());
  by("two-texts").hidden = !family().pairs || texts().length < 2;
  by("question").elements.together.value = paired() ? "pair" : "apart";
  by("text-label").textContent = paired() && family().ranks ? "Query" : "Sentence";
  by("other-label").textContent = paired() ? (family().ranks ? "Passage" : "Second of the pair") : "Second text";
  by("other").placeholder = family().ranks ? "the passage: a reranker scores a query and a passage together" : "a second sentence, if you like";
  by("silencing").hidden = !family().head_mask;
  for (const whole of Object.keys(WHOLE)) by(whole).hidden = !family().whole?.includes(whole);
  by("trace-texts").hidden = !traceable();
  by("both").hidden = !family().cross && !against()?.cross;
  offerAgainst();
  by("missing").hidden = !family().missing?.length;
  by("missing").replaceChildren(...(family().missing ?? []).map((line) => element("li", line)));
}

// ---- Heads -----------------------------------------------------------------------------------------------

/** Say how long a sentence is, what of it was left out, and how a reranker scores it. */
function captionOf(overview) {
  const { tokens, left_out: leftOut, total_ms: milliseconds } = overview;
  const cut = leftOut ? `; ${leftOut} of ${tokens.length + leftOut} tokens were left out` : leftOut === null ? "; the rest was left out" : "";
  const name = nameOf(overview);
  return `${name && `${name}: `}${rankOf(overview)}${tokens.length} tokens${milliseconds ? `, ${milliseconds.toFixed(0)} ms` : ""}${cut}: ${textOf(overview)}`;
}

const rankOf = ({ score, logit }) => (score === undefined ? "" : `score ${score.toFixed(4)}, the sigmoid of ${logit.toFixed(3)}; `);

function showGrids() {
  while (grids.length < overviews.length) grids.push(new HeadGrid({ open: openHead, silence, look }));
  const elements = overviews.map((_, at) => grids[at].element);
  // What is moved loses the focus.
  if (by("grids").childElementCount !== elements.length) by("grids").replaceChildren(...elements);
  overviews.forEach((overview, at) => grids[at].show(overview, captionOf(overview), nameOf(overview)));
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

/** Colour the frames of all heads by the chosen score, on one scale for all that is shown. */
function showFrames() {
  const score = overviews[0]?.scores.find(({ name }) => name === by("score").value);
  const columns = overviews.map((overview) => {
    const at = score ? overview.scores.findIndex(({ name }) => name === score.name) : -1;
    return at < 0 ? [] : scoresOf(overview, at);
  });
  const values = columns.flat().filter((value) => !Number.isNaN(value));
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const share = (value) => (most > least ? (value - least) / (most - least) : value - least);
  const open = keyOf(chosen.open);
  columns.forEach((column, index) => {
    const labels = column.map((value) => `${score.title} ${spelled(value)}`);
    const shares = column.length ? column.map(share) : null;
    grids[index].frame(shares, shares && labels, chosen.silenced, open);
  });
  by("small-raw").hidden = !weighted();
  by("small-masked").hidden = !overviews.some((overview) => overview.masked);
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
  const found = overviews.map((overview, at) => [nameOf(overview), label(grids[at])?.getAttribute("aria-label")]).filter(([, said]) => said);
  by("about").textContent = found.map(([name, said]) => (name ? `${name}: ${said}` : said)).join("; ");
}

function saveScores() {
  const rows = overviews.flatMap((overview) =>
    overview.layers.flatMap((layer, row) =>
      overview.heads.map((head, column) => {
        const at = (row * overview.heads.length + column) * overview.scores.length;
        return [overview.family.name, overview.at, layer, head, ...valuesOf(overview).subarray(at, at + overview.scores.length)];
      })));
  const header = ["family", "sentence", "layer", "head", ...overviews[0].scores.map(({ name }) => name)];
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
  if (open?.layer !== undefined) grids[0]?.focus(open.layer, open.head);
  else by(open).focus();
  remember();
}

/** Ask about the map, or the head, that is open. */
const detailOf = (entry) => ({ ...question(entry), ...(chosen.open in WHOLE ? { whole: chosen.open } : { ...chosen.open, weighted: weighted() }) });

function refreshDetail() {
  const { open } = chosen;
  remember();
  if (!open || !family() || !texts().length || family().refused) {
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
  const entries = shown();
  const having = entries.filter((entry) => (whole ? entry.family.whole?.includes(open) : saved || hasHead(entry.family, open.layer, open.head)));
  const asked = having.length ? having : entries; // and the server says why not
  showCode(asked[0]);
  askAll("detail", by("detail"), asked.map((entry) => ["map", detailOf(entry)]), (frames) => {
    drawn = asked;
    const words = whole ?? { title: off ? `${title} (silenced)` : title, label: `${title}, ${kind.toLowerCase()}`, joined: "attends to", quantity: kind === "Attention" ? "weight" : "weight times norm" };
    showPanels("detail", frames, (at) => ({ ...words, caption: `${nameOf(asked[at]) && `${nameOf(asked[at])}: `}${whole?.title ?? kind} of: ${textOf(asked[at])}` }));
  });
}

/** Show the request for the first map as code, once someone looks. */
async function showCode(entry) {
  if (!by("code").open || !chosen.open || saved || !entry) return;
  try {
    const { python, curl } = await ask("code", detailOf(entry));
    by("python").textContent = python;
    by("curl").textContent = curl || "Vectors are long as text: use Python.";
    report("code");
  } catch (error) {
    report("code", error);
  }
}

/** List all scores of the open head, of the first sentence. */
/** List the scores of the open head: in each family, and for each sentence, that has them. */
function showScores() {
  const having = overviews
    .map((overview) => ({ overview, row: overview.layers.indexOf(chosen.open?.layer), column: overview.heads.indexOf(chosen.open?.head) }))
    .filter(({ overview, row, column }) => row >= 0 && column >= 0 && overview.scores.length);
  const valueOf = ({ overview, row, column }, name) => {
    const index = overview.scores.findIndex((one) => one.name === name);
    const at = row * overview.heads.length + column;
    return spelled(index < 0 ? NaN : valuesOf(overview)[at * overview.scores.length + index]);
  };
  const pairOf = (term, texts, title = "") => {
    const pair = Object.assign(element("div"), { title });
    pair.append(element("dt", term), element("dd", texts.join(" | ")));
    return pair;
  };
  const names = having.map(({ overview }) => nameOf(overview) || "first sentence");
  by("scores").replaceChildren(
    ...(having.length && overviews.length > 1 ? [pairOf("scores of", names)] : []),
    ...(having[0]?.overview.scores ?? []).map(({ name, title, meaning }) => pairOf(title, having.map((one) => valueOf(one, name)), meaning)),
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
  const name = `${panel.frame.model.split(".")[0]} ${panel.words.title}.npz`;
  fetchFile("npz", detailOf(drawn[panels.detail.indexOf(panel)]), name, "application/zip");
}

// ---- Silenced heads, and two sentences -----------------------------------------------------------------------

function silence(layer, head) {
  if (!family().head_mask && !against()?.head_mask) return;
  const key = `${layer}.${head}`;
  if (!chosen.silenced.delete(key)) chosen.silenced.add(key);
  refresh();
}

function refreshChange() {
  newest.change();
  const entries = shown().filter((entry) => question(entry).silenced.length);
  by("change").hidden = !entries.length;
  if (!entries.length) return;
  askAll("change", by("change"), entries.map((entry) => ["change", question(entry)]), (frames) => {
    const heads = [...chosen.silenced].map((key) => `layer ${key.split(".")[0]} head ${key.split(".")[1]}`);
    by("silenced").textContent = `Without ${heads.join(", ")}.`;
    by("change").querySelector(".panels").replaceChildren(...frames.map((frame, at) => changeOf(frame, "with all heads and without these", nameOf(entries[at]))));
  });
}

function refreshSimilarity() {
  newest.similarity();
  const two = texts().length > 1 && !paired();
  by("similarity").hidden = !two;
  if (!two) return;
  const [text, other] = texts();
  const every = [family(), against()].filter(Boolean);
  const split = every.filter((one) => one.splits);
  const unsplit = every.filter((one) => !one.splits).map(({ name }) => `${name} does not pool by the mean, so that the similarity is not split over tokens.`);
  by("cosine").textContent = unsplit.join(" ");
  by("similarity").querySelector(".panels").hidden = !split.length;
  if (!split.length) return;
  askAll("similarity", by("similarity"), split.map((one) => ["similarity", { ...question({ family: one, text, pair: "" }), other }]), (frames) => {
    const cosines = frames.map(({ cosine }, at) => `${against() ? `${split[at].name} ` : ""}${cosine.toFixed(4)}`);
    by("cosine").textContent = [`Cosine of the two sentences: ${cosines.join(", ")}, the sum of what these pairs of tokens add to it.`, ...unsplit].join(" ");
    const words = { title: "Similarity", label: "Similarity of token pairs", joined: "with", quantity: "added to the cosine", pairs: true };
    showPanels("similarity", frames, (at) => ({ ...words, caption: `${against() ? `${split[at].name}. ` : ""}Rows: ${text}` }));
  });
}

// ---- What makes two sentences differ ---------------------------------------------------------------------------

const traceable = () => Boolean(family()?.stream) && texts().length > 1 && !paired();
const traced = () => ({ ...question({ family: family(), text: texts()[0], pair: "" }), other: texts()[1] });

function refreshTrace() {
  remember();
  for (const kind of ["trace", "patch"]) {
    newest[kind]();
    report(kind);
    by(kind).hidden = true;
  }
  if (!chosen.trace || !traceable()) return;
  by("trace").hidden = false;
  const asked = traced();
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
  refreshPatch(traced());
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
    const news = setFamilies(server);
    by("connection").textContent = saved ? SAVED_FROM : `connected to ${server.address}`;
    file = server.input ?? "";
    by("made-up").textContent = file ? `those of ${file}` : "made up; polyhead explore --input FILE.npy shows your own";
    by("length").hidden = Boolean(file);
    if (news && family()) offerAgainst();
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

let timer;
for (const id of ["text", "other", "length"]) {
  by(id).addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(refresh, PAUSE_MS);
  });
}
by("question").addEventListener("submit", (event) => event.preventDefault());
by("family").addEventListener("change", () => {
  if (by("against").value === by("family").value) by("against").value = "";
  chosen.silenced.clear();
  chosen.trace = "";  // of another family it would take long, unasked
  if (chosen.open) closeDetail();
  refresh();
});
for (const id of ["truncate", "cross", "against"]) by(id).addEventListener("change", refresh);
for (const radio of by("question").elements.together) {
  radio.addEventListener("change", () => {
    chosen.together = radio.value;
    refresh();
  });
}
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
by("code").addEventListener("toggle", () => showCode(drawn[0]));
by("define").addEventListener("click", () => {
  by("definitions").open = true;
  by("definitions").querySelector("summary").focus();
});
by("save-scores").addEventListener("click", saveScores);
by("save-page").addEventListener("click", () => {
  const asked = { ...question(shown()[0]), weighted: weighted(), ...(chosen.open?.layer === undefined ? {} : chosen.open) };
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
for (const id of ["text", "other"]) by(id).readOnly = Boolean(saved);
restore();
poll();
