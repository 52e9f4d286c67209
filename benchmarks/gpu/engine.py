"""The server's own engine against onnxruntime alone: its buffers, its captures and its threads.

Every answer is to data of its own, so that one that comes too early, too late or from another run shows.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import onnxruntime as ort

from gpu.answers import Feeds, feeds_of
from gpu.families import graph_file
from gpu.graph import open_session
from gpu.parity import GRAPHS, Arrays, difference
from gpu.part import Bench, Pace
from gpu.plan import Family
from polyhead_model import EncoderConfig, attention_bytes
from polyhead_server.devices import Device, on_cpu, on_cuda
from polyhead_server.engine import Engine
from polyhead_server.errors import TooLargeError
from polyhead_server.repository import GraphName, read_manifest
from polyhead_server.signature import signature_of

_TIMES = 4
"""Runs of a size: enough that it is captured, and replayed with other data."""
_LARGEST_ATTENTION = 2**27
"""Bytes of a run's attention: the host compares them all."""
_POOL_BYTES = 2**30
"""What the engine keeps in page-locked memory, at most."""
_SPARE_BYTES = 2**28
"""Beyond the weights, where memory is to be too little."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Inputs, and what the graph alone makes of them."""

    feeds: Feeds
    expected: Arrays

    def differences(self, values: Arrays) -> dict[str, float]:
        """The largest difference of the pooled vectors, and of all that is no padding in the rest."""
        worst = {"pooled": 0.0, "rest": 0.0}
        for name, wanted in self.expected.items():
            kind = "pooled" if name == "pooled" else "rest"
            if values[name].shape != wanted.shape:
                return dict.fromkeys(worst, float("inf"))
            for row, length in enumerate(self.feeds["lengths"]):
                seen = _tokens_of(name, length)
                worst[kind] = max(worst[kind], difference(values[name][row][seen], wanted[row][seen]))
        return worst


def run(bench: Bench) -> None:
    """Looks at both graphs, with and without captures, and at what happens where memory is short."""
    family = bench.plan.served
    if family.config is None:
        raise ValueError(f"{family.key} has no configuration")
    pace = Pace(first_seconds=3.0 if bench.card.kind == "cuda" else 0.1)
    for graph in GRAPHS:
        asked: list[Asked] = []
        for captured in bench.plan.captures:
            what = f"{graph} graph{', CUDA graphs' if captured else ''}"
            if bench.fits(what, pace.expected):
                with bench.attempt(what), pace.measured():
                    asked = asked or list(_ask(bench, family, family.config, graph))
                    look = _Look(bench, graph=graph, captured=captured)
                    look.answers(engine_of(bench, family, graph, captured=captured), asked)
    if bench.fits("little memory", pace.expected):
        with bench.attempt("little memory"):
            _short_of_memory(bench, family, family.config)


def engine_of(
    bench: Bench, family: Family, graph: str, *, captured: bool = False, memory_limit: int = 0
) -> Engine:
    """The engine as a server has it, which captures from now on where it captures at all."""
    path = graph_file(family, bench.models, GRAPHS[graph])
    manifest = read_manifest(path.parent, family=family.key, version=1)
    name: GraphName = "attention" if graph == "attention" else "fast"
    device: Device = on_cpu("gpu-check") if bench.card.kind == "cpu" else on_cuda("gpu-check")
    device = replace(device, graphs=captured, memory_limit=memory_limit)
    engine = Engine(path, signature=signature_of(manifest, name), device=device, threads=1)
    if (serve := getattr(engine, "serve", None)) is not None:
        serve()
    return engine


@dataclass(frozen=True)
class _Look:
    """Writes one row for each way of asking an engine."""

    bench: Bench
    graph: str
    captured: bool

    def answers(self, engine: Engine, asked: Sequence[Asked]) -> None:
        """From one thread, and from two at once."""
        self._row("one thread", [_compare(engine, asked)])
        with ThreadPoolExecutor(2) as threads:
            orders = (asked, asked[::-1])
            self._row("two threads", list(threads.map(partial(_compare, engine), orders)))

    def after(self, what: str, engine: Engine, asked: Sequence[Asked]) -> None:
        """From one thread, after something that must have left no trace."""
        self._row(what, [_compare(engine, asked)])

    def missed(self, what: str, problem: str) -> None:
        """What should have happened has not."""
        self.bench.row("engine", graph=self.graph, cuda_graphs=self.captured, check=what, problem=problem)

    def _row(self, check: str, found: Sequence[dict[str, float]]) -> None:
        worst = {kind: max(each[kind] for each in found) for kind in ("pooled", "rest")}
        self.bench.row("engine", graph=self.graph, cuda_graphs=self.captured, check=check, **worst)


def _compare(engine: Engine, asked: Sequence[Asked]) -> dict[str, float]:
    """The largest differences of an engine's answers."""
    found = [each.differences(engine.run(each.feeds, engine.outputs)) for each in asked]
    return {kind: max(each[kind] for each in found) for kind in ("pooled", "rest")}


def _ask(bench: Bench, family: Family, config: EncoderConfig, graph: str) -> Iterator[Asked]:
    """Ragged inputs, each size several times with other data, the sizes taking turns."""
    session = open_session(bench.card, graph_file(family, bench.models, GRAPHS[graph]))
    names = [value.name for value in session.get_outputs()]
    sizes = bench.plan.parity_sizes
    if graph == "attention":
        sizes = tuple(size for size in sizes if attention_bytes(config, *size) <= _LARGEST_ATTENTION)
    for time in range(_TIMES):
        for number, (batch, tokens) in enumerate(sizes):
            lengths = [1 + (tokens - 1) * (batch - row) // batch for row in range(batch)]
            feeds = feeds_of(config, lengths, seed=100 * time + number)
            yield Asked(feeds=feeds, expected=_alone(session, names, feeds))


def _alone(session: ort.InferenceSession, names: list[str], feeds: Feeds) -> Arrays:
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def _short_of_memory(bench: Bench, family: Family, config: EncoderConfig) -> None:
    """No page-locked memory left, and a run for which the card has too little."""
    look = _Look(bench, graph="fast", captured=False)
    asked = list(_ask(bench, family, config, "fast"))
    engine = engine_of(bench, family, "fast")
    large = max(asked, key=lambda each: each.expected["output"].nbytes)
    size = large.expected["output"].nbytes
    # Held, so that none of it can be used again; the pool takes powers of two.
    runs = 2 + (_POOL_BYTES // size if bench.card.kind == "cuda" else 0)
    held = [engine.run(large.feeds, engine.outputs) for _ in range(runs)]
    look.after("no page-locked memory", engine, [*asked, large])
    wrong = max(large.differences(each)["rest"] for each in (held[0], held[-1]))
    del held
    if wrong > 1e-1:
        look.missed("results that are held", f"they changed by {wrong:.2g} while other runs came")
    if bench.card.kind == "cuda":
        _too_large(bench, family, config, look, asked)


def _too_large(
    bench: Bench, family: Family, config: EncoderConfig, look: _Look, asked: Sequence[Asked]
) -> None:
    what = "after a run that was too large"
    weights = graph_file(family, bench.models, "weights.bin").stat().st_size
    engine = engine_of(bench, family, "fast", memory_limit=weights + _SPARE_BYTES)
    huge: Any = feeds_of(config, [max(bench.plan.tokens)] * max(bench.plan.batches), seed=0)
    try:
        engine.run(huge, engine.outputs)
    except TooLargeError:
        look.after(what, engine, asked)
    else:
        look.missed(what, "it ran, in less memory than it needs")


def _tokens_of(name: str, length: int) -> tuple[slice, ...]:
    """Where a sequence's values are that are no padding: [D], [T, D], or [H, T, T]."""
    real = slice(0, int(length))
    if name == "pooled":
        return (slice(None),)
    return (slice(None), real, real) if name.startswith("attention.") else (real,)
