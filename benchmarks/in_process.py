"""The limit: onnxruntime in this process, with nothing around it.

Runs as a process of its own and prints one JSON object, so that no thread of the load generator is left
behind beside it.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from encoders import ENCODERS, BenchEncoder, equal_lengths, mixed_lengths, sequences

BATCH_SIZES = (1, 2, 4, 8, 16, 32)

Feed = dict[str, NDArray[np.generic]]


def feed_of(batch: Sequence[NDArray[np.float32]]) -> Feed:
    """Pads sequences [T_i, D] to one input of the graph."""
    lengths = np.array([len(sequence) for sequence in batch], dtype=np.int32)
    x = np.zeros((len(batch), int(lengths.max()), batch[0].shape[1]), dtype=np.float32)
    for row, sequence in zip(x, batch, strict=True):
        row[: len(sequence)] = sequence
    return {"x": x, "lengths": lengths}


def median_and_rate(run: Callable[[], object], seconds: float) -> tuple[float, float]:
    """Median seconds of one call, and calls a second."""
    for _ in range(3):
        run()
    spent: list[float] = []
    start = time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds or len(spent) < 5:
        before = time.perf_counter()
        run()
        spent.append(time.perf_counter() - before)
    return float(np.median(spent)), len(spent) / elapsed


def best_equal(session: ort.InferenceSession, encoder: BenchEncoder, seconds: float) -> dict[str, float]:
    """Latency at batch 1, and the most sequences a second at any batch size."""
    rates: dict[int, float] = {}
    single = 0.0
    for size in BATCH_SIZES:
        feed = feed_of(sequences(encoder, equal_lengths(encoder, size)))
        median, rate = median_and_rate(lambda feed=feed: session.run(None, feed), seconds)  # type: ignore[misc]
        rates[size] = rate * size
        if size == 1:
            single = median
    best = max(rates, key=lambda size: rates[size])
    return {"p50_ms": single * 1e3, "best_rate": rates[best], "best_batch": best}


def best_mixed(session: ort.InferenceSession, encoder: BenchEncoder, seconds: float) -> dict[str, float]:
    """The most sequences a second over mixed lengths, with the best of several ways to batch them.

    Searched: every batch size, over the sequences as they come and sorted by length.
    """
    count = 96
    as_they_come = sequences(encoder, mixed_lengths(count))
    by_length = sorted(as_they_come, key=len)
    best: dict[str, float] = {"best_rate": 0.0}
    for order, ordered in enumerate((as_they_come, by_length)):
        for size in BATCH_SIZES:
            feeds = [feed_of(ordered[start : start + size]) for start in range(0, count, size)]
            start = time.perf_counter()
            rounds = 0
            while time.perf_counter() - start < seconds or rounds == 0:
                for feed in feeds:
                    session.run(None, feed)
                rounds += 1
            rate = rounds * count / (time.perf_counter() - start)
            if rate > best["best_rate"]:
                best = {"best_rate": rate, "best_batch": size, "sorted": order}
    return best


def main() -> None:
    """Measures one encoder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--graph", default="model.onnx")
    parser.add_argument("--seconds", type=float, default=1.0)
    arguments = parser.parse_args()
    (encoder,) = (each for each in ENCODERS if each.name == arguments.encoder)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    # All cores, no spinning between operators: what a server that shares its cores would be given.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(
        arguments.models / encoder.name / "1" / arguments.graph, options, providers=["CPUExecutionProvider"]
    )
    measured = {
        "equal": best_equal(session, encoder, arguments.seconds),
        "mixed": best_mixed(session, encoder, arguments.seconds),
    }
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
