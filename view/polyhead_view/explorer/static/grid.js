// The heads of an encoder as small maps, layers × heads, framed by the colour of a score.

import { colourOf, css, paint, shade } from "./colours.js";

export const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

/** Say which other heads have the same keys and values as a head, where heads share them. */
function sharing({ heads, kv_heads: groups }, head) {
  if (!groups || groups === heads) return "";
  const each = heads / groups;
  const first = head - (head % each);
  return `keys and values ${first / each}, of heads ${first} to ${first + each - 1}`;
}

export class HeadGrid {
  /** `on.open`, `on.silence` and `on.look` are called with layer and head. */
  constructor(on) {
    this.on = on;
    this.cells = [];
    this.element = document.createElement("figure");
    this.caption = this.element.appendChild(document.createElement("figcaption"));
    this.caption.className = "caption";
    this.grid = this.element.appendChild(document.createElement("div"));
    this.grid.className = "grid";
    this.grid.setAttribute("role", "grid");
    this.grid.addEventListener("keydown", (event) => this.#press(event));
  }

  /** Show the thumbnails of an overview; cells stay, and so does the focus, if there are as many as before. */
  show(overview, caption, name) {
    const side = overview.thumbnails.shape[2];
    const key = `${overview.layers}×${overview.heads}`;
    if (this.key !== key) this.#build(overview.layers, overview.heads);
    this.key = key;
    this.caption.textContent = this.caption.title = caption;
    this.grid.setAttribute("aria-label", `Heads${name && `: ${name}`}`);
    const [rows, columns] = overview.shape.map((count) => Math.min(count, side));
    this.cells.forEach((cell, at) => {
      const from = at * side * side;
      const mask = side * side * (overview.masked?.shape[1] === 1 ? Math.floor(at / this.heads) : at); // of a layer or of a head
      const place = (pixel) => Math.floor(pixel / columns) * side + (pixel % columns);
      const share = (pixel) => shade(overview.thumbnails[from + place(pixel)] / 255, overview.shape[1]);
      paint(cell.firstChild, columns, rows, (pixel) => (overview.masked?.[mask + place(pixel)] ? NaN : share(pixel)));
      const pruned = overview.pruned.includes(`${cell.dataset.layer}.${cell.dataset.head}`);
      cell.classList.toggle("pruned", pruned);
      cell.title = pruned ? "pruned" : sharing(overview.family, Number(cell.dataset.head));
    });
  }

  /** Colour the frames: `shares` in 0..1 or NaN, `labels` what is read out, for each cell. */
  frame(shares, labels, silenced, selected) {
    this.cells.forEach((cell, at) => {
      const { layer, head } = cell.dataset;
      const off = silenced.has(`${layer}.${head}`);
      const value = cell.classList.contains("pruned") ? ", pruned" : labels ? `, ${labels[at]}` : "";
      cell.style.borderColor = shares && !Number.isNaN(shares[at]) ? css(colourOf(shares[at])) : "";
      cell.classList.toggle("silenced", off);
      cell.setAttribute("aria-selected", selected === `${layer}.${head}`);
      cell.setAttribute("aria-label", `layer ${layer}, head ${head}${value}${off ? ", silenced" : ""}`);
    });
  }

  focus(layer, head) {
    this.cells.find((cell) => cell.dataset.layer === `${layer}` && cell.dataset.head === `${head}`)?.focus();
  }

  #build(layers, heads) {
    this.cells = [];
    this.heads = heads.length;
    this.grid.replaceChildren();
    this.grid.style.setProperty("--heads", heads.length);
    this.grid.style.setProperty("--layers", layers.length);
    const titles = this.#row();
    this.#header(titles, "columnheader", "");
    for (const head of heads) this.#header(titles, "columnheader", head);
    for (const layer of layers) {
      const row = this.#row();
      this.#header(row, "rowheader", layer);
      for (const head of heads) this.cells.push(this.#cell(row, layer, head));
    }
    this.cells[0].tabIndex = 0;
  }

  #row() {
    const row = this.grid.appendChild(document.createElement("div"));
    row.setAttribute("role", "row");
    return row;
  }

  #header(row, role, text) {
    const header = row.appendChild(document.createElement("span"));
    header.setAttribute("role", role);
    header.textContent = text;
  }

  #cell(row, layer, head) {
    const cell = row.appendChild(document.createElement("button"));
    Object.assign(cell, { type: "button", tabIndex: -1 });
    Object.assign(cell.dataset, { layer, head });
    cell.setAttribute("role", "gridcell");
    cell.appendChild(document.createElement("canvas"));
    cell.addEventListener("click", () => this.on.open(layer, head));
    cell.addEventListener("mouseenter", () => this.on.look(layer, head));
    cell.addEventListener("focus", () => {
      for (const other of this.cells) other.tabIndex = other === cell ? 0 : -1;
      this.on.look(layer, head);
    });
    return cell;
  }

  #press(event) {
    const at = this.cells.indexOf(document.activeElement);
    if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const cell = this.cells[at];
    const [down, right] = MOVES[event.key] ?? [0, 0];
    const column = (at % this.heads) + right;
    const next = this.cells[at + down * this.heads + right];
    if (event.key in MOVES) {
      if (next && column >= 0 && column < this.heads) next.focus();
    } else if (event.key === "Home" || event.key === "End") {
      this.cells[event.key === "Home" ? 0 : this.cells.length - 1].focus();
    } else if (event.key === "s" || event.key === "S") {
      this.on.silence(Number(cell.dataset.layer), Number(cell.dataset.head));
    } else {
      return;
    }
    event.preventDefault();
  }
}
