// Colours of values, from two scales of 256: from 0 on, and around 0.

let scales;

export function setColours(fetched) {
  scales = fetched;
}

/** Return red, green and blue for a share: 0..1, or -1..1 on the diverging scale. */
export function colourOf(share, signed = false) {
  const scale = signed ? scales.diverging : scales.sequential;
  const index = Math.round(255 * Math.min(Math.max(signed ? (share + 1) / 2 : share, 0), 1));
  return scale.subarray(3 * index, 3 * index + 3);
}

export const css = ([red, green, blue]) => `rgb(${red} ${green} ${blue})`;

/** Many keys share a row's weight: beyond 64 of them, colours follow the square root, or most would be black. */
export const shade = (share, keys) => (keys > 64 ? Math.sqrt(share) : share);

/** Return black or white: what can be read on a colour. */
export const ink = ([red, green, blue]) => (0.3 * red + 0.59 * green + 0.11 * blue > 130 ? "#000" : "#fff");

/** Draw cells into a canvas of one pixel each; `share` gives the value of a cell by its index. */
export function paint(canvas, columns, rows, share, signed = false) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  for (let at = 0; at < columns * rows; at++) {
    image.data.set(colourOf(share(at), signed), 4 * at);
    image.data[4 * at + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}
