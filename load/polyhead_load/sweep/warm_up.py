"""Warming up: a configuration is called until it answers equally fast.

Shape letters: B batch, T tokens, D d_model.
"""

import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from polyhead_client import Client, ModelInfo
from polyhead_client.options import parse_indices
from polyhead_load.plan import Plan

_WINDOWS = 3
_WINDOW_SECONDS = 0.3
_WINDOW_REQUESTS = 2
_ENOUGH_REQUESTS = 50


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """How it went."""

    seconds: float
    requests: int
    stable: bool
    """The medians of the last three windows agreed."""


def warm_up(client: Client, plan: Plan, most_seconds: float, spread: float = 0.1) -> WarmUp:
    """Calls what a plan calls, one request after the other, until three windows agree.

    A window is 0.3 s (less where `most_seconds` is below 1.8), and two requests at least; together they
    have 50 requests, or took half of `most_seconds`. The rule of Triton's perf_analyzer, over medians.

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
    inputs = _inputs(info, plan)
    started = time.perf_counter()
    window_seconds = min(_WINDOW_SECONDS, most_seconds / (2 * _WINDOWS))
    medians: list[float] = []
    requests = 0
    while True:
        window: list[float] = []
        opened = time.perf_counter()
        while len(window) < _WINDOW_REQUESTS or time.perf_counter() - opened < window_seconds:
            sent = time.perf_counter()
            client.encode(
                inputs,
                model=plan.model,
                attention=_layers(plan),
                heads=None if plan.heads is None else parse_indices("heads", plan.heads),
                queries=None if plan.queries is None else parse_indices("queries", plan.queries),
                dtype=plan.dtype,  # type: ignore[arg-type]  # one of three, as the sweep's file says
                timeout=plan.timeout_seconds,
            )
            window.append(time.perf_counter() - sent)
        requests += len(window)
        medians.append(median(window))
        seconds = time.perf_counter() - started
        last = medians[-_WINDOWS:]
        enough = requests >= _ENOUGH_REQUESTS or seconds >= most_seconds / 2
        stable = len(last) == _WINDOWS and max(last) <= (1 + spread) * min(last)
        if (stable and enough) or (len(last) == _WINDOWS and seconds >= most_seconds):
            return WarmUp(seconds=seconds, requests=requests, stable=stable)


def _inputs(info: ModelInfo, plan: Plan) -> Any:
    """Vectors [B, T, D] or token ids [B, T] with random contents."""
    tokens = plan.tokens if isinstance(plan.tokens, int) else round(plan.tokens.median)
    random = np.random.default_rng(plan.seed)
    if "x" in info.inputs:
        width = info.inputs["x"].shape[-1]
        return random.standard_normal((plan.batch, tokens, width), dtype=np.float32)
    return random.integers(info.vocabulary or 1, size=(plan.batch, tokens))


def _layers(plan: Plan) -> bool | list[int] | None:
    return True if plan.attention == "all" else plan.attention
