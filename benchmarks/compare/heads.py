"""What a choice about heads costs, for one layer of attention with D = 768, B = 1, on one thread.

Two parts: `heads`, implementations of the same layer at each length, and numbers and widths of heads for some
of them; and `groups`, numbers of key and value heads, and heads of different widths. All outputs are compared
first, with heads that are computed one after the other.
"""

import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import numpy as np
import onnxruntime as ort
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from rich.progress import track
from torch import Tensor

from benchmarks.encoders import BenchEncoder, export_missing
from benchmarks.gpu.pytorch import attend_sdpa
from benchmarks.graph import open_graph
from benchmarks.page import finish
from benchmarks.rounds import console, markdown_table, ratio_of, time_in_turn
from polyhead_export.kinds import KINDS
from polyhead_model import EncoderConfig, MultiHeadAttention
from polyhead_model.head_choices import HeadChoice

D, WIDTH, USUAL = 768, 64, 12
LOOP, BATCHED, SDPA = "heads in a loop", "heads batched", "SDPA"
FAST, ATTENTION, INT8 = "onnxruntime fast", "onnxruntime attention", "onnxruntime int8"
_HEADS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
_TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048)
_GROUPS = (1, 2, 3, 4, 6)
_UNEVEN = (WIDTH, WIDTH // 2) * (USUAL // 2)
_BY_HEADS = ((128, 512), (LOOP, BATCHED, SDPA, FAST, ATTENTION))
"""The lengths and the implementations for which numbers of heads, and of groups, are compared."""
_TOLERANCE = {INT8: 5e-2}
"""How far an output may be off that of the loop, relative to its largest number."""
_EXACT = 1e-5

Call: TypeAlias = Callable[[], Tensor | NDArray[np.float32]]


@dataclass(frozen=True, kw_only=True)
class HeadLayer:
    """One layer of attention, in PyTorch and as graphs."""

    attention: MultiHeadAttention
    graphs: Mapping[str, Path]

    def calls(self, x: Tensor) -> dict[str, Call]:
        """Return the implementations, by name; each gives the output [1, T, D] for x [1, T, D]."""
        layer = self.attention
        calls: dict[str, Call] = {
            LOOP: partial(attend_in_a_loop, layer, x),
            BATCHED: lambda: layer(x)[0],
            SDPA: lambda: layer(x, attend=attend_sdpa)[0],
        }
        feeds = {"x": x.numpy(), "lengths": np.array([x.shape[1]], np.int32)}
        for name, graph in self.graphs.items():
            calls[name] = partial(_first_output, open_graph(graph, threads=1), feeds)
        return calls


def _first_output(session: ort.InferenceSession, feeds: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
    """Compute all outputs, and return the first."""
    output: NDArray[np.float32] = session.run(None, feeds)[0]
    return output


def attend_in_a_loop(attention: MultiHeadAttention, x: Tensor) -> Tensor:
    """Compute one head after the other, as the equation has it."""
    heads = []
    widths = attention.head_widths or (attention.head_width,) * attention.heads
    starts = [sum(widths[:head]) for head in range(attention.heads)]
    for number, (width, group) in enumerate(zip(widths, attention.kv_of, strict=True)):
        q, k, v = (
            F.linear(x, matrix.weight[start : start + width], matrix.bias[start : start + width])
            for matrix, start in (
                (attention.w_q, starts[number]),
                (attention.w_k, starts[group]),
                (attention.w_v, starts[group]),
            )
        )
        weights = (q @ k.transpose(-2, -1) / width**0.5).softmax(-1)
        heads.append(weights @ v)
    output: Tensor = attention.w_o(torch.cat(heads, -1))
    return output


def layer_of(models: Path, heads: HeadChoice, width: int = WIDTH) -> HeadLayer:
    """Build a layer, and export it unless that was done before; the usual one also in int8."""
    config = heads.of(EncoderConfig(d_model=D, heads=1, head_width=width, layers=1))
    encoder = BenchEncoder(name=f"{heads.suffix}-k{width}", config=config, tokens=1)
    export_missing([encoder], models)
    folder = encoder.graph(models).parent
    graphs = {FAST: folder / KINDS["fast"].file, ATTENTION: folder / KINDS["attention"].file}
    if (heads, width) == (HeadChoice(heads=USUAL), WIDTH):
        export_missing([encoder], models / INT8, precision="int8")
        graphs[INT8] = encoder.graph(models / INT8)
    (attention,) = encoder.build().encoder.layers
    assert isinstance(attention, MultiHeadAttention)
    return HeadLayer(attention=attention, graphs=graphs)


def checked(calls: Mapping[str, Call]) -> Mapping[str, Call]:
    """Compare all outputs with that of the loop, relative to the largest number.

    Raises:
        ValueError: One is off by more than its tolerance.
    """
    expected = np.asarray(calls[LOOP]())
    for name, call in calls.items():
        off = float(np.abs(np.asarray(call()) - expected).max() / np.abs(expected).max())
        if not off <= _TOLERANCE.get(name, _EXACT):
            raise ValueError(f"{name} must agree with {LOOP}, is off by {off:g}")
    return calls


Cells: TypeAlias = dict[str, str]
"""What was found of each that took turns."""


def compare(calls: Mapping[str, Call], base: str, seconds: float) -> Cells:
    """Time calls in turn, and compare them with one of them, of which the time is given.

    Runs are measured in the CPU time of their one thread: what else the machine does counts less.
    """
    taken = time_in_turn(calls, seconds, clock=time.thread_time)
    cells = {name: str(ratio_of(times, taken[base])) for name, times in taken.items()}
    return cells | {base: f"{1e3 * median(taken[base]):.2f} ms"}


def by_length(models: Path, seconds: float, lengths: Sequence[int]) -> Iterator[tuple[str, Cells]]:
    """Compare all implementations at each length."""
    layer = layer_of(models, HeadChoice(heads=USUAL))
    for tokens in lengths:
        calls = checked(layer.calls(_vectors(tokens)))
        yield f"T = {tokens}", compare(calls, FAST, seconds)


def by_heads(models: Path, seconds: float, numbers: Sequence[int]) -> Iterator[tuple[str, Cells]]:
    """Compare numbers of heads, with K = D / H and with K = 64."""
    every = sorted({*numbers, USUAL})
    shapes = dict.fromkeys((heads, width) for heads in every for width in (D // heads, WIDTH))
    layers = {
        f"{heads} × {width}": layer_of(models, HeadChoice(heads=heads), width) for heads, width in shapes
    }
    yield from _with_each(layers, f"{USUAL} × {WIDTH}", seconds)


def by_groups(models: Path, seconds: float, numbers: Sequence[int]) -> Iterator[tuple[str, Cells]]:
    """Compare numbers of key and value heads for 12 heads of queries, and heads of different widths."""
    usual = f"G = {USUAL}"
    choices = {f"G = {groups}": HeadChoice(heads=USUAL, kv_heads=groups) for groups in numbers}
    choices[usual] = HeadChoice(heads=USUAL)
    choices["every other head 32 wide"] = HeadChoice(heads=USUAL, widths=_UNEVEN)
    layers = {name: layer_of(models, choice) for name, choice in choices.items()}
    yield from _with_each(layers, usual, seconds)


def _with_each(layers: Mapping[str, HeadLayer], base: str, seconds: float) -> Iterator[tuple[str, Cells]]:
    """Compare layers at each length, with each implementation."""
    for tokens in _BY_HEADS[0]:
        x = _vectors(tokens)
        calls = {name: checked(layer.calls(x)) for name, layer in layers.items()}
        for implementation in _BY_HEADS[1]:
            turns = {name: each[implementation] for name, each in calls.items()}
            yield f"{implementation}, T = {tokens}", compare(turns, base, seconds)


def _vectors(tokens: int) -> Tensor:
    """Return a random sequence [1, T, D]."""
    return torch.randn(1, tokens, D, generator=torch.Generator().manual_seed(tokens))


def table(columns: Iterable[tuple[str, Cells]]) -> list[str]:
    """Return a table with a column for each comparison."""
    every = dict(columns)
    names = next(iter(every.values()))
    return markdown_table(
        {"": name, **{title: cells[name] for title, cells in every.items()}} for name in names
    )


def run(chosen: Namespace) -> int:
    """Measure what the part asks for, and write its page."""
    torch.set_num_threads(1)
    models, seconds = chosen.models.with_name(f"{chosen.models.name}-heads"), chosen.seconds
    lengths, numbers, groups = (
        (_TOKENS[:2], _HEADS[:1], _GROUPS[:1]) if chosen.tiny else (_TOKENS, _HEADS, _GROUPS)
    )
    if chosen.part == "heads":
        name, title = "head-costs", "What heads cost"
        tables = {
            f"Implementations, {USUAL} heads of width {WIDTH}: time, × {FAST}": by_length(
                models, seconds, lengths
            ),
            f"Numbers of heads and their width, H × K: time, × {USUAL} × {WIDTH}": by_heads(
                models, seconds, numbers
            ),
        }
    else:
        name, title = "group-costs", "What heads save that share keys and values, or are narrower"
        tables = {f"{USUAL} heads, time × G = {USUAL}": by_groups(models, seconds, groups)}
    with torch.inference_mode():
        measured = {
            heading: list(
                track(cells, description=chosen.part, console=console, disable=not console.is_terminal)
            )
            for heading, cells in tables.items()
        }
    return finish(
        chosen,
        name,
        f"make compare PARTS={chosen.part}",
        title,
        [line for heading, cells in measured.items() for line in (f"## {heading}", "", *table(cells))],
        intro=[
            "One layer of attention, D = 768, B = 1, in process; one thread, CPU time. What is compared runs",
            "in turn; a ratio is the median over pairs of runs of the same turn, with its 95 % interval.",
        ],
        facts={"tables": measured},
    )
