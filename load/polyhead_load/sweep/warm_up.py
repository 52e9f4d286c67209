"""Warm a configuration up: call it until it answers equally fast.

Shape letters: B batch, T tokens, D d_model.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from polyhead_client import Client, ModelInfo
from polyhead_load.contents import draw_lengths, token_ids, vectors
from polyhead_load.load_plan import Lengths, LoadPlan
from polyhead_proto.names import QUERY, X

_WINDOWS = 3
_WINDOW_SECONDS = 0.3
_WINDOW_REQUESTS = 2
_ENOUGH_REQUESTS = 50
_LENGTHS = 64
"""Lengths drawn from a distribution."""


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """The result of a warm-up."""

    seconds: float
    requests: int
    stable: bool
    """Whether the medians of the last three windows agreed."""


def warm_up(client: Client, plan: LoadPlan, most_seconds: float, spread: float = 0.1) -> WarmUp:
    """Send a plan's requests one after the other until three windows agree, or `most_seconds` have passed.

    A window is 0.3 s (less where `most_seconds` is below 1.8) and at least two requests; all together have
    50 requests, or took half of `most_seconds`. The medians of the last three windows may differ by the
    relative `spread`, as in perf_analyzer, but by latency alone. Three windows are tried in any case. Of a
    distribution of lengths, each that the generator may send is called once before; the windows are at the
    median.

    Raises:
        PolyheadError: A call failed.
    """
    info = client.model(plan.model)
    plan = replace(plan, outputs=plan.outputs.of(info))
    started = time.perf_counter()
    lengths = [plan.tokens] if isinstance(plan.tokens, int) else _drawn(plan.tokens, plan.seed)
    for tokens in lengths[1:]:
        _call(client, plan, _inputs(info, plan, tokens))
    inputs = _inputs(info, plan, lengths[0])
    window_seconds = min(_WINDOW_SECONDS, most_seconds / (2 * _WINDOWS))
    medians: list[float] = []
    requests = len(lengths) - 1
    while True:
        window: list[float] = []
        opened = time.perf_counter()
        while len(window) < _WINDOW_REQUESTS or time.perf_counter() - opened < window_seconds:
            window.append(_call(client, plan, inputs))
        requests += len(window)
        medians.append(median(window))
        seconds = time.perf_counter() - started
        last = medians[-_WINDOWS:]
        if len(last) < _WINDOWS:
            continue
        stable = max(last) <= (1 + spread) * min(last)
        enough = requests - len(lengths) + 1 >= _ENOUGH_REQUESTS or seconds >= most_seconds / 2
        if (stable and enough) or seconds >= most_seconds:
            return WarmUp(seconds=seconds, requests=requests, stable=stable)


def _drawn(tokens: Lengths, seed: int) -> list[int]:
    """Return the median, and lengths from the shortest to the longest, each once."""
    drawn = draw_lengths(tokens, _LENGTHS, np.random.default_rng(seed))
    return [max(1, round(tokens.median)), *sorted(set(drawn))]


def _call(client: Client, plan: LoadPlan, inputs: Mapping[str, Any]) -> float:
    """Call once; return the seconds that it took."""
    sent = time.perf_counter()
    client.encode(**inputs, model=plan.model, timeout=plan.timeout_seconds, **plan.outputs.arguments)
    return time.perf_counter() - sent


def _inputs(info: ModelInfo, plan: LoadPlan, tokens: int) -> Mapping[str, Any]:
    """Return vectors [B, T, D] or token ids [B, T] with random contents; with a memory as long, if needed."""
    random, lengths = np.random.default_rng(plan.seed), [tokens] * plan.batch
    for main in (X, QUERY):
        if main in info.inputs:
            names = ("inputs", "memory") if main == QUERY else ("inputs",)
            return {name: vectors(lengths, info.inputs[main].shape[-1], random) for name in names}
    return {"inputs": token_ids(lengths, info.vocabulary or 1, random)}
