"""Draw how the data flow through an encoder: its steps, with shapes on the arrows."""

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from polyhead_view.figures import Picture
from polyhead_view.flow import (
    LINE,
    NOTE,
    NOTE_LINE,
    TEXT,
    Box,
    connect,
    difference,
    heads_of,
    in_brackets,
    number_blocks,
    place,
    text_width,
)

_INK, _GREY, _RESIDUAL = "#1f2933", "#52606d", "#c2571a"
_FILL = {"given": "#dcefe0", "beside": "#dcefe0", "learned": "#d6e4f5", "computed": "#ffffff"}
_EDGE = {"given": "#4f8a5b", "beside": "#4f8a5b", "learned": "#3d6ea8", "computed": "#8a949e"}
_LAYER, _HEADS, _HEADS_EDGE = "#edf0f3", "#fdf3d7", "#d9b95c"
_MARGIN = 0.25
_FRAME = 0.32
"""The room in a layer's frame above its first box; `_SIDE` is that beside and below."""
_SIDE = 0.2
_RESIDUAL_ROOM = 0.3
_LINE = 0.19
"""The height of a line of words."""
_CHARACTER, _CAPITAL = 0.068, 0.17
"""The widths of characters of words and of the name."""
_HEADING, _NAME = 13.0, 15.0
_LETTERS = {
    "B": "batch",
    "T": "tokens",
    "S": "tokens of the memory",
    "D": "d_model",
    "H": "heads",
    "G": "key and value heads",
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

    Raises:
        ValueError: It is something else.
    """
    if not isinstance(numbers, Mapping) or not {"name", "sections", "sizes"} <= numbers.keys():
        raise ValueError(f"numbers must be what polyhead_model.summary returns, was {type(numbers).__name__}")
    sections = numbers["sections"]
    layers = [section for section in sections if section["stage"] == "layers"]
    drawn = max(layers, key=lambda section: section["times"])
    column = _column(connect([sections[0], drawn, sections[-1]]))
    sizes = [f"{letter} = {size:,}  {_LETTERS[letter]}" for letter, size in numbers["sizes"].items()]
    return _Drawing(column).finish(numbers["name"], sizes, _others(sections, drawn, layers), drawn["times"])


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


def _column(boxes: list[Box]) -> list[Box]:
    """Place boxes one below the other, in the order of input, layer and output."""
    number_blocks(boxes)
    column = sorted(boxes, key=lambda box: ("input", "layers", "output").index(box.stage))
    place(column)
    return column


def _wrapped(lines: Sequence[str], width: float) -> list[str]:
    return [part for line in lines for part in wrap(line, int(width / _CHARACTER))]


def _layer_of(column: Sequence[Box]) -> list[Box]:
    return [box for box in column if box.stage == "layers"]


def _sides(boxes: Sequence[Box]) -> tuple[float, float]:
    """Return where boxes, and the shapes at their arrows, begin and end."""
    letters = [box.x - 0.06 - text_width(in_brackets(box.axes), NOTE) for box in boxes]
    sizes = [box.x + 0.06 + text_width(in_brackets(box.shape), NOTE) for box in boxes]
    return min([*letters, *(box.left for box in boxes)]), max([*sizes, *(box.right for box in boxes)])


class _Sides(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float


class _Drawing:
    """A figure whose coordinates are inches.

    Args:
        column: Boxes that are placed.
    """

    def __init__(self, column: Sequence[Box]) -> None:
        self.column = column
        self.figure = Picture()
        self.figure.set_layout_engine("none")  # whatever a notebook's style says: places are chosen here
        self.axes: Axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_axis_off()

    def finish(self, name: str, sizes: Sequence[str], others: Sequence[str], times: int) -> Figure:
        """Draw all."""
        boxes = self.column
        frame = self._frame(_layer_of(boxes))
        self._heads()
        lane = _sides(_layer_of(boxes))[0] - _RESIDUAL_ROOM / 2
        for box in boxes:
            self._box(box)
            for source in box.direct:
                self._arrow(source, box)
            for source in box.around:
                self._residual(source, box, lane)
        layers = f"layer  × {times}" if times > 1 else "layer"
        self._text(
            frame.left - 0.2, (frame.top + frame.bottom) / 2, layers, _HEADING, rotation=90, weight="bold"
        )
        left, right = frame.left - 0.4, max(_sides(boxes)[1], frame.right)
        top = min(box.top for box in boxes)
        sizes = _wrapped(["    ".join(size.replace(" ", "\u00a0") for size in sizes)], right - left)
        top -= 0.1 + _LINE * len(sizes)
        self._words(sizes, left, top)
        top -= 0.25
        most = int((right - left) / _CAPITAL)
        shown = name if len(name) <= most else f"{name[: most - 1]}…"
        self._text(left, top, shown, _NAME, ha="left", weight="bold")
        bottom = max(frame.bottom, *(box.bottom for box in boxes)) + _MARGIN
        if lines := _wrapped(others, right - left):
            self._words(lines, left, bottom)
            bottom += _LINE * len(lines) + _MARGIN
        self._show(_Sides(left - _MARGIN, top - 0.2 - _MARGIN / 2, right + _MARGIN, bottom))
        return self.figure

    def _show(self, sides: _Sides) -> None:
        """Make the figure as large as what is on it."""
        self.figure.set_size_inches(sides.right - sides.left, sides.bottom - sides.top)
        self.axes.set_xlim(sides.left, sides.right)
        self.axes.set_ylim(sides.bottom, sides.top)

    def _words(self, lines: Sequence[str], left: float, top: float) -> None:
        for at, line in enumerate(lines):
            self._text(left, top + _LINE * (at + 0.5), line, TEXT, ha="left", color=_GREY)

    def _frame(self, layer: Sequence[Box]) -> _Sides:
        """Draw the ground of a layer, with the names of its parts."""
        left, right = _sides(layer)
        if any(box.around for box in layer):
            left -= _RESIDUAL_ROOM
        sides = _Sides(
            left - _SIDE,
            min(box.top for box in layer) - _FRAME,
            right + _SIDE,
            max(box.bottom for box in layer) + _SIDE,
        )
        self._ground(sides, _LAYER, "none", order=0)
        for block in sorted({box.block for box in layer}):
            own = [box for box in layer if box.block == block]
            part = next((box.part for box in own if box.part and "matrices" in box.part), "")
            title = (part or "").removesuffix(" matrices")
            y = min(box.top for box in own) - _FRAME / 2
            self._text(sides.right - 0.1, y, title, TEXT, ha="right", weight="bold", color=_GREY)
        return sides

    def _heads(self) -> None:
        """Draw the ground of what each head computes by itself as a stack of cards."""
        for block in sorted({box.block for box in self.column}):
            own = [
                box for box in self.column if box.block == block and box.is_by_head and box.stage == "layers"
            ]
            if not own:
                continue
            ends = [each.x for box in own for each in box.reads]
            left = min([*(box.left for box in own), *(end - 0.3 for end in ends)]) - 0.12
            right = max([*(box.right for box in own), *(end + 0.3 for end in ends)]) + 0.3
            top, bottom = min(box.top for box in own) - 0.12, max(box.bottom for box in own) + 0.1
            heads = own[0].shape[1]
            for card in (2, 1, 0) if heads > 1 else (0,):
                away = 0.05 * card
                sides = _Sides(left + away, top - away, right + away, bottom - away)
                self._ground(sides, _HEADS, _HEADS_EDGE, order=1)
            self._text(
                right - 0.08,
                (top + bottom) / 2,
                f"× {heads}\nhead{'s' * (heads > 1)}",
                _HEADING - 2,
                ha="right",
                weight="bold",
                color="#8a6d1a",
            )

    def _ground(self, sides: _Sides, fill: str, edge: str, *, order: int) -> None:
        self.axes.add_patch(
            FancyBboxPatch(
                (sides.left, sides.top),
                sides.right - sides.left,
                sides.bottom - sides.top,
                boxstyle="round,pad=0,rounding_size=0.06",
                facecolor=fill,
                edgecolor=edge,
                linewidth=0.8,
                zorder=order,
            )
        )

    def _box(self, box: Box) -> None:
        sides = _Sides(box.left, box.top, box.right, box.bottom)
        self._ground(sides, _FILL[box.kind], _EDGE[box.kind], order=4)
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
        self._path([(source.left, start), (x, start), (x, middle), (box.left, middle)], _RESIDUAL)
        if source.text[0].split()[0] == box.text[0].split()[0]:  # something is added to it
            self._text(x - 0.1, (start + middle) / 2, "residual", NOTE, rotation=90, color=_RESIDUAL)

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
        options: dict[str, Any] = {
            "ha": "center",
            "va": "center",
            "color": _INK,
            "zorder": 5,
            "parse_math": False,
        }
        self.axes.text(x, y, text, size=size, **(options | style))
