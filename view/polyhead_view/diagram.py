"""Draw how the data flow through an encoder: its steps, with shapes on the arrows."""

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from polyhead_view.flow import (
    LINE,
    NOTE,
    NOTE_LINE,
    TEXT,
    Box,
    blocks,
    connect,
    difference,
    heads_of,
    in_brackets,
    place,
    text_width,
)

_INK, _GREY, _RESIDUAL = "#1f2933", "#52606d", "#c2571a"
_FILL = {"given": "#dcefe0", "beside": "#dcefe0", "learned": "#d6e4f5", "computed": "#ffffff"}
_EDGE = {"given": "#4f8a5b", "beside": "#4f8a5b", "learned": "#3d6ea8", "computed": "#8a949e"}
_LAYER, _HEADS, _HEADS_EDGE = "#edf0f3", "#fdf3d7", "#d9b95c"
_MARGIN, _GUTTER = 0.25, 0.45
_FRAME = 0.32
"""The room in a layer's frame above its first box; `_SIDE` is that beside and below."""
_SIDE = 0.2
_RESIDUAL_ROOM = 0.3
_HEADING, _NAME = 13.0, 15.0
_LETTERS = {
    "B": "batch",
    "T": "tokens",
    "S": "tokens of the memory",
    "D": "d_model",
    "H": "heads",
    "K": "head width",
    "F": "feed-forward width",
    "E": "embedding width",
    "L": "layers",
}


def draw_flow(numbers: Mapping[str, Any]) -> Figure:
    """Draw how the data flow through an encoder, with shapes in letters and in numbers on the arrows.

    Layers that are equal are drawn once. Where there are several kinds, the most frequent is drawn, and
    sentences say how the others differ.

    Args:
        numbers: What `polyhead_model.summary(name, config, batch=1, tokens=8)` returns, or its JSON.
    """
    sections = numbers["sections"]
    layers = [section for section in sections if section["stage"] == "layers"]
    drawn = max(layers, key=lambda section: section["times"])
    columns = _columns(connect([sections[0], drawn, sections[-1]]))
    sizes = [f"{letter} = {size:,}  {_LETTERS[letter]}" for letter, size in numbers["sizes"].items()]
    return _Drawing(columns).finish(numbers["name"], sizes, _others(sections, drawn, layers), drawn["times"])


def _others(
    sections: Sequence[Mapping[str, Any]], drawn: Mapping[str, Any], layers: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return sentences on layers that are not drawn."""
    others = [section for section in layers if section is not drawn]
    if not others:
        return []
    heads = f" (H = {heads_of(drawn)})" if len({heads_of(section) for section in layers}) > 1 else ""
    sentences = [
        f"{_named(section['layers'])}: {difference(sections, drawn, section)}." for section in others
    ]
    return [f"{_named(drawn['layers'])} as drawn{heads}.", *sentences]


def _named(layers: str) -> str:
    return f"Layer {layers}" if layers.isdigit() else f"Layers {layers}"


def _columns(boxes: list[Box]) -> list[list[Box]]:
    """Place boxes in one column, or in two if a layer has several parts: the last has its own."""
    *first, last = blocks(boxes)
    given = [box for box in boxes if box.stage == "input"]
    after = [box for box in boxes if box.stage == "output"]
    if not first:
        columns = [[*given, *last, *after]]
    else:
        source = first[-1][-1]
        again = Box(
            text=[source.text[0].partition(" = ")[0]],
            axes=source.axes,
            shape=source.shape,
            kind="given",
            stage="layers",
            block=last[0].block,
            is_again=True,
        )
        for box in last:
            box.reads = [again if each is source else each for each in box.reads]
            box.around = [again if each is source else each for each in box.around]
        columns = [[*given, *(box for block in first for box in block)], [again, *last, *after]]
    for column in columns:
        place(column)
    if first:
        left, right = _sides(columns[0])[1], _sides(columns[1])[0]
        bottoms = [_layer_of(column)[-1].bottom for column in columns]
        for box in columns[1]:
            box.shift(left - right + 2 * _SIDE + _GUTTER + _RESIDUAL_ROOM, bottoms[0] - bottoms[1])
    return columns


def _layer_of(column: Sequence[Box]) -> list[Box]:
    return [box for box in column if box.stage == "layers"]


def _sides(boxes: Sequence[Box]) -> tuple[float, float]:
    """Return where boxes, and the shapes at their arrows, begin and end."""
    letters = [box.x - 0.06 - text_width(in_brackets(box.axes), NOTE) for box in boxes]
    sizes = [box.x + 0.06 + text_width(in_brackets(box.shape), NOTE) for box in boxes]
    return min([*letters, *(box.left for box in boxes)]), max([*sizes, *(box.right for box in boxes)])


class _Drawing:
    """A figure whose coordinates are inches.

    Args:
        columns: Boxes that are placed.
    """

    def __init__(self, columns: Sequence[Sequence[Box]]) -> None:
        self.columns = columns
        self.figure = Figure()
        self.axes: Axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_axis_off()
        self.left = self.right = self.top = self.bottom = 0.0

    def finish(self, name: str, sizes: Sequence[str], others: Sequence[str], times: int) -> Figure:
        """Draw all."""
        frames = [self._frame(column) for column in self.columns]
        for column in self.columns:
            self._heads(column)
            for box in column:
                self._box(box)
                for source in box.direct:
                    self._arrow(source, box)
                for source in box.around:
                    self._residual(source, box, _sides(_layer_of(column))[0] - _RESIDUAL_ROOM / 2)
        if len(self.columns) > 1:
            self._turn(_layer_of(self.columns[0])[-1], self.columns[1][0], frames)
        left, top, _, bottom = frames[0]
        self._text(
            left - 0.2,
            (top + bottom) / 2,
            f"layer  × {times}" if times > 1 else "layer",
            _HEADING,
            rotation=90,
            weight="bold",
        )
        every = [box for column in self.columns for box in column]
        begin, end = left - 0.4, max(_sides(every)[1], *(right for _, _, right, _ in frames))
        self._words(begin, end, name, sizes, others, min(box.top for box in every), frames)
        bottom = max([self.bottom, *(box.bottom for box in every), *(frame[3] for frame in frames)]) + _MARGIN
        box = (begin - _MARGIN, end + _MARGIN, bottom, self.top)
        self.figure.set_size_inches(box[1] - box[0], box[2] - box[3])
        self.axes.set_xlim(box[:2])
        self.axes.set_ylim(box[2:])
        return self.figure

    def _words(self, left, right, name, sizes, others, top, frames) -> None:
        """Write the name and the sizes above all, and how other layers differ below."""
        legend = sizes
        if len(frames) > 1:
            x, y = frames[1][0], top
            for line in sizes:
                self._text(x, y + 0.1, line, TEXT, ha="left")
                y += 0.2
            self.top = top - 0.45
        else:
            lines = wrap(
                "    ".join(size.replace(" ", "\u00a0") for size in sizes), int((right - left) / 0.068)
            )
            self.top = top - 0.55 - 0.18 * len(lines)
            for at, line in enumerate(lines):
                self._text(left, self.top + 0.5 + 0.18 * at, line, TEXT, ha="left", color=_GREY)
        self._text(left, self.top + 0.2, name, _NAME, ha="left", weight="bold")
        self.top -= 0.1
        self.bottom = frames[0][3]
        lines = [line for each in others for line in wrap(each, int((right - left) / 0.068))]
        if lines:
            bottom = max(box.bottom for column in self.columns for box in column)
            self.bottom = max(self.bottom, bottom) + 0.25
            for line in lines:
                self._text(left, self.bottom, line, TEXT, ha="left", color=_GREY)
                self.bottom += 0.18

    def _frame(self, column: Sequence[Box]) -> tuple[float, float, float, float]:
        """Draw the ground of a layer: its left, top, right and bottom."""
        layer = _layer_of(column)
        left, right = _sides(layer)
        if any(box.around for box in layer):
            left -= _RESIDUAL_ROOM
        sides = (
            left - _SIDE,
            min(box.top for box in layer) - _FRAME,
            right + _SIDE,
            max(box.bottom for box in layer) + _SIDE,
        )
        self._ground(*sides, _LAYER, "none", 0)
        for block in sorted({box.block for box in layer}):
            own = [box for box in layer if box.block == block]
            part = next((box.part for box in own if box.part and "matrices" in box.part), "")
            title = (part or "").removesuffix(" matrices")
            y = min(box.top for box in own) - _FRAME / 2
            self._text(sides[2] - 0.1, y, title, TEXT, ha="right", weight="bold", color=_GREY)
        return sides

    def _heads(self, column: Sequence[Box]) -> None:
        """Draw the ground of what each head computes by itself as a stack of cards."""
        for block in sorted({box.block for box in column}):
            own = [box for box in column if box.block == block and box.is_by_head and box.stage == "layers"]
            if not own:
                continue
            ends = [each.x for box in own for each in box.reads]
            left = min([*(box.left for box in own), *(end - 0.3 for end in ends)]) - 0.12
            right = max([*(box.right for box in own), *(end + 0.3 for end in ends)]) + 0.3
            top, bottom = min(box.top for box in own) - 0.12, max(box.bottom for box in own) + 0.1
            for card in (2, 1, 0):
                away = 0.05 * card
                self._ground(left + away, top - away, right + away, bottom - away, _HEADS, _HEADS_EDGE, 1)
            heads = own[0].shape[1]
            self._text(
                right - 0.08,
                (top + bottom) / 2,
                f"× {heads}\nhead{'s' * (heads > 1)}",
                _HEADING - 2,
                ha="right",
                weight="bold",
                color="#8a6d1a",
            )

    def _ground(self, left, top, right, bottom, fill, edge, order) -> None:
        self.axes.add_patch(
            FancyBboxPatch(
                (left, top),
                right - left,
                bottom - top,
                boxstyle="round,pad=0,rounding_size=0.06",
                facecolor=fill,
                edgecolor=edge,
                linewidth=0.8,
                zorder=order,
            )
        )

    def _box(self, box: Box) -> None:
        self._ground(box.left, box.top, box.right, box.bottom, _FILL[box.kind], _EDGE[box.kind], 4)
        middle = (box.left + box.right) / 2
        y = box.top + (box.height - LINE * len(box.text) - NOTE_LINE * len(box.notes)) / 2
        for line in box.text:
            self._text(middle, y + LINE / 2, line, TEXT)
            y += LINE
        for line in box.notes:
            self._text(middle, y + NOTE_LINE / 2, line, NOTE, color=_GREY)
            y += NOTE_LINE

    def _arrow(self, source: Box, box: Box) -> None:
        x = source.x if box.left <= source.x <= box.right else box.x
        self._path([(x, source.bottom), (x, box.top)], _INK)
        if not source.shows_shape(box):
            return
        y = source.bottom + 0.125 + 0.16 * (source.is_by_head and not box.is_by_head)
        for shift, align, shape in ((-0.06, "right", source.axes), (0.06, "left", source.shape)):
            self._text(x + shift, y, in_brackets(shape), NOTE, ha=align)

    def _residual(self, source: Box, box: Box, x: float) -> None:
        middle = (box.top + box.bottom) / 2
        start = (source.top + source.bottom) / 2
        # It begins at the line that leads from one column to the next, if there is one.
        begin = [(x, start)] if source.is_again else [(source.left, start), (x, start)]
        self._path([*begin, (x, middle), (box.left, middle)], _RESIDUAL)
        self._text(x - 0.1, (start + middle) / 2, "residual", NOTE, rotation=90, color=_RESIDUAL)

    def _turn(self, source: Box, box: Box, frames: Sequence[tuple[float, float, float, float]]) -> None:
        """Lead from the end of the first column to the begin of the second, between them."""
        x = (frames[0][2] + frames[1][0]) / 2
        start, end = (source.top + source.bottom) / 2, (box.top + box.bottom) / 2
        self._path([(source.right, start), (x, start), (x, end), (box.left, end)], _INK)

    def _path(self, points: Sequence[tuple[float, float]], colour: str) -> None:
        """Draw a line with an arrow at its end."""
        self.axes.plot(*zip(*points[:-1], strict=True), color=colour, linewidth=1.1, zorder=3)
        self.axes.annotate(
            "",
            points[-1],
            points[-2],
            arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0},
            zorder=3,
        )

    def _text(self, x: float, y: float, text: str, size: float, **style: Any) -> None:
        options = {"ha": "center", "va": "center", "color": _INK, "zorder": 5, "parse_math": False}
        self.axes.text(x, y, text, size=size, **(options | style))
