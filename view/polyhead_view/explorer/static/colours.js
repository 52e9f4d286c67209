// Colours of values, from two scales of 256: from 0 on, and around 0.

let scales;

export function setColours(fetched) {
  scales = fetched;
}

const scaleOf = (signed) => (signed ? scales.diverging : scales.sequential);

/** Return where a share, 0..1 or -1..1 on the diverging scale, is in the bytes of its scale. */
function placeOf(share, signed) {
  return 3 * Math.round(255 * Math.min(Math.max(signed ? (share + 1) / 2 : share, 0), 1));
}

const MASKED = [242, 242, 242];
export const HATCH = "#a8a8a8";

/** Return red, green and blue for a share; NaN is masked. */
export function colourOf(share, signed = false) {
  if (Number.isNaN(share)) return MASKED;
  const place = placeOf(share, signed);
  return scaleOf(signed).subarray(place, place + 3);
}

export const css = ([red, green, blue]) => `rgb(${red} ${green} ${blue})`;

const MOST_LINEAR = 64;

/** Many keys share a row's weight: beyond 64 of them, colours follow the square root, or most would be black. */
export const shade = (share, keys) => (keys > MOST_LINEAR ? Math.sqrt(share) : share);

/** Return black or white: what can be read on a colour. */
export const ink = ([red, green, blue]) => (0.3 * red + 0.59 * green + 0.11 * blue > 130 ? "#000" : "#fff");

/** Return how the context fills what is masked. */
export function hatching(context) {
  const tile = Object.assign(document.createElement("canvas"), { width: 8, height: 8 });
  const lines = tile.getContext("2d");
  lines.strokeStyle = HATCH;
  for (const from of [-8, 0, 8]) {
    lines.moveTo(from, 8);
    lines.lineTo(from + 8, 0);
  }
  lines.stroke();
  return context.createPattern(tile, "repeat");
}

/** Return the runs of masked cells in rows: row, first column and length. */
export function runsOf(rows, columns, isMasked) {
  const runs = [];
  for (let row = 0; row < rows; row++) {
    for (let from = 0; from < columns; from++) {
      let to = from;
      while (to < columns && isMasked(row, to)) to++;
      if (to > from) runs.push([row, from, to - from]);
      from = to;
    }
  }
  return runs;
}

/** Draw cells into a canvas of one pixel each; `share` gives the value of a cell by its index, NaN is masked. */
export function paint(canvas, columns, rows, share, signed = false) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d", { willReadFrequently: true }); // stays in memory, without a copy for the GPU
  const image = context.createImageData(columns, rows);
  const scale = scaleOf(signed);
  for (let at = 0, to = 0; at < columns * rows; at++) {
    const value = share(at);
    const [from, place] = Number.isNaN(value) ? [MASKED, 0] : [scale, placeOf(value, signed)];
    for (let channel = 0; channel < 3; channel++) image.data[to++] = from[place + channel];
    image.data[to++] = 255;
  }
  context.putImageData(image, 0, 0);
}

/** Make an element with a text. */
export function element(tag, text = "", className = "") {
  return Object.assign(document.createElement(tag), { textContent: text, className });
}

/** What the colours of a scale mean. */
export class Legend {
  constructor() {
    this.element = element("p", "", "legend");
    [this.low, this.canvas, this.high, this.note] = ["span", "canvas", "span", "span"].map((tag) => element(tag));
    this.canvas.setAttribute("aria-hidden", "true");
    this.element.append(this.low, this.canvas, this.high, this.note);
  }

  /** Show the colours from one value to another, of maps with so many keys, some of them masked. */
  show(low, high, note, { signed = false, keys = 0, masked = false } = {}) {
    this.low.textContent = low;
    this.high.textContent = high;
    this.note.textContent = note + (!signed && keys > MOST_LINEAR ? "; colours follow the square root" : "") + (masked ? "; hatched: masked" : "");
    paint(this.canvas, 256, 1, (at) => (signed ? at / 127.5 - 1 : shade(at / 255, keys)), signed);
  }
}
