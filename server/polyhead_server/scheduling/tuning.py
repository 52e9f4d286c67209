"""What runs of a loaded graph cost on this machine: measured at the first start, remembered for the next."""

import hashlib
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnxruntime as ort

from polyhead_server.engine.devices import CPU, Device
from polyhead_server.engine.engine import Engine
from polyhead_server.engine.gpus import gpu_name
from polyhead_server.engine.threads import available_cpus
from polyhead_server.errors import EngineError, TooLargeError
from polyhead_server.observability.logs import LOGGER
from polyhead_server.repository.signature import Signature
from polyhead_server.scheduling.cache import Key, processor, read_costs, write_costs
from polyhead_server.scheduling.costs import CostTable, Measured, Points
from polyhead_server.scheduling.file_lock import turn
from polyhead_server.scheduling.measuring import measure, measure_gains

# Points take little memory: it is the time of small and middle sizes that decides how to batch.
_MEASURED_BYTES = 256 * 2**20
_FOR_GAINS = 0.3
"""This share of the time to measure goes to runs at once, where there are any."""
_FOR_GAINS_BESIDE = 0.5
"""The same where it decides between two sessions."""
_LONGEST_BATCH = 0.005
"""For one thread, a batch gains next to nothing from so many seconds on."""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """How costs are measured, and how large batches may become."""

    seconds: float = 2.0
    """How long measuring a graph may take."""
    cache: Path | None = None
    """Where costs are kept; None: nowhere."""
    runs: int = 1
    """How many go at once."""
    workers: int = 1
    """Processes that share the device."""
    max_batch_tokens: int = 16_384
    max_working_bytes: int = 2 * 2**30


def tune(
    engine: Engine, signature: Signature, *, threads: int, tuning: Tuning, beside: Engine | None = None
) -> CostTable:
    """The costs of a graph: as they were kept, or measured now. Also warms the engine up.

    Args:
        engine: The graph, loaded.
        signature: What it is.
        threads: Threads of one run on the CPU.
        tuning: How to measure.
        beside: The same graph with more threads a run, which the gains of runs at once are over.
    """
    key = _key(engine, signature, threads, tuning, single_thread=beside is not None)
    measured = _remembered(tuning, key)
    if measured is None:
        with _turn(engine.device, tuning):
            # Another process of this device may have measured meanwhile.
            measured = _remembered(tuning, key) or _measure(engine, signature, tuning, key, beside)
    _warm_up(engine, measured.points)
    return CostTable(
        measured.points, rows=lambda tokens: _most_rows(signature, tokens, tuning), gains=measured.gains
    )


def _remembered(tuning: Tuning, key: Key) -> Measured | None:
    return None if tuning.cache is None else read_costs(tuning.cache, key)


def _turn(device: Device, tuning: Tuning) -> AbstractContextManager[None]:
    if device.provider == CPU or tuning.cache is None:
        return nullcontext()
    return turn(tuning.cache, re.sub(r"[^\w.-]+", "-", gpu_name(device.card)))


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
    # The largest points were measured for the sake of their time; the arena need not keep their memory.
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
    """Runs every length once that was measured, alone, so that the first callers do not pay for it.

    Costs a few tenths of a second at most: the kept times say which runs are short enough.
    """
    left = 0.3
    for batch, tokens in sorted(points):
        left -= 2 * points[batch, tokens]
        if batch > 1 or left < 0:
            return
        try:
            engine.run(engine.example(batch, tokens), engine.outputs)
        except (EngineError, TooLargeError):
            LOGGER.debug("a run to warm up failed", exc_info=True)
            return


def _most_rows(signature: Signature, tokens: int, tuning: Tuning) -> int:
    """The largest batch at T that is put together."""
    by_memory = tuning.max_working_bytes // max(1, signature.working_bytes(1, tokens))
    return max(1, min(tuning.max_batch_tokens // tokens, by_memory))


def _key(engine: Engine, signature: Signature, threads: int, tuning: Tuning, *, single_thread: bool) -> Key:
    manifest = signature.manifest.model_dump_json().encode()
    device = engine.device
    on_card = device.provider != CPU
    return Key(
        manifest=hashlib.sha256(manifest).hexdigest(),
        graph=signature.graph,
        provider=engine.provider,
        library=ort.__version__,
        processor=f"{processor()}, {gpu_name(device.card)}" if on_card else processor(),
        cpus=available_cpus(),
        threads=threads,
        runs=tuning.runs,
        packed=device.packed,
        single_thread=single_thread,
        workers=tuning.workers if on_card else 1,
    )
