// Asks the explorer, and reads its frames: a JSON header and typed arrays (see frames.py). A page that was saved
// holds its answers itself.

const ARRAYS = { uint8: Uint8Array, uint16: Uint16Array, int16: Int16Array, float32: Float32Array };

export class Refusal extends Error {
  constructor(message, kind) {
    super(message);
    this.kind = kind;
  }
}

const embedded = document.getElementById("saved");

/** What a saved page holds; null in one that a server sends. */
export const saved = embedded && JSON.parse(embedded.textContent);

const decoded = (base64) => Uint8Array.from(atob(base64), (one) => one.charCodeAt(0));

/** Fetch, with errors as people read them; `question` makes it a POST. */
async function request(path, question, signal) {
  let response;
  try {
    const asked = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(question) };
    response = await fetch(path, { signal, ...(question && asked) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("The explorer itself does not answer. Is `polyhead explore` still running?", "Unavailable");
  }
  if (response.ok) return response;
  let problem = {};
  try {
    problem = await response.json();
  } catch { /* not one of ours */ }
  throw new Refusal(problem.message ?? `The explorer failed with status ${response.status}.`, problem.kind);
}

export async function askServer(signal) {
  return saved ? saved.server : (await request("api/server", null, signal)).json();
}

export async function fetchColours() {
  const bytes = saved ? decoded(saved.colours) : new Uint8Array(await (await request("api/colours")).arrayBuffer());
  return { sequential: bytes.subarray(0, 768), diverging: bytes.subarray(768) };
}

/** Ask for a file; return its bytes. */
export async function askFile(what, question) {
  return (await request(`api/${what}`, question)).arrayBuffer();
}

function savedFrame(what, { whole, layer, head }) {
  const name = what === "overview" ? what : whole || `${layer}.${head}`;
  if (!(name in saved.frames)) throw new Refusal(`This page was saved without ${name}.`, "Saved");
  return decoded(saved.frames[name]).buffer;
}

/** Ask a question; return the header's fields, with each array in the place of its name. */
export async function ask(what, question, signal) {
  const buffer = saved ? savedFrame(what, question) : await (await request(`api/${what}`, question, signal)).arrayBuffer();
  const size = new DataView(buffer).getUint32(0, true);
  const frame = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
  for (const [name, { dtype, shape, start }] of Object.entries(frame.arrays)) {
    const length = shape.reduce((product, side) => product * side, 1);
    frame[name] = new ARRAYS[dtype](buffer, 4 + size + start, length);
    frame[name].shape = shape;
  }
  return frame;
}

/** Return a function that aborts what it was last called for, and gives a signal for what comes next. */
export function latest() {
  let controller;
  return () => {
    controller?.abort();
    controller = new AbortController();
    return controller.signal;
  };
}
