"""What runs of a loaded graph cost on this machine: measured at the first start, remembered for the next."""

import hashlib
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import onnxruntime as ort

from polyhead_server.cards import card_name
from polyhead_server.devices import CPU, Device
from polyhead_server.engine import Engine
from polyhead_server.errors import EngineError, TooLargeError
from polyhead_server.logs import LOGGER
from polyhead_server.scheduling.cache import Key, processor, read_costs, write_costs
from polyhead_server.scheduling.costs import CostTable, Measured, Points
from polyhead_server.scheduling.measuring import measure, measure_gains
from polyhead_server.scheduling.turns import turn
from polyhead_server.signature import Signature
from polyhead_server.threads import available_cpus

# Points take little memory: it is the time of small and middle sizes that decides how to batch.
_MEASURED_BYTES = 256 * 2**20
_FOR_GAINS = 0.3
"""This share of the time to measure goes to runs at once, where there are any."""
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
    narrow: bool = False
    """Each run has one thread, beside a session whose runs have more."""
    workers: int = 1
    """Processes that share the device."""
    max_batch_tokens: int = 16_384
    max_working_bytes: int = 2 * 2**30


def tune(engine: Engine, signature: Signature, *, threads: int, tuning: Tuning) -> CostTable:
    """The costs of a graph: as they were kept, or measured now. Also warms the engine up.

    Args:
        engine: The graph, loaded.
        signature: What it is.
        threads: Threads of one run on the CPU.
        tuning: How to measure.
    """
    key = _key(engine, signature, threads, tuning)
    measured = _remembered(tuning, key)
    if measured is None:
        with _turn(engine.device, tuning):
            # Another process of this device may have measured meanwhile.
            measured = _remembered(tuning, key) or _measure(engine, signature, tuning, key)
    _warm_up(engine, measured.points)
    engine.serve()
    return CostTable(
        measured.points, rows=lambda tokens: _most_rows(signature, tokens, tuning), gains=measured.gains
    )


def _remembered(tuning: Tuning, key: Key) -> Measured | None:
    return None if tuning.cache is None else read_costs(tuning.cache, key)


def _turn(device: Device, tuning: Tuning) -> AbstractContextManager[None]:
    if device.provider == CPU or tuning.cache is None:
        return nullcontext()
    return turn(tuning.cache, re.sub(r"[^\w.-]+", "-", card_name(device.card)))


def _measure(engine: Engine, signature: Signature, tuning: Tuning, key: Key) -> Measured:
    for_gains = _FOR_GAINS * tuning.seconds if tuning.runs > 1 else 0.0
    points = measure(
        lambda batch, tokens: _run(engine, batch, tokens),
        max_tokens=signature.max_tokens,
        fits=lambda batch, tokens: (
            signature.working_bytes(batch, tokens) <= min(_MEASURED_BYTES, tuning.max_working_bytes)
        ),
        budget=tuning.seconds - for_gains,
        longest_batch=_LONGEST_BATCH if tuning.narrow else float("inf"),
    )
    gains = measure_gains(
        lambda batch, tokens: _run(engine, batch, tokens),
        points,
        runs=tuning.runs,
        budget=for_gains,
        fading=not tuning.narrow,
    )
    # The largest points were measured for the sake of their time; the arena need not keep their memory.
    engine.shrink()
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


def _key(engine: Engine, signature: Signature, threads: int, tuning: Tuning) -> Key:
    manifest = signature.manifest.model_dump_json().encode()
    device = engine.device
    on_card = device.provider != CPU
    return Key(
        manifest=hashlib.sha256(manifest).hexdigest(),
        graph=signature.graph,
        provider=f"{engine.provider} with CUDA graphs" if device.graphs else engine.provider,
        library=ort.__version__,
        processor=f"{processor()}, {card_name(device.card)}" if on_card else processor(),
        cpus=available_cpus(),
        threads=threads,
        runs=tuning.runs,
        packed=device.packed,
        narrow=tuning.narrow,
        workers=tuning.workers if on_card else 1,
    )
