"""What a choice about heads costs, for one layer of attention with D = 768.

Implementations of the same layer are compared at each length, and numbers of heads for some implementations.
Their outputs are compared first, with heads that are computed one after the other. Whatever is compared runs
in turn; a ratio is the median over pairs of runs of the same turn, with its 95 % interval.
"""

import time
from argparse import Namespace
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
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
from torch import Tensor, nn

from benchmarks.compare.heads_page import INTRO, draw, sections
from benchmarks.gpu.speed import attend_sdpa
from benchmarks.graph import open_graph
from benchmarks.page import finish
from benchmarks.rounds import console, ratio_of, time_in_turn
from polyhead_export import export_family
from polyhead_export.kinds import KINDS
from polyhead_export.precision import Precision
from polyhead_model import Encoder, EncoderConfig, MultiHeadAttention, flop_counts, flops

D, WIDTH = 768, 64
HEADS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
USUAL = 12
TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048)
LOOP, FUSED, INT8 = "heads in a loop", "onnxruntime fast, fused", "onnxruntime int8"
PROJECTIONS = "projections alone"
BASE = "onnxruntime fast"
BY_HEADS = ((128, 512), (LOOP, "heads batched", "SDPA", BASE, "onnxruntime attention"))
"""The lengths and the implementations for which numbers of heads are compared."""
TOLERANCE: Mapping[str, float] = {INT8: 5e-2}
"""How far an output may be off that of the loop, relative to its largest number."""
_EXACT = 1e-5

Call: TypeAlias = Callable[[], Tensor | NDArray[np.float32]]


@dataclass(frozen=True, kw_only=True)
class HeadLayer:
    """One layer of attention, in PyTorch and as graphs."""

    encoder: Encoder
    graphs: Mapping[str, Path]

    @property
    def attention(self) -> MultiHeadAttention:
        """The layer, with separate projections."""
        (layer,) = self.encoder.layers
        assert isinstance(layer, MultiHeadAttention)
        return layer

    def calls(self, x: Tensor, graphs: Container[str]) -> dict[str, Call]:
        """Return the implementations, by name; each gives the output [1, T, D] for x.

        Args:
            x: [1, T, D].
            graphs: The names of the graphs to run beside PyTorch.
        """
        separate, fused = self.attention, self.attention.fuse()
        calls: dict[str, Call] = {
            LOOP: partial(attend_in_a_loop, separate, x),
            "heads batched": lambda: separate(x)[0],
            "heads batched, fused": lambda: fused(x)[0],
            "SDPA": lambda: separate(x, attend=attend_sdpa)[0],
            "SDPA, fused": lambda: fused(x, attend=attend_sdpa)[0],
        }
        if separate.head_width * separate.heads == D:  # it has no other head widths
            own = as_torch_module(fused)
            calls["nn.MultiheadAttention"] = lambda: own(x, x, x, need_weights=False)[0]
        feeds = {
            "x": x.numpy(),
            "lengths": np.array([x.shape[1]], np.int32),
            "rows": np.zeros((1, 1), np.int64),
        }
        for name in (name for name in self.graphs if name in graphs):
            session = open_graph(self.graphs[name], threads=1)
            taken = {spec.name: feeds[spec.name] for spec in session.get_inputs()}
            calls[name] = partial(_first_output, session, taken)
        return calls


def _first_output(session: ort.InferenceSession, inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
    """Compute all outputs, and return the first."""
    output: NDArray[np.float32] = session.run(None, inputs)[0]
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


def as_torch_module(fused: MultiHeadAttention) -> nn.MultiheadAttention:
    """Return PyTorch's own module with the weights of a fused attention."""
    module = nn.MultiheadAttention(D, fused.heads, batch_first=True).eval()
    state = fused.state_dict()
    names = {"w_qkv.weight": "in_proj_weight", "w_qkv.bias": "in_proj_bias"}
    module.load_state_dict({names.get(n, n.replace("w_o", "out_proj")): t for n, t in state.items()})
    return module


def layer_of(models: Path, heads: int, width: int) -> HeadLayer:
    """Build a layer, and export it unless that was done before."""
    torch.manual_seed(0)
    config = EncoderConfig(d_model=D, heads=heads, head_width=width, layers=1)
    encoder = Encoder(config).eval()
    name = f"h{heads}-k{width}"
    graphs = {f"onnxruntime {kind}": (name, kind) for kind in ("fast", "attention", "rows")}
    families: dict[str, tuple[Encoder, Precision]] = {name: (encoder, "fp32")}
    if (heads, width) == (USUAL, WIDTH):
        graphs[FUSED] = (f"{name}-fused", "fast")
        families[f"{name}-fused"] = (encoder.fuse(), "fp32")
        graphs[INT8] = (f"{name}-int8", "fast")
        families[f"{name}-int8"] = (encoder, "int8")
    for family, (source, precision) in families.items():
        if not (models / family).exists():
            export_family(source, family, models, graphs=["rows"], precision=precision)
    return HeadLayer(
        encoder=encoder,
        graphs={key: models / family / "1" / KINDS[kind].file for key, (family, kind) in graphs.items()},
    )


def vectors(tokens: int) -> Tensor:
    """Return a random sequence [1, T, D]."""
    return torch.randn(1, tokens, D, generator=torch.Generator().manual_seed(tokens))


def checked(calls: Mapping[str, Call]) -> dict[str, float]:
    """Compare all outputs with that of the loop.

    Returns:
        The largest difference of each, relative to the largest number.

    Raises:
        ValueError: One is off by more than its tolerance.
    """
    expected = np.asarray(calls[LOOP]())
    off = {
        name: float(np.abs(np.asarray(call()) - expected).max() / np.abs(expected).max())
        for name, call in calls.items()
    }
    for name, value in off.items():
        if not value <= TOLERANCE.get(name, _EXACT):
            raise ValueError(f"{name} must agree with {LOOP}, is off by {value:g}")
    return off


def compare(calls: Mapping[str, Call], base: str, seconds: float) -> dict[str, dict[str, float]]:
    """Time calls in turn, and compare them with one of them.

    Runs are measured in the CPU time of their one thread: what else the machine does counts less.

    Returns:
        The median in ms of each call, and its ratio to the base with an interval.
    """
    taken = time_in_turn(calls, seconds, clock=time.thread_time)
    return {
        name: {"ms": 1e3 * median(times), **ratio_of(times, taken[base])._asdict()}
        for name, times in taken.items()
    }


def _project(fused: MultiHeadAttention, x: Tensor) -> Tensor:
    """Compute the matrix products of the projections, and nothing between them."""
    output: Tensor = fused.w_o(fused.w_qkv(x)[..., :D])
    return output


def by_length(models: Path, seconds: float, lengths: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Compare all implementations at each length."""
    layer = layer_of(models, USUAL, WIDTH)
    config, fused = layer.encoder.config, layer.attention.fuse()
    for tokens in lengths:
        x = vectors(tokens)
        calls = layer.calls(x, layer.graphs)
        off = checked(calls)
        calls[PROJECTIONS] = partial(_project, fused, x)
        inner = [c.total for c in flop_counts(config, 1, tokens) if c.name in ("scores", "weighted values")]
        yield {
            "tokens": tokens,
            "off": off,
            "attention_flops": sum(inner) / flops(config, 1, tokens),
            "compared": compare(calls, BASE, seconds),
        }


def by_heads(models: Path, seconds: float, numbers: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Compare numbers of heads, with K = D / H and with K = 64."""
    shapes = dict.fromkeys((heads, width) for heads in (*numbers, USUAL) for width in (D // heads, WIDTH))
    layers = {shape: layer_of(models, *shape) for shape in shapes}
    for tokens in BY_HEADS[0]:
        x = vectors(tokens)
        calls = {shape: layer.calls(x, BY_HEADS[1]) for shape, layer in layers.items()}
        for each in calls.values():
            checked(each)
        for name in BY_HEADS[1]:
            turns = {f"{heads} × {width}": each[name] for (heads, width), each in calls.items()}
            yield {
                "tokens": tokens,
                "implementation": name,
                "compared": compare(turns, f"{USUAL} × {WIDTH}", seconds),
            }


def run(chosen: Namespace) -> int:
    """Measure, and write the page."""
    torch.set_num_threads(1)
    models = chosen.models.with_name(f"{chosen.models.name}-heads")
    found: dict[str, list[dict[str, Any]]] = {"by_length": [], "by_heads": []}
    lengths, shapes = (TOKENS[:2], HEADS[:3]) if chosen.tiny else (TOKENS, HEADS)
    with torch.inference_mode():
        for name, measure in (
            ("by_length", by_length(models, chosen.seconds, lengths)),
            ("by_heads", by_heads(models, chosen.seconds, shapes)),
        ):
            for comparison in track(measure, description=name, console=console):
                found[name].append(comparison)
    draw(found, chosen.out / "head-costs.png")
    return finish(
        chosen,
        "head-costs",
        "make compare PARTS=heads",
        "What heads cost",
        sections(found),
        intro=INTRO,
        facts=found,
    )
