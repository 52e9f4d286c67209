// One map, tokens × tokens, with the tokens of a row and its strongest weights.

import { colourOf, css, element, hatching, ink, Legend, paint, runsOf, shade } from "./colours.js";
import { csvOf, download, pngOf, svgOf } from "./downloads.js";
import { MOVES } from "./grid.js";

const FONT = "11px system-ui, sans-serif";
const PITCH = 12; // the least distance of labels, in pixels
const LONGEST_LABEL = 84; // in pixels
const LARGEST = 26; // the largest cell, in pixels
const HIGHEST = 0.75; // the most of the window's height that a map takes
const STRONGEST = 8; // weights that are listed
const FEWEST = 8; // cells on a side, however far one zooms

/** Return tokens as buttons in one line. */
export class Strip {
  constructor(onChoose) {
    this.element = element("div", "", "strip");
    this.element.addEventListener("click", (event) => {
      const at = [...this.element.children].indexOf(event.target);
      if (at >= 0) onChoose?.(at);
    });
  }

  /** Show tokens; before the second text of a pair there is a line. */
  show(tokens, second) {
    this.element.replaceChildren(
      ...tokens.map((token, at) => Object.assign(element("button", token, at === second ? "second" : ""), { type: "button", tabIndex: -1, title: named(token, at) })),
    );
  }

  /** Colour each token by a share; mark one of them. */
  colour(share, signed = false, chosen = -1) {
    [...this.element.children].forEach((button, at) => {
      const colour = colourOf(share(at), signed);
      button.style.backgroundColor = css(colour);
      button.style.color = ink(colour);
      button.classList.toggle("chosen", at === chosen);
    });
  }
}

/** Name a token with its position; a token without a name is its position. */
export const named = (token, at) => (token === `${at}` ? `token ${at}` : `${token} (${at})`);

export class Panel {
  /** Called with the panel: `on.move` when another cell is chosen, `on.pick` on a click on it or Enter; `on.npz`, if given, to fetch the weights. */
  constructor(parent, on = {}) {
    this.on = on;
    [this.row, this.column, this.span, this.from] = [0, 0, [0, 0], [0, 0]];
    this.element = parent.appendChild(element("div", "", "panel"));
    this.caption = this.element.appendChild(element("p", "", "caption"));
    this.reading = this.element.appendChild(element("p", "", "reading"));
    this.reading.setAttribute("role", "status");
    const zoom = [["Zoom in", 0.5], ["Zoom out", 2], ["Whole map", Infinity]];
    const files = { PNG: () => this.#png(), SVG: () => this.#save("svg", this.svg(), "image/svg+xml"), CSV: () => this.#csv() };
    this.tools = this.element.appendChild(element("div", "", "tools"));
    for (const [name, factor] of zoom) this.#tool(name, () => this.#zoom(factor));
    for (const [name, save] of Object.entries({ ...files, ...(on.npz && { NPZ: () => on.npz(this) }) })) this.#tool(name, save, `Save as ${name}`);
    this.canvas = this.element.appendChild(document.createElement("canvas"));
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-roledescription", "heat map");
    this.legend = new Legend();
    this.strip = new Strip((at) => this.frame && this.#move(this.frame.same ? at : this.row, this.frame.same ? this.column : at));
    this.list = document.createElement("ol");
    this.element.append(this.legend.element, this.strip.element, this.list);
    this.image = document.createElement("canvas");
    this.canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.canvas.addEventListener("pointerdown", (event) => { [this.held, this.dragged] = [this.frame && this.#cellAt(event), false]; });
    this.canvas.addEventListener("click", () => this.frame && !this.dragged && on.pick?.(this));
    this.canvas.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    this.canvas.addEventListener("keydown", (event) => this.#press(event));
    new ResizeObserver(() => this.frame && this.#draw()).observe(this.element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.frame && this.#draw());
  }

  /** Show the frame of a map; `words` has its title, a label, a caption, and what joins two tokens in a reading. */
  show(frame, words) {
    const [rows, columns] = frame.map.shape;
    const resized = this.frame?.rows !== rows || this.frame?.columnCount !== columns;
    const same = !words.pairs && frame.tokens.join() === frame.columns.join();
    this.frame = { ...frame, rows, columnCount: columns, same, second: same ? frame.second : null };
    this.words = words;
    this.signed = frame.map instanceof Int16Array;
    this.most = frame.map.reduce((most, code) => Math.max(most, Math.abs(code)), 1);
    if (resized) [this.span, this.from] = [[rows, columns], [0, 0]];
    paint(this.image, columns, rows, (at) => this.#share(at), this.signed);
    this.canvas.setAttribute("aria-label", `${words.label}; arrow keys move over its cells, + and - zoom, 0 shows the whole map`);
    this.caption.textContent = words.caption;
    this.caption.title = words.caption;
    this.tools.firstChild.hidden = rows <= FEWEST && columns <= FEWEST;
    this.legend.show(...this.#limits(), words.quantity, { signed: this.signed, keys: columns, masked: Boolean(frame.masked) });
    this.strip.show(frame.columns, this.frame.second);
    this.#move(Math.min(this.row, rows - 1), Math.min(this.column, columns - 1), false);
  }

  /** Return the map as SVG. */
  svg() {
    const { tokens, columns, second } = this.frame;
    const title = `${this.frame.model}, ${this.words.title}`;
    const [low, high] = this.#limits();
    const limits = [low, `${high} ${this.words.quantity}`];
    return svgOf({ title, tokens, columns, share: (at) => this.#share(at), signed: this.signed, limits, second });
  }

  /** Return a cell and its value in words. */
  read(row, column) {
    const { columnCount, map, scale, tokens, columns } = this.frame;
    const value = this.#isMasked(row, column) ? "masked" : (map[row * columnCount + column] * scale).toFixed(4);
    return `${this.words.plain ? tokens[row] : named(tokens[row], row)} ${this.words.joined} ${named(columns[column], column)}: ${value}`;
  }

  #isMasked(row, column) {
    return Boolean(this.frame.masked?.[row * this.frame.columnCount + column]);
  }

  /** Return what a cell is on the scale of colours, the same in the map and the line of tokens; NaN is masked. */
  #share(at) {
    if (this.frame.masked?.[at]) return NaN;
    const share = this.frame.map[at] / this.most;
    return this.signed ? share : shade(share, this.frame.columnCount);
  }

  #limits() {
    const most = (this.most * this.frame.scale).toFixed(3);
    return [this.signed ? `−${most}` : "0", most];
  }

  #tool(name, act, label = name) {
    const button = this.tools.appendChild(element("button", name));
    Object.assign(button, { type: "button", title: label });
    button.setAttribute("aria-label", label);
    button.addEventListener("click", act);
  }

  #save(ending, content, type) {
    download(`${this.frame.model} ${this.words.title}.${ending}`, content, type);
  }

  async #png() {
    this.#save("png", await pngOf(this.svg()), "image/png");
  }

  #csv() {
    const { tokens, columns, columnCount, map, scale } = this.frame;
    const rows = tokens.flatMap((token, query) =>
      columns.map((key, at) => [query, token, at, key, this.#isMasked(query, at) ? "" : map[query * columnCount + at] * scale]));
    this.#save("csv", csvOf([[...(this.words.columns ?? ["query", "query_token", "key", "key_token"]), this.words.quantity], ...rows]), "text/csv");
  }

  // ---- The part of the map that is shown ---------------------------------------------------------------------

  /** Show so many times as many cells, around the chosen one. */
  #zoom(factor) {
    const sides = [this.frame.rows, this.frame.columnCount];
    const chosen = [this.row, this.column];
    this.span = sides.map((side, axis) => Math.min(Math.max(Math.round(this.span[axis] * factor), FEWEST), side));
    this.#pan(this.span.map((span, axis) => Math.round(chosen[axis] - span / 2)));
  }

  #pan(from) {
    const sides = [this.frame.rows, this.frame.columnCount];
    this.from = from.map((at, axis) => Math.min(Math.max(at, 0), sides[axis] - this.span[axis]));
    this.#draw();
  }

  /** Pan so far that the chosen cell is shown. */
  #follow() {
    const chosen = [this.row, this.column];
    this.#pan(this.from.map((at, axis) => Math.min(Math.max(at, chosen[axis] - this.span[axis] + 1), chosen[axis])));
  }

  get #zoomed() {
    return this.span[0] < this.frame.rows || this.span[1] < this.frame.columnCount;
  }

  #draw() {
    const { tokens, columns } = this.frame;
    const [[rows, count], [top, left]] = [this.span, this.from];
    const context = this.canvas.getContext("2d");
    context.font = `bold ${FONT}`;
    const width = (labels) => Math.min(LONGEST_LABEL, Math.max(...labels.map((one) => context.measureText(one).width)));
    this.left = width(tokens) + 6;
    this.top = width(columns) + 6;
    const [across, down] = [this.element.clientWidth - this.left, HIGHEST * window.innerHeight - this.top];
    this.cell = Math.max(Math.min(across / count, down / rows, LARGEST), 1);
    const ratio = window.devicePixelRatio;
    const [wide, high] = [this.left + this.cell * count, this.top + this.cell * rows];
    this.canvas.width = Math.round(wide * ratio);
    this.canvas.height = Math.round(high * ratio);
    this.canvas.style.width = `${wide}px`;
    context.scale(ratio, ratio);
    context.font = FONT;
    context.imageSmoothingEnabled = false;
    context.drawImage(this.image, left, top, count, rows, this.left, this.top, this.cell * count, this.cell * rows);
    if (this.frame.masked) {
      context.fillStyle = hatching(context);
      for (const [row, from, length] of runsOf(rows, count, (row, column) => this.#isMasked(top + row, left + column))) {
        context.fillRect(this.left + this.cell * from, this.top + this.cell * row, this.cell * length, this.cell);
      }
    }
    const style = getComputedStyle(this.canvas);
    context.fillStyle = style.color;
    context.textBaseline = "middle";
    this.#labels(context, tokens.slice(top, top + rows), this.row - top, (label, at) =>
      context.fillText(label, 2, this.top + (at + 0.5) * this.cell, LONGEST_LABEL));
    this.#labels(context, columns.slice(left, left + count), this.column - left, (label, at) => {
      context.save();
      context.translate(this.left + (at + 0.5) * this.cell, this.top - 4);
      context.rotate(-Math.PI / 2);
      context.fillText(label, 0, 0, LONGEST_LABEL);
      context.restore();
    });
    const side = Math.max(this.cell, 3);
    const [x, y] = [this.left + (this.column - left) * this.cell, this.top + (this.row - top) * this.cell];
    context.beginPath();
    context.rect(this.left, this.top, this.cell * count, this.cell * rows);
    context.clip();
    if (this.frame.second) this.#border(context, this.frame.second);
    context.strokeStyle = style.getPropertyValue("--focus");
    context.lineWidth = 2;
    context.strokeRect(this.left + 1, y, this.cell * count - 2, side);
    context.strokeRect(x, y, side, side);
  }

  /** Draw a line before the second text of a pair, through rows and columns. */
  #border(context, second) {
    const [top, left] = this.from;
    const [x, y] = [this.left + (second - left) * this.cell, this.top + (second - top) * this.cell];
    context.fillStyle = "#fff";
    context.fillRect(x - 0.75, 0, 1.5, this.canvas.height);
    context.fillRect(0, y - 0.75, this.canvas.width, 1.5);
  }

  /** Write every label there is room for, and that of the chosen token in place of its neighbours. */
  #labels(context, labels, chosen, write) {
    const step = Math.ceil(PITCH / this.cell);
    labels.forEach((label, at) => {
      const shown = at === chosen || (at % step === 0 && (step === 1 || Math.abs(at - chosen) >= step));
      context.font = at === chosen ? `bold ${FONT}` : FONT;
      if (shown) write(label, at);
    });
  }

  // ---- The chosen cell -----------------------------------------------------------------------------------------

  #move(row, column, tell = true) {
    this.row = row;
    this.column = column;
    const { columnCount, map, scale, columns, same } = this.frame;
    const first = row * columnCount;
    const value = (key) => map[first + key] * scale;
    this.reading.textContent = this.read(row, column);
    this.strip.colour((key) => this.#share(first + key), this.signed, same ? row : column);
    const strongest = [...columns.keys()].filter((key) => !this.#isMasked(row, key)).sort((one, other) => value(other) - value(one)).slice(0, STRONGEST);
    this.list.replaceChildren(...strongest.map((key) => element("li", `${named(columns[key], key)} ${value(key).toFixed(3)}`)));
    this.#follow();
    if (tell) this.on.move?.(this);
  }

  /** Return the row and column of the cell under the pointer. */
  #cellAt(event) {
    const { left, top, width } = this.canvas.getBoundingClientRect();
    const shrunk = width / (this.left + this.cell * this.span[1]);
    const along = (at, margin) => Math.floor((at / shrunk - margin) / this.cell);
    return [this.from[0] + along(event.clientY - top, this.top), this.from[1] + along(event.clientX - left, this.left)];
  }

  #point(event) {
    if (!this.frame) return;
    const at = this.#cellAt(event);
    if (event.buttons === 1 && this.#zoomed && this.held) {
      this.dragged ||= at.some((one, axis) => one !== this.held[axis]);
      this.#pan(this.from.map((from, axis) => from + this.held[axis] - at[axis]));
    } else if (at.every((one, axis) => one >= this.from[axis] && one < this.from[axis] + this.span[axis])) this.#moveWithin(...at);
  }

  #wheel(event) {
    if (!this.frame || !(event.ctrlKey || this.#zoomed)) return;
    if (event.ctrlKey) this.#zoom(event.deltaY < 0 ? 0.8 : 1.25);
    else this.#pan([event.deltaY, event.deltaX].map((delta, axis) => this.from[axis] + Math.round(delta / this.cell)));
    event.preventDefault();
  }

  #press(event) {
    if (!this.frame || event.ctrlKey || event.metaKey || event.altKey) return;
    const zoom = { "+": 0.5, "=": 0.5, "-": 2, 0: Infinity }[event.key];
    if (event.key in MOVES) {
      const [down, right] = MOVES[event.key];
      this.#moveWithin(this.row + down, this.column + right);
    } else if (zoom) this.#zoom(zoom);
    else if (event.key === "Enter") this.on.pick?.(this);
    else if (event.key === "Home") this.#move(0, 0);
    else if (event.key === "End") this.#move(this.frame.rows - 1, this.frame.columnCount - 1);
    else return;
    event.preventDefault();
  }

  #moveWithin(row, column) {
    const { rows, columnCount } = this.frame;
    const inside = row >= 0 && row < rows && column >= 0 && column < columnCount;
    if (inside && (row !== this.row || column !== this.column)) this.#move(row, column);
  }
}
