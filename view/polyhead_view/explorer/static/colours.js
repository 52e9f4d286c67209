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

/** Many keys share a row's weight: beyond 64 of them, colours follow the square root, or most would be black. */
export const shade = (share, keys) => (keys > 64 ? Math.sqrt(share) : share);

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
