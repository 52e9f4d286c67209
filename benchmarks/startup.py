"""`make startup`: how soon a server answers, how fast at first, and how much memory a family takes.

The family is a trained MiniLM with both graphs. Its server takes turns with a process in which onnxruntime
opens the same two graphs and does nothing else.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from benchmarks.encoders import MINILM, export_minilm, infer_request
from benchmarks.frame import Condition, console, finish, markdown_table, options
from benchmarks.load_generator import channel_to, unary
from benchmarks.peers.graph import open_graph
from polyhead_load.sweep.server import started_server
from polyhead_proto import messages as pb

_TOKENS = 16
_FIRST = 10
"""Answers to each graph that count as the first ones."""
_STEADY = 100
"""Answers to each graph after as many others."""
_READY, _READY_PLUS_SECONDS = 1.5, 1.0
_FIRST_ANSWERS = 2.0
_MEMORY = 4.0
_TOLERANCE = 1e-4


@dataclass(frozen=True, kw_only=True)
class StartSample:
    """One start of a server, and of onnxruntime alone."""

    opened_seconds: float
    """Until onnxruntime had opened both graphs."""
    answered_seconds: float
    """From the start of the process until both graphs had answered rightly."""
    first_ms: float
    """The median of the first answers of the fast graph."""
    slowest_ms: float
    """The slowest of them."""
    steady_ms: float
    rss_mib: float
    """After these answers."""


def _open(
    graphs: Sequence[Path], feeds: dict[str, NDArray[np.generic]]
) -> tuple[float, list[NDArray[np.float32]]]:
    """Open graphs; return the seconds that it took, and the pooled output of each."""
    start = time.perf_counter()
    sessions = [open_graph(graph, 0) for graph in graphs]
    seconds = time.perf_counter() - start
    return seconds, [session.run(["pooled"], feeds)[0] for session in sessions]


def _start(models: Path) -> StartSample:
    """Start onnxruntime alone, then a server."""
    ids = np.random.default_rng(0).integers(1000, 20000, (1, _TOKENS))
    feeds: dict[str, NDArray[np.generic]] = {
        "input_ids": ids.astype(np.int64),
        "token_type_ids": np.zeros_like(ids),
        "lengths": np.array([_TOKENS], np.int32),
    }
    graphs = [models / MINILM / "1" / file for file in ("model.onnx", "attention.onnx")]
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        opened, expected = executor.submit(_open, graphs, feeds).result()
    requests = [
        infer_request(MINILM, feeds, {"pooled": None}),
        infer_request(f"{MINILM}.attention", feeds, {"pooled": None, "attention.0": None}),
    ]
    start = time.perf_counter()
    with started_server(models, ["--http-port", "off", "--log-level", "warning"]) as server:
        answered, fast_ms = asyncio.run(_answers(server.address, requests, expected))
        return StartSample(
            opened_seconds=opened,
            answered_seconds=answered - start,
            first_ms=median(fast_ms[:_FIRST]),
            slowest_ms=max(fast_ms[:_FIRST]),
            steady_ms=median(fast_ms[-_STEADY:]),
            rss_mib=server.memory_mib() or 0.0,
        )


async def _answers(
    address: str, requests: Sequence[bytes], expected: Sequence[NDArray[np.float32]]
) -> tuple[float, list[float]]:
    """Return when both graphs had answered rightly, and the fast one's latencies in ms from the first on."""
    async with channel_to(address) as channel:
        call = unary(channel)

        async def timed(request: bytes) -> tuple[bytes, float]:
            start = time.perf_counter()
            return await call(request), 1e3 * (time.perf_counter() - start)

        answers = [await timed(request) for request in requests]
        answered = time.perf_counter()
        for (reply, _), pooled in zip(answers, expected, strict=True):
            found = np.frombuffer(pb.ModelInferResponse.FromString(reply).raw_output_contents[0], np.float32)
            np.testing.assert_allclose(found, pooled.ravel(), atol=_TOLERANCE)
        fast_ms = [answers[0][1]]
        fast_ms += [(await timed(requests[0]))[1] for _ in range(_FIRST + 2 * _STEADY)]
        return answered, fast_ms


def judge(samples: Sequence[StartSample], weights_mib: float) -> list[Condition]:
    """Return what must hold of a server's start.

    Args:
        samples: Of several starts; the median one counts.
        weights_mib: Size of the family's weights.
    """
    allowed = [_READY * each.opened_seconds + _READY_PLUS_SECONDS for each in samples]
    answered = [each.answered_seconds for each in samples]
    first = median(each.first_ms / each.steady_ms for each in samples)
    rss = median(each.rss_mib for each in samples)
    return [
        Condition(
            name=f"first right answers ≤ {_READY:g} × the time that onnxruntime takes to open the graphs "
            f"+ {_READY_PLUS_SECONDS:g} s",
            holds=median(one - most for one, most in zip(answered, allowed, strict=True)) <= 0,
            seen=f"{median(answered):.2f} s, allowed {median(allowed):.2f} s",
        ),
        Condition(
            name=f"the first {_FIRST} answers ≤ {_FIRST_ANSWERS:g} × the steady state, by their medians",
            holds=first <= _FIRST_ANSWERS,
            seen=f"{first:.2f} ×",
        ),
        Condition(
            name=f"resident memory of the server ≤ {_MEMORY:g} × the weights file",
            holds=rss <= _MEMORY * weights_mib,
            seen=f"{rss:.0f} MiB = {rss / weights_mib:.2f} × {weights_mib:.0f} MiB",
        ),
    ]


def main() -> int:
    """Start servers, report, and return 0 if every condition holds."""
    chosen = options(__doc__, "startup", rounds=3).parse_args()
    export_minilm(chosen.models)
    with console.status("starting servers"):
        samples = [_start(chosen.models) for _ in range(chosen.rounds)]
    weights = chosen.models / MINILM / "1" / "weights.bin"
    return finish(
        chosen,
        "make startup",
        "Starting a server",
        markdown_table(
            {
                "onnxruntime opens both, s": f"{one.opened_seconds:.2f}",
                "first right answers, s": f"{one.answered_seconds:.2f}",
                f"first {_FIRST} answers, p50 ms": f"{one.first_ms:.1f}",
                "slowest, ms": f"{one.slowest_ms:.1f}",
                "steady state, p50 ms": f"{one.steady_ms:.1f}",
                "resident memory, MiB": f"{one.rss_mib:.0f}",
            }
            for one in samples
        ),
        conditions=judge(samples, weights.stat().st_size / 2**20),
        intro=(
            "A trained MiniLM with both graphs, in turn with a process in which onnxruntime opens the same",
            "two.",
        ),
        facts={"samples": samples},
    )


if __name__ == "__main__":
    sys.exit(main())
