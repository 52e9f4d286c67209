"""What a choice about heads costs, for one layer of attention with D = 768, B = 1, on one thread.

Implementations of the same layer are compared at each length, and numbers and widths of heads for some
implementations. Their outputs are compared first, with heads that are computed one after the other.
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

D, WIDTH, USUAL = 768, 64, 12
LOOP, BATCHED, SDPA = "heads in a loop", "heads batched", "SDPA"
FAST, ATTENTION, INT8 = "onnxruntime fast", "onnxruntime attention", "onnxruntime int8"
_HEADS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
_TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048)
_BY_HEADS = ((128, 512), (LOOP, BATCHED, SDPA, FAST, ATTENTION))
"""The lengths and the implementations for which numbers of heads are compared."""
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
    for head in range(attention.heads):
        rows = slice(head * attention.head_width, (head + 1) * attention.head_width)
        q, k, v = (
            F.linear(x, matrix.weight[rows], matrix.bias[rows])
            for matrix in (attention.w_q, attention.w_k, attention.w_v)
        )
        weights = (q @ k.transpose(-2, -1) / attention.head_width**0.5).softmax(-1)
        heads.append(weights @ v)
    output: Tensor = attention.w_o(torch.cat(heads, -1))
    return output


def layer_of(models: Path, heads: int, width: int) -> HeadLayer:
    """Build a layer, and export it unless that was done before; the usual one also in int8."""
    config = EncoderConfig(d_model=D, heads=heads, head_width=width, layers=1)
    encoder = BenchEncoder(name=f"h{heads}-k{width}", config=config, tokens=1)
    export_missing([encoder], models)
    folder = encoder.graph(models).parent
    graphs = {FAST: folder / KINDS["fast"].file, ATTENTION: folder / KINDS["attention"].file}
    if (heads, width) == (USUAL, WIDTH):
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
    layer = layer_of(models, USUAL, WIDTH)
    for tokens in lengths:
        calls = checked(layer.calls(_vectors(tokens)))
        yield f"T = {tokens}", compare(calls, FAST, seconds)


def by_heads(models: Path, seconds: float, numbers: Sequence[int]) -> Iterator[tuple[str, Cells]]:
    """Compare numbers of heads, with K = D / H and with K = 64."""
    every = sorted({*numbers, USUAL})
    shapes = dict.fromkeys((heads, width) for heads in every for width in (D // heads, WIDTH))
    layers = {f"{heads} × {width}": layer_of(models, heads, width) for heads, width in shapes}
    for tokens in _BY_HEADS[0]:
        x = _vectors(tokens)
        calls = {shape: checked(layer.calls(x)) for shape, layer in layers.items()}
        for name in _BY_HEADS[1]:
            turns = {shape: each[name] for shape, each in calls.items()}
            yield f"{name}, T = {tokens}", compare(turns, f"{USUAL} × {WIDTH}", seconds)


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
    """Measure, and write the page."""
    torch.set_num_threads(1)
    models, seconds = chosen.models.with_name(f"{chosen.models.name}-heads"), chosen.seconds
    lengths, numbers = (_TOKENS[:2], _HEADS[:1]) if chosen.tiny else (_TOKENS, _HEADS)
    with torch.inference_mode():
        of_lengths, of_heads = (
            list(track(measured, description="heads", console=console, disable=not console.is_terminal))
            for measured in (by_length(models, seconds, lengths), by_heads(models, seconds, numbers))
        )
    return finish(
        chosen,
        "head-costs",
        "make compare PARTS=heads",
        "What heads cost",
        [
            f"## Implementations, {USUAL} heads of width {WIDTH}: time, × {FAST}",
            "",
            *table(of_lengths),
            f"## Numbers of heads and their width, H × K: time, × {USUAL} × {WIDTH}",
            "",
            *table(of_heads),
        ],
        intro=[
            "One layer of attention, D = 768, B = 1, in process; one thread, CPU time. What is compared runs",
            "in turn; a ratio is the median over pairs of runs of the same turn, with its 95 % interval.",
        ],
        facts={"by_length": of_lengths, "by_heads": of_heads},
    )
