// Files that the page writes: pictures and tables.

import { HATCH, paint, runsOf, shade } from "./colours.js";

const SVG = "http://www.w3.org/2000/svg"; // a name, which nothing fetches
const CELL = 16; // in a picture, in pixels
const SMALLEST = 4;
const WIDEST = 1400;
const MARGIN = 8;
const LETTER = 6.5; // the width of one, in pixels
const LONGEST = 24; // of a label, in letters
const SHARPNESS = 2; // pixels of a PNG for each of the SVG
const LONGEST_SIDE = 16_000; // pixels of a PNG along a side, which browsers still draw

/** Have the browser save some bytes or text. */
export function download(name, content, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** Write rows as CSV (RFC 4180). */
export function csvOf(rows) {
  const cell = (value) => (/[",\r\n]/.test(value) ? `"${`${value}`.replaceAll('"', '""')}"` : value);
  return rows.map((row) => `${row.map(cell).join(",")}\r\n`).join("");
}

/** Draw a map with tokens, a title and its legend as SVG; `share` gives the value of a cell by its index, NaN is masked, `second` where the second text of a pair begins. */
export function svgOf({ title, tokens, columns, share, signed, limits, second }) {
  const [rows, count] = [tokens.length, columns.length];
  const cell = Math.max(Math.min(CELL, WIDEST / count), SMALLEST);
  const labels = (texts) => texts.map((text) => (text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text));
  const room = (texts) => LETTER * Math.max(...labels(texts).map((text) => text.length)) + MARGIN;
  const [left, top] = [room(tokens) + MARGIN, room(columns) + 3 * MARGIN];
  const [right, bottom] = [left + cell * count, top + cell * rows];
  const width = Math.max(right + MARGIN, LETTER * title.length + 2 * MARGIN, 340);
  const height = bottom + 5 * MARGIN;
  const drawing = node("svg", { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}`, "font-family": "sans-serif", "font-size": 11 });
  drawing.append(node("title", {}, title), node("rect", { width, height, fill: "#fff" }));
  drawing.append(node("text", { x: MARGIN, y: 2 * MARGIN, "font-size": 13 }, title));
  const picture = (across, down, value) => {
    const [small, large] = [document.createElement("canvas"), document.createElement("canvas")];
    paint(small, across, down, value, signed);
    const times = Math.max(Math.ceil(WIDEST / Math.max(across, down)), 1); // viewers that smooth must not blur cells
    Object.assign(large, { width: across * times, height: down * times });
    const context = large.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(small, 0, 0, large.width, large.height);
    return large.toDataURL();
  };
  const image = (x, y, wide, high, href) =>
    node("image", { x, y, width: wide, height: high, preserveAspectRatio: "none", "image-rendering": "pixelated", href });
  drawing.append(image(left, top, cell * count, cell * rows, picture(count, rows, share)));
  const masked = runsOf(rows, count, (row, column) => Number.isNaN(share(row * count + column)));
  if (masked.length) {
    const pattern = node("pattern", { id: "masked", width: 6, height: 6, patternUnits: "userSpaceOnUse" });
    pattern.append(node("path", { d: "M-1,1L1,-1M0,6L6,0M5,7L7,5", stroke: HATCH, "stroke-width": 0.8 }));
    const path = masked.map(([row, from, length]) => `M${left + cell * from},${top + cell * row}h${cell * length}v${cell}h${-cell * length}z`);
    drawing.append(pattern, node("path", { d: path.join(""), fill: "url(#masked)" }));
  }
  if (second) {
    const [x, y] = [left + second * cell, top + second * cell];
    const line = { stroke: "#fff", "stroke-width": 1.5 };
    drawing.append(node("line", { x1: x, x2: x, y1: top, y2: bottom, ...line }), node("line", { x1: left, x2: right, y1: y, y2: y, ...line }));
  }
  const step = Math.ceil(11 / cell);
  labels(tokens).forEach((text, at) => {
    if (at % step === 0) drawing.append(node("text", { x: left - MARGIN / 2, y: top + (at + 0.5) * cell + 4, "text-anchor": "end" }, text));
  });
  labels(columns).forEach((text, at) => {
    const [x, y] = [left + (at + 0.5) * cell + 4, top - MARGIN / 2];
    if (at % step === 0) drawing.append(node("text", { x, y, transform: `rotate(-90 ${x} ${y})` }, text));
  });
  const base = bottom + 3 * MARGIN;
  const scale = (at) => (signed ? at / 127.5 - 1 : shade(at / 255, count));
  drawing.append(node("text", { x: MARGIN + 44, y: base + 9, "text-anchor": "end" }, limits[0]), image(MARGIN + 50, base, 120, 10, picture(256, 1, scale)));
  drawing.append(node("text", { x: MARGIN + 176, y: base + 9 }, limits[1] + (masked.length ? "; hatched: masked" : "")));
  return new XMLSerializer().serializeToString(drawing);
}

/** Turn an SVG into a PNG. */
export async function pngOf(svg) {
  const image = new Image();
  image.src = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
  const canvas = document.createElement("canvas");
  try {
    await image.decode();
    const scale = Math.min(SHARPNESS, LONGEST_SIDE / Math.max(image.width, image.height));
    [canvas.width, canvas.height] = [image.width * scale, image.height * scale];
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  } finally {
    URL.revokeObjectURL(image.src);
  }
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  if (!blob) throw new Error("the browser cannot draw a picture as large as this; save it as SVG");
  return blob;
}

function node(tag, attributes, text = "") {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) if (name !== "xmlns") made.setAttribute(name, value);
  made.textContent = text.replace(/[\0-\x08\x0b\x0c\x0e-\x1f]/g, "\ufffd"); // no XML has these
  return made;
}
