"""The fast and the attention graph against PyTorch, in one process on one card, by the device's clock."""

import time
from collections.abc import Callable
from statistics import median

from gpu.card import Card
from gpu.environment import measure_peak
from gpu.families import build, graph_file
from gpu.graph import BoundGraph, empty_outputs, full_inputs, open_session
from gpu.part import Bench, Pace, reason
from gpu.plan import Family, Size
from gpu.timing import compare, ratio
from gpu.torch_side import TorchEncoder, best_kernels, captured
from polyhead_model import attention_bytes, flops

FAST, GRAPHED, ATTENTION = "fast", "fast, CUDA graph", "attention"
EAGER, COMPILED, COMPILED_GRAPHED = "torch eager", "torch.compile", "torch.compile, CUDA graph"
COMPILED_CUDNN = "torch.compile, cuDNN, CUDA graph"
# cuDNN's before the other compiled ones: what is compiled stays so until it is compiled anew.
CONTENDERS = (FAST, GRAPHED, ATTENTION, EAGER, COMPILED_CUDNN, COMPILED, COMPILED_GRAPHED)

_KEPT_SHARE = 0.6
"""Of the free memory, what the attention of one run may take."""
_LARGE_SHARE = 0.1
"""Where it would take more than this, other encoders' sessions make room for it."""
_QUEUED = 4
_HELD_UP = 0.8
"""Of the card's time: a host that is busy for longer waits for the card, or the card for the host."""

Make = Callable[[], Callable[[], object]]


def run(bench: Bench) -> None:
    """Measures encoder after encoder, at sizes that grow."""
    peaks = measure_peak(bench)
    for precision, teraflops in peaks.items():
        bench.row("peak", precision=precision, teraflops=teraflops, size=bench.plan.peak_size)
    every = [
        (family, (batch, tokens))
        for tokens in bench.plan.tokens
        for batch in bench.plan.batches
        for family in bench.plan.tabled
    ]
    sides: dict[str, _Sides] = {}
    pace = Pace(first_seconds=3.0)
    for family, size in sorted(every, key=lambda cell: _importance(*cell), reverse=True):
        what = f"{family.key}, B = {size[0]}, T = {size[1]}"
        if not bench.fits(what, pace.expected):
            continue
        with bench.attempt(what):
            if _attention_bytes(family, size) > _LARGE_SHARE * bench.card.free_bytes():
                sides = {key: side for key, side in sides.items() if key == family.key}
                bench.card.give_back()
            if family.key not in sides:
                sides[family.key] = _Sides(bench, family)
            with pace.measured():
                _measure(bench, sides[family.key], size, max(peaks.values()))


def _attention_bytes(family: Family, size: Size) -> int:
    return attention_bytes(family.config, *size) if family.config else 0


def _importance(family: Family, size: Size) -> tuple[bool, int, int, int]:
    """What targets name comes first, and then what is small: it is quick, and served most."""
    batch, tokens = size
    return (
        batch == 32,
        tokens if batch == 32 else 0,
        -batch * tokens,
        -(family.config.d_model if family.config else 0),
    )


class _Sides:
    """One encoder's sessions and its like in PyTorch."""

    def __init__(self, bench: Bench, family: Family) -> None:
        if family.config is None:
            raise ValueError(f"{family.key} has no configuration")
        self.family, self.config = family, family.config
        self._card = bench.card
        fast, attention = (
            graph_file(family, bench.models, f"{name}.onnx") for name in ("model", "attention")
        )
        self._sessions = {
            FAST: open_session(bench.card, fast),
            ATTENTION: open_session(bench.card, attention),
        }
        if bench.card.kind == "cuda":
            with bench.attempt(f"{family.key}: {GRAPHED}"):
                self._sessions[GRAPHED] = open_session(bench.card, fast, graphs=True)
        self._torch = TorchEncoder(bench.card, build(family), family.precision)

    def contenders(self, size: Size) -> dict[str, Make]:
        """What makes each, at (B, T)."""
        inputs = full_inputs(self._card, self.config, *size)

        def graph(name: str) -> Make:
            def make() -> BoundGraph:
                outputs = empty_outputs(self._card, self.config, *size, attention=name == ATTENTION)
                session = self._sessions[name]
                return BoundGraph(self._card, session, inputs, outputs, captured=name == GRAPHED)

            return make

        def compiled() -> Callable[[], object]:
            self._torch.compile()
            return self._torch.compiled(inputs)

        def by_cudnn() -> Callable[[], object]:
            with best_kernels():
                self._torch.compile()
                return captured(self._card, self._torch.compiled(inputs))

        makes: dict[str, Make] = {name: graph(name) for name in self._sessions}
        makes[EAGER] = lambda: self._torch.eager(inputs)
        makes[COMPILED] = compiled
        if self._card.kind == "cuda":
            makes[COMPILED_CUDNN] = by_cudnn
            makes[COMPILED_GRAPHED] = lambda: captured(self._card, self._torch.compiled(inputs))
        return {name: makes[name] for name in CONTENDERS if name in makes}


def _measure(bench: Bench, sides: _Sides, size: Size, peak: float) -> None:
    """One row: everything that works at this size, against each other."""
    batch, tokens = size
    makes, problems, calls = sides.contenders(size), dict[str, str](), dict[str, Callable[[], object]]()
    need = attention_bytes(sides.config, batch, tokens)
    if need > _KEPT_SHARE * bench.card.free_bytes():
        problems[ATTENTION] = f"its weights take {need / 2**30:.0f} GiB, more than is set aside for them"
        del makes[ATTENTION]
    for name, make in makes.items():
        try:
            calls[name] = make()
            bench.card.milliseconds(calls[name], 1)
        except Exception as error:
            calls.pop(name, None)
            problems[name] = reason(error)
            bench.card.give_back()  # most likely it was memory: the others need theirs
    samples = compare(bench.card, calls, sample_ms=bench.plan.sample_ms, rounds=bench.plan.rounds)
    work = flops(sides.config, batch, tokens)
    bench.row(
        "size",
        family=sides.family.name,
        precision=sides.family.precision,
        d_model=sides.config.d_model,
        heads=sides.config.heads,
        layers=sides.config.layers,
        batch=batch,
        tokens=tokens,
        ms={name: median(each) for name, each in samples.items()},
        spread_ms={name: [min(each), max(each)] for name, each in samples.items()},
        sequences_per_second={name: 1e3 * batch / median(each) for name, each in samples.items()},
        share_of_peak={name: work / median(each) / 1e9 / peak for name, each in samples.items()},
        against_compiled=_best_against(
            samples, (FAST, GRAPHED), (COMPILED, COMPILED_CUDNN, COMPILED_GRAPHED)
        ),
        against_eager=ratio(samples, EAGER, FAST),
        plain_against_compiled=ratio(samples, COMPILED, FAST),
        attention_costs=ratio(samples, ATTENTION, FAST),
        host_ms=(host := {name: _host_ms(bench.card, call) for name, call in calls.items()}),
        held_up=[name for name in host if host[name] > _HELD_UP * median(samples[name])]
        if bench.card.kind == "cuda"
        else [],
        problems=problems,
    )
    del calls
    bench.card.give_back()


def _host_ms(card: Card, call: Callable[[], object]) -> float:
    """How long the host is busy with one run, of a few that it queues."""
    card.synchronise()
    start = time.perf_counter()
    for _ in range(_QUEUED):
        call()
    milliseconds = 1e3 * (time.perf_counter() - start) / _QUEUED
    card.synchronise()
    return milliseconds


def _best_against(
    samples: dict[str, list[float]], ours: tuple[str, ...], theirs: tuple[str, ...]
) -> float | None:
    """The best of ours against the best of theirs, each by its median; None where a side has nothing."""
    best = [
        min(
            (name for name in side if samples.get(name)), key=lambda name: median(samples[name]), default=None
        )
        for side in (ours, theirs)
    ]
    if best[0] is None or best[1] is None:
        return None
    return ratio(samples, best[1], best[0])
