// One map, tokens × tokens, with the tokens of a row and its strongest weights.

import { colourOf, css, ink, paint, shade } from "./colours.js";

const FONT = "11px system-ui, sans-serif";
const PITCH = 12; // the least distance of labels, in pixels
const LONGEST = 84; // the longest label, in pixels
const LARGEST = 26; // the largest cell, in pixels
const HIGHEST = 0.75; // the most of the window's height that a map takes
const STRONGEST = 8; // weights that are listed

const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

/** Return tokens as buttons in one line. */
export class Strip {
  constructor(onChoose) {
    this.element = document.createElement("div");
    this.element.className = "strip";
    this.element.addEventListener("click", (event) => {
      const at = [...this.element.children].indexOf(event.target);
      if (at >= 0) onChoose?.(at);
    });
  }

  show(tokens) {
    this.element.replaceChildren(
      ...tokens.map((token) => {
        const button = document.createElement("button");
        Object.assign(button, { type: "button", tabIndex: -1, textContent: token });
        return button;
      }),
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

export class Panel {
  constructor(parent) {
    this.element = parent.appendChild(document.createElement("div"));
    this.element.className = "panel";
    this.caption = this.element.appendChild(document.createElement("p"));
    this.caption.className = "caption";
    this.reading = this.element.appendChild(document.createElement("p"));
    this.reading.className = "reading";
    this.reading.setAttribute("role", "status");
    this.canvas = this.element.appendChild(document.createElement("canvas"));
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-roledescription", "heat map");
    this.strip = new Strip((at) => this.frame && this.#move(this.frame.same ? at : this.row, this.frame.same ? this.column : at));
    this.element.appendChild(this.strip.element);
    this.list = this.element.appendChild(document.createElement("ol"));
    this.image = document.createElement("canvas");
    this.canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.canvas.addEventListener("keydown", (event) => this.#press(event));
    new ResizeObserver(() => this.frame && this.#draw()).observe(this.element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.frame && this.#draw());
  }

  /** Show the frame of a map; `words` has its label, a caption, and what joins two tokens in a reading. */
  show(frame, words) {
    const [rows, columns] = frame.map.shape;
    this.frame = { ...frame, rows, columnCount: columns, same: !words.pairs };
    this.words = words;
    this.signed = frame.map instanceof Int16Array;
    this.most = frame.map.reduce((most, code) => Math.max(most, Math.abs(code)), 1);
    const share = (at) => frame.map[at] / this.most;
    paint(this.image, columns, rows, (at) => (this.signed ? share(at) : shade(share(at), columns)), this.signed);
    this.canvas.setAttribute("aria-label", `${words.label}; arrow keys move over its cells`);
    this.caption.textContent = words.caption;
    this.strip.show(frame.columns);
    this.#move(Math.min(this.row ?? 0, rows - 1), Math.min(this.column ?? 0, columns - 1));
  }

  #draw() {
    const { rows, columnCount, tokens, columns } = this.frame;
    const context = this.canvas.getContext("2d");
    context.font = `bold ${FONT}`;
    const width = (labels) => Math.min(LONGEST, Math.max(...labels.map((one) => context.measureText(one).width)));
    this.left = width(tokens) + 6;
    this.top = width(columns) + 6;
    const [across, down] = [this.element.clientWidth - this.left, HIGHEST * window.innerHeight - this.top];
    this.cell = Math.max(Math.min(across / columnCount, down / rows, LARGEST), 1);
    const ratio = window.devicePixelRatio;
    const [wide, high] = [this.left + this.cell * columnCount, this.top + this.cell * rows];
    this.canvas.width = Math.round(wide * ratio);
    this.canvas.height = Math.round(high * ratio);
    this.canvas.style.width = `${wide}px`;
    context.scale(ratio, ratio);
    context.font = FONT;
    context.imageSmoothingEnabled = false;
    context.drawImage(this.image, this.left, this.top, this.cell * columnCount, this.cell * rows);
    const style = getComputedStyle(this.canvas);
    context.fillStyle = style.color;
    context.textBaseline = "middle";
    this.#labels(context, tokens, this.row, (label, at) =>
      context.fillText(label, 2, this.top + (at + 0.5) * this.cell, LONGEST));
    this.#labels(context, columns, this.column, (label, at) => {
      context.save();
      context.translate(this.left + (at + 0.5) * this.cell, this.top - 4);
      context.rotate(-Math.PI / 2);
      context.fillText(label, 0, 0, LONGEST);
      context.restore();
    });
    const side = Math.max(this.cell, 3);
    context.strokeStyle = style.getPropertyValue("--focus");
    context.lineWidth = 2;
    context.strokeRect(this.left, this.top + this.row * this.cell, this.cell * columnCount, side);
    context.strokeRect(this.left + this.column * this.cell, this.top + this.row * this.cell, side, side);
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

  #move(row, column) {
    this.row = row;
    this.column = column;
    const { columnCount, map, scale, tokens, columns, same } = this.frame;
    const value = (key) => map[row * columnCount + key] * scale;
    const codes = map.subarray(row * columnCount, (row + 1) * columnCount);
    const most = codes.reduce((largest, code) => Math.max(largest, Math.abs(code)), 1);
    this.reading.textContent = `${tokens[row]} (${row}) ${this.words.joined} ${columns[column]} (${column}): ${value(column).toFixed(4)}`;
    this.strip.colour((key) => codes[key] / most, this.signed, same ? row : column);
    const strongest = [...codes.keys()].sort((one, other) => codes[other] - codes[one]).slice(0, STRONGEST);
    this.list.replaceChildren(
      ...strongest.map((key) => {
        const item = document.createElement("li");
        item.textContent = `${columns[key]} ${value(key).toFixed(3)}`;
        return item;
      }),
    );
    this.#draw();
  }

  #point(event) {
    if (!this.frame) return;
    const { left, top, width } = this.canvas.getBoundingClientRect();
    const shrunk = width / (this.left + this.cell * this.frame.columnCount);
    const column = Math.floor(((event.clientX - left) / shrunk - this.left) / this.cell);
    const row = Math.floor(((event.clientY - top) / shrunk - this.top) / this.cell);
    this.#moveWithin(row, column);
  }

  #press(event) {
    if (!(event.key in MOVES) || !this.frame) return;
    const [down, right] = MOVES[event.key];
    this.#moveWithin(this.row + down, this.column + right);
    event.preventDefault();
  }

  #moveWithin(row, column) {
    const { rows, columnCount } = this.frame;
    const inside = row >= 0 && row < rows && column >= 0 && column < columnCount;
    if (inside && (row !== this.row || column !== this.column)) this.#move(row, column);
  }
}
