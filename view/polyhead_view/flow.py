"""Lay out the steps of a forward pass: boxes in rows and lanes, from the `summary` of an encoder.

Measures are inches, x to the right and y downwards.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cache
from itertools import groupby
from textwrap import wrap
from typing import Any, Literal

from matplotlib.textpath import TextPath

TEXT, NOTE = 9.0, 7.5
"""Font sizes in points: of what is computed, and of shapes and parameters."""
LINE, NOTE_LINE = 0.16, 0.135
"""The heights of their lines."""

_PITCH = 1.72
"""The least distance of lanes, with room for a shape on both sides of an arrow."""
_PAD = 0.05
_BESIDE = 0.12
"""Between an arrow and what is on both sides of it."""
_BETWEEN = 0.12
"""Between boxes side by side."""
_HALF = 0.42
"""Half of the room that an arrow needs at a box that several meet at."""
_GAP, _GAP_WITH_SHAPE = 0.13, 0.29
"""The lengths of arrows."""
_LAYER, _HEADS = 0.42, 0.16
"""More room where a layer, or what heads compute, begins and ends."""
_LONGEST, _LONGEST_NOTE = 30, 34
"""The most characters of a line."""


@dataclass(eq=False)
class Box:
    """A tensor, and how it is computed."""

    text: list[str]
    axes: Sequence[str]
    shape: Sequence[int]
    kind: Literal["given", "beside", "learned", "computed"]
    """Given to the encoder, or beside its main input; or computed, with parameters or without."""
    stage: str
    """The section: "input", "layers" or "output"."""
    reads: list["Box"] = field(default_factory=list)
    around: list["Box"] = field(default_factory=list)
    """Those that it reads past the boxes between them, such as residuals."""
    notes: list[str] = field(default_factory=list)
    """Its parameters, and what it takes from beside the layers."""
    part: str | None = None
    """What its parameters are counted as."""
    block: int = 0
    """The number of the part of a layer that it is in."""
    row: int = 0
    span: tuple[float, float] = (0.0, 0.0)
    """The lanes that it joins."""
    x: float = 0.0
    left: float = 0.0
    right: float = 0.0
    top: float = 0.0

    @property
    def width(self) -> float:
        """The room that its text takes."""
        lines = [*((line, TEXT) for line in self.text), *((line, NOTE) for line in self.notes)]
        return max(text_width(line, size) for line, size in lines) + 0.2

    @property
    def height(self) -> float:
        """Likewise."""
        return LINE * len(self.text) + NOTE_LINE * len(self.notes) + 2 * _PAD

    @property
    def bottom(self) -> float:
        """Where it ends."""
        return self.top + self.height

    @property
    def lane(self) -> float:
        """The middle of the lanes that it joins."""
        return sum(self.span) / 2

    @property
    def direct(self) -> list["Box"]:
        """What it reads, but for residuals."""
        return [box for box in self.reads if box not in self.around]

    @property
    def is_by_head(self) -> bool:
        """Whether each head computes its own from its own."""
        return all(list(box.axes[1:2]) == ["H"] for box in (self, *self.reads))

    @property
    def changes_shape(self) -> bool:
        """Whether it has another shape than what it is computed from."""
        return not self.reads or any(list(box.axes) != list(self.axes) for box in self.reads)

    def shows_shape(self, reader: "Box") -> bool:
        """Whether the arrow to a reader has its shape: it is new, or about to change."""
        return self.changes_shape or reader.changes_shape


@cache
def text_width(text: str, size: float) -> float:
    """Return the width of a line."""
    return float(TextPath((0, 0), text, size=size).get_extents().width) / 72


def in_brackets(sizes: Iterable[object]) -> str:
    """Write a shape, such as [B, T, D] or [1, 8, 768]."""
    return f"[{', '.join(map(str, sizes))}]"


def _in_both(axes: Sequence[str], shape: Sequence[int]) -> str:
    letters, sizes = in_brackets(axes), in_brackets(shape)
    return sizes if letters == sizes else f"{letters} = {sizes}"


def connect(sections: Sequence[Mapping[str, Any]]) -> list[Box]:
    """Return the boxes of sections: the input, one kind of layers, the output.

    What is beside the main input is a note at what reads it; or a box, if that reads nothing else.
    """
    boxes: list[Box] = []
    latest: dict[str, Box] = {}
    main: set[Box] = set()
    for section in sections:
        for step in section["steps"]:
            reads = [latest[symbol] for symbol in step["reads"]]
            learned = step["parameters"]
            box = Box(
                text=wrap(step["tensor"], _LONGEST),
                axes=step["axes"],
                shape=step["shape"],
                kind="learned" if learned else "computed" if reads else "given",
                stage=section["stage"],
                notes=list(_parameter_notes(learned)),
                part=learned[0]["part"] if learned else None,
            )
            beside = [each for each in reads if each.stage == "input" and each not in main]
            if section["stage"] == "input" or len(beside) == len(reads):
                box.reads = reads
                _bring(beside if section["stage"] != "input" else [], boxes)
            else:
                box.reads = [each for each in reads if each not in beside]
                box.notes += [line for each in beside for line in _beside_notes(each)]
            box.around = [
                each
                for each in box.reads
                if any(each in before(other) for other in box.reads if other is not each)
            ]
            boxes.append(box)
            latest[step["symbol"]] = box
        if section["stage"] == "input":
            main = before(latest["x"])
    drawn = [box for box in boxes if box.stage != "input" or box in main]
    for box in drawn:
        if not any(box in other.reads for other in drawn):
            box.notes.append(_in_both(box.axes, box.shape))
    return drawn


def _bring(beside: Sequence[Box], boxes: list[Box]) -> None:
    """Move boxes from the input to where they are read."""
    for box in beside:
        box.kind, box.stage = "beside", "layers"
        boxes.remove(box)
        boxes.append(box)


def before(box: Box) -> set[Box]:
    """Return a box, and all that it is computed from."""
    return {box}.union(*map(before, box.reads))


def _parameter_notes(parameters: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the names and shapes of parameters; those of one shape share a line."""
    for _, equal in groupby(parameters, key=lambda each: each["axes"]):
        tensors = list(equal)
        names = ", ".join(each["name"] for each in tensors)
        yield f"{names}: {_in_both(tensors[0]['axes'], tensors[0]['shape'])}"


def _beside_notes(box: Box) -> list[str]:
    return [*wrap(" ".join(box.text), _LONGEST_NOTE), _in_both(box.axes, box.shape)]


def number_blocks(boxes: Sequence[Box]) -> None:
    """Number the parts of a layer, which begin where a residual begins: attention, feed-forward network."""
    layer = [box for box in boxes if box.stage == "layers"]
    block = 1
    for at, box in enumerate(layer, 1):
        box.block = block
        later = [each for other in layer[at:] for each in other.reads if each.kind != "beside"]
        block += set(later) <= set(layer[at - 1 :]) and any(box in other.around for other in layer)


def place(column: Sequence[Box]) -> None:
    """Place boxes that follow each other, from above and around x = 0."""
    flowing = [box for box in column if box.kind != "beside"]
    last = 0
    for box in flowing:
        # What reads nothing before it stands beside the last, such as k = memory W_k beside q.
        last = box.row = max((each.row + 1 for each in box.reads if each in flowing), default=last)
    rows = [[box for box in flowing if box.row == row] for row in range(max(box.row for box in flowing) + 1)]
    for row in rows:
        _choose_lanes(row)
    pitch = max([_PITCH, *(_room(box) + _BETWEEN for row in rows if len(row) > 1 for box in row)])
    for box in column:
        _choose_sides(box, column, pitch)
    _choose_heights(rows)


def _choose_lanes(row: Sequence[Box]) -> None:
    """Keep the lanes of what is read; spread what would be in the same."""
    sources = {box: [each for each in box.direct if each.kind != "beside"] for box in row}
    reads_beside = any(len(sources[box]) < len(box.direct) for box in row)
    firsts = Counter(each for box in row for each in sources[box])
    spread = [box for box in row if reads_beside or any(firsts[each] > 1 for each in sources[box])]
    middle = next((each.lane for box in spread for each in sources[box]), 0.0)
    for at, box in enumerate(spread):
        box.span = (middle + at - (len(spread) - 1) / 2,) * 2
    for box in row:
        if box not in spread and sources[box]:
            spans = [each.span for each in sources[box]]
            box.span = (min(first for first, _ in spans), max(last for _, last in spans))


def _room(box: Box) -> float:
    """Return the width of a box, or of the shape on both sides of the arrow below it."""
    return max(
        box.width, sum(text_width(in_brackets(each), NOTE) for each in (box.axes, box.shape)) + _BESIDE
    )


def _choose_sides(box: Box, column: Sequence[Box], pitch: float) -> None:
    """Make room for the text, and for arrows from or to other lanes."""
    readers = [other for other in column if box in other.direct]
    if box.kind == "beside":
        lanes = [other.lane for other in readers]
        box.span = (min(lanes), max(lanes))
    box.x = box.lane * pitch
    ends = [each.lane for each in box.direct if len(box.direct) > 1 and each in column]
    ends += [other.lane for other in readers if len(other.direct) == 1]
    joined = [end * pitch for end in ends if end != box.lane]
    box.left = min([box.x - box.width / 2, *(end - _HALF for end in joined)])
    box.right = max([box.x + box.width / 2, *(end + _HALF for end in joined)])


def _choose_heights(rows: Sequence[Sequence[Box]]) -> None:
    y = 0.0
    for above, row in zip(([], *rows), rows, strict=False):
        if above:
            later = [box for each in rows for box in each]
            shown = any(box.shows_shape(other) for box in above for other in later if box in other.direct)
            y += _GAP_WITH_SHAPE if shown else _GAP
            y += _LAYER * ((above[0].stage, above[0].block) != (row[0].stage, row[0].block))
            y += _HEADS * (any(box.is_by_head for box in above) is not any(box.is_by_head for box in row))
        beside = {each for box in row for each in box.direct if each.kind == "beside"}
        for box in beside:
            box.top = y
        y += max((box.height + _GAP_WITH_SHAPE for box in beside), default=0.0)
        for box in row:
            box.top = y
        y += max(box.height for box in row)


def difference(
    sections: Sequence[Mapping[str, Any]], drawn: Mapping[str, Any], other: Mapping[str, Any]
) -> str:
    """Say in what the layers of a section of a `summary` differ from those that are drawn."""
    given = {step["symbol"] for step in sections[0]["steps"]} - {"x"}
    found: list[str] = []
    pairs = SequenceMatcher(None, _symbols(drawn), _symbols(other), autojunk=False)
    steps, others = drawn["steps"], other["steps"]
    swapped: dict[str, str] = {}
    for what, start, end, first, last in pairs.get_opcodes():
        if what != "equal":
            found += [f"without {step['tensor']}" for step in steps[start:end]]
            found += [f"with {step['tensor']}" for step in others[first:last]]
            continue
        for ours, theirs in zip(steps[start:end], others[first:last], strict=True):
            own, its = (given.intersection(step["reads"]) for step in (ours, theirs))
            swapped |= dict(zip(sorted(own - its), sorted(its - own), strict=False))
    found += [f"{new} in place of {old}" for old, new in swapped.items()]
    if heads_of(drawn) != heads_of(other):
        found.append(f"H = {heads_of(other)}")
    return ", ".join(found)


def _symbols(section: Mapping[str, Any]) -> list[str]:
    return [step["symbol"] for step in section["steps"]]


def heads_of(section: Mapping[str, Any]) -> int | None:
    """Return H of the layers of a section."""
    shapes = (zip(step["axes"], step["shape"], strict=True) for step in section["steps"])
    return next((size for shape in shapes for axis, size in shape if axis == "H"), None)
