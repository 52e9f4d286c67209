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

/** Return red, green and blue for a share. */
export function colourOf(share, signed = false) {
  const place = placeOf(share, signed);
  return scaleOf(signed).subarray(place, place + 3);
}

export const css = ([red, green, blue]) => `rgb(${red} ${green} ${blue})`;

const MOST_LINEAR = 64;

/** Many keys share a row's weight: beyond 64 of them, colours follow the square root, or most would be black. */
export const shade = (share, keys) => (keys > MOST_LINEAR ? Math.sqrt(share) : share);

/** Return black or white: what can be read on a colour. */
export const ink = ([red, green, blue]) => (0.3 * red + 0.59 * green + 0.11 * blue > 130 ? "#000" : "#fff");

/** Draw cells into a canvas of one pixel each; `share` gives the value of a cell by its index. */
export function paint(canvas, columns, rows, share, signed = false) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d", { willReadFrequently: true }); // stays in memory, without a copy for the GPU
  const image = context.createImageData(columns, rows);
  const scale = scaleOf(signed);
  for (let at = 0, to = 0; at < columns * rows; at++) {
    const place = placeOf(share(at), signed);
    for (let channel = 0; channel < 3; channel++) image.data[to++] = scale[place + channel];
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

  /** Show the colours from one value to another, of maps with so many keys. */
  show(low, high, note, { signed = false, keys = 0 } = {}) {
    this.low.textContent = low;
    this.high.textContent = high;
    this.note.textContent = note + (!signed && keys > MOST_LINEAR ? "; colours follow the square root" : "");
    paint(this.canvas, 256, 1, (at) => (signed ? at / 127.5 - 1 : shade(at / 255, keys)), signed);
  }
}
