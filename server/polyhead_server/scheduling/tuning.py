"""Get the costs of a loaded graph on this machine: measured at the first start, cached for the next."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnxruntime as ort

from polyhead_server.engine.cpus import available_cpus, cpu_name
from polyhead_server.engine.devices import Device
from polyhead_server.engine.engine import Engine
from polyhead_server.errors import EngineError, TooLargeError
from polyhead_server.observability.logs import LOGGER
from polyhead_server.repository.signature import Signature
from polyhead_server.scheduling.cache import Key, read_costs, write_costs
from polyhead_server.scheduling.costs import CostTable, Measured, Points
from polyhead_server.scheduling.file_lock import file_lock
from polyhead_server.scheduling.measuring import measure, measure_gains

# Points take little memory: it is the time of small and middle sizes that decides how to batch.
_MEASURED_BYTES = 256 * 2**20
_FOR_GAINS = 0.3
"""The share of the measuring time for runs at once, if there are any."""
_FOR_GAINS_BESIDE = 0.5
"""The same if it decides between two sessions."""
_LONGEST_BATCH = 0.005
"""With one thread, runs of this many seconds gain next to nothing from batching."""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """How costs are measured, and how large batches may become."""

    seconds: float = 2.0
    """How long measuring a graph may take."""
    cache: Path | None = None
    """Where costs are kept, if anywhere."""
    runs: int = 1
    """How many runs go at once."""
    workers: int = 1
    """Processes that share the device."""
    max_batch_tokens: int = 16_384
    max_working_bytes: int = 2 * 2**30


def tune(
    engine: Engine, signature: Signature, *, threads: int, tuning: Tuning, beside: Engine | None = None
) -> CostTable:
    """Return the costs of a graph, cached or measured now. Also warms the engine up.

    Args:
        engine: The loaded graph.
        signature: Its inputs and outputs.
        threads: Threads of one run on the CPU.
        tuning: How to measure.
        beside: The same graph with more threads a run, which gains of runs at once are relative to.
    """
    key = _key(engine, signature, threads, tuning, single_thread=beside is not None)
    measured = _cached(tuning, key)
    if measured is None:
        with _lock(engine.device, tuning):
            # Another process of this GPU may have measured meanwhile.
            measured = _cached(tuning, key) or _measure(engine, signature, tuning, key, beside)
    _warm_up(engine, measured.points)
    return CostTable(
        measured.points, rows=lambda tokens: _most_rows(signature, tokens, tuning), gains=measured.gains
    )


def _cached(tuning: Tuning, key: Key) -> Measured | None:
    return None if tuning.cache is None else read_costs(tuning.cache, key)


def _lock(device: Device, tuning: Tuning) -> AbstractContextManager[None]:
    """Let one process at a time measure on a GPU: at once they would measure each other."""
    if device.gpu is None or tuning.cache is None:
        return nullcontext()
    return file_lock(tuning.cache, re.sub(r"[^\w.-]+", "-", device.gpu))


def _measure(
    engine: Engine, signature: Signature, tuning: Tuning, key: Key, beside: Engine | None
) -> Measured:
    share = _FOR_GAINS if beside is None else _FOR_GAINS_BESIDE
    for_gains = share * tuning.seconds if tuning.runs > 1 else 0.0
    points = measure(
        partial(_run, engine),
        max_tokens=signature.max_tokens,
        fits=lambda batch, tokens: (
            signature.working_bytes(batch, tokens) <= min(_MEASURED_BYTES, tuning.max_working_bytes)
        ),
        budget=tuning.seconds - for_gains,
        longest_batch=float("inf") if beside is None else _LONGEST_BATCH,
    )
    gains = measure_gains(
        partial(_run, engine),
        points,
        runs=tuning.runs,
        alone=None if beside is None else partial(_run, beside),
        budget=for_gains,
    )
    # The arena need not keep the memory of the largest points.
    for one in (engine, beside):
        if one is not None:
            one.shrink()
    measured = Measured(points=points, gains=gains)
    if tuning.cache is not None:
        write_costs(tuning.cache, key, measured)
    LOGGER.debug("measured %d points of %s", len(points), signature.name)
    return measured


def _run(engine: Engine, batch: int, tokens: int) -> Callable[[], object]:
    feeds = engine.example(batch, tokens)
    return lambda: engine.run(feeds, engine.outputs)


def _warm_up(engine: Engine, points: Points) -> None:
    """Run every measured T once at B = 1, for some tenths of a second at most, by the measured times."""
    left = 0.3
    for batch, tokens in sorted(points):
        left -= 2 * points[batch, tokens]
        if batch > 1 or left < 0:
            return
        try:
            engine.run(engine.example(batch, tokens), engine.outputs)
        except (EngineError, TooLargeError):
            LOGGER.debug("a warm-up run failed", exc_info=True)
            return


def _most_rows(signature: Signature, tokens: int, tuning: Tuning) -> int:
    """Return the largest batch at T."""
    by_memory = tuning.max_working_bytes // max(1, signature.working_bytes(1, tokens))
    return max(1, min(tuning.max_batch_tokens // tokens, by_memory))


def _key(engine: Engine, signature: Signature, threads: int, tuning: Tuning, *, single_thread: bool) -> Key:
    device = engine.device
    gpu = device.gpu
    return Key(
        manifest=signature.manifest.digest,
        graph=signature.graph,
        provider=device.provider,
        library=ort.__version__,
        processor=cpu_name() if gpu is None else f"{cpu_name()}, {gpu}",
        cpus=available_cpus(),
        threads=threads,
        runs=tuning.runs,
        packed=device.packed,
        single_thread=single_thread,
        workers=1 if gpu is None else tuning.workers,
    )
