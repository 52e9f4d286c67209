"""Warming up: a configuration is called until it answers equally fast.

Shape letters: B batch, T tokens, D d_model.
"""

import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from polyhead_client import Client, ModelInfo
from polyhead_load.contents import draw_lengths, token_ids, vectors
from polyhead_load.plan import Lengths, Plan
from polyhead_proto.names import X

_WINDOWS = 3
_WINDOW_SECONDS = 0.3
_WINDOW_REQUESTS = 2
_ENOUGH_REQUESTS = 50
_LENGTHS = 64
"""Drawn of a mixture of lengths, from its shortest to its longest."""


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """How it went."""

    seconds: float
    requests: int
    stable: bool
    """The medians of the last three windows agreed."""


def warm_up(client: Client, plan: Plan, most_seconds: float, spread: float = 0.1) -> WarmUp:
    """Call what a plan calls, one request after the other, until three windows agree.

    A window is 0.3 s (less where `most_seconds` is below 1.8), and two requests at least; together they
    have 50 requests, or took half of `most_seconds`. The medians of the last three windows have to agree:
    perf_analyzer's idea, but with its own windows, and of latency alone. Of a mixture of lengths, each that
    the generator may send is called once before; the windows are at the median.

    Args:
        client: Of the plan's server.
        plan: What is called.
        most_seconds: When to give up; three windows are tried in any case.
        spread: Most by which the windows' medians may differ.

    Raises:
        PolyheadError: A call failed.
    """
    asked = plan.attention is not None
    info = client.model(f"{plan.model}.attention" if asked else plan.model)
    started = time.perf_counter()
    lengths = [plan.tokens] if isinstance(plan.tokens, int) else _drawn(plan.tokens, plan.seed)
    for tokens in lengths[1:]:
        _call(client, plan, _inputs(info, plan, tokens))
    inputs = _inputs(info, plan, lengths[0])
    window_seconds = min(_WINDOW_SECONDS, most_seconds / (2 * _WINDOWS))
    medians: list[float] = []
    requests = 0
    while True:
        window: list[float] = []
        opened = time.perf_counter()
        while len(window) < _WINDOW_REQUESTS or time.perf_counter() - opened < window_seconds:
            sent = time.perf_counter()
            _call(client, plan, inputs)
            window.append(time.perf_counter() - sent)
        requests += len(window)
        medians.append(median(window))
        seconds = time.perf_counter() - started
        last = medians[-_WINDOWS:]
        enough = requests >= _ENOUGH_REQUESTS or seconds >= most_seconds / 2
        stable = len(last) == _WINDOWS and max(last) <= (1 + spread) * min(last)
        if (stable and enough) or (len(last) == _WINDOWS and seconds >= most_seconds):
            return WarmUp(seconds=seconds, requests=len(lengths) - 1 + requests, stable=stable)


def _drawn(tokens: Lengths, seed: int) -> list[int]:
    """Return the median, and lengths from the shortest to the longest, each once."""
    drawn = draw_lengths(tokens, _LENGTHS, np.random.default_rng(seed))
    return [max(1, round(tokens.median)), *sorted(set(drawn))]


def _call(client: Client, plan: Plan, inputs: Any) -> None:
    client.encode(inputs, model=plan.model, timeout=plan.timeout_seconds, **plan.asked)


def _inputs(info: ModelInfo, plan: Plan, tokens: int) -> Any:
    """Return vectors [B, T, D] or token ids [B, T] with random contents."""
    random, lengths = np.random.default_rng(plan.seed), [tokens] * plan.batch
    if X in info.inputs:
        return vectors(lengths, info.inputs[X].shape[-1], random)
    return token_ids(lengths, info.vocabulary or 1, random)
