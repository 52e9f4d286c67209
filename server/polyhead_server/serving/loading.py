"""Load the graphs of a version, in a thread of its own, while the server already listens."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from polyhead_server.engine.devices import Device, check_precision
from polyhead_server.engine.engine import Engine
from polyhead_server.engine.failures import is_out_of_memory
from polyhead_server.errors import DeviceError, RepositoryError, exhausted
from polyhead_server.observability.logs import LOGGER
from polyhead_server.repository import Manifest, VersionFolder, private_copy, verify
from polyhead_server.repository.signature import Signature, signature_of
from polyhead_server.scheduling import CostTable, SingleThreadSession
from polyhead_server.scheduling.tuning import Tuning, tune
from polyhead_server.serving.tokeniser import Tokeniser

_MAX_DOUBLED_WEIGHTS = 256 * 2**20
"""Weights of at most so many bytes are held twice where that raises the throughput."""
_SINGLE_THREAD_SHARE = 0.5
"""The single-thread session's share of the time to measure a graph."""
_MAX_RUNS = 8
"""The most single-thread runs at once: each takes memory of its own."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """One graph, ready to run."""

    signature: Signature
    engine: Engine
    costs: CostTable
    single_thread: SingleThreadSession | None
    """A session whose runs have one thread each; None leaves all to the engine."""
    tokeniser: Tokeniser | None

    def close(self) -> None:
        """Free its memory after its last run. May block for some moments."""
        self.engine.close()
        if self.single_thread is not None:
            self.single_thread.engine.stop()


@dataclass(frozen=True, kw_only=True)
class Failed:
    """One graph that cannot be served."""

    name: str
    version: int
    reason: str
    may_pass: bool = False
    """The machine lacked memory or room: the same files may load another time."""


def load(
    version: VersionFolder,
    *,
    device: Device,
    threads: int,
    tuning: Tuning = Tuning(),  # noqa: B008  # frozen
    runs: Callable[[Device], int] = lambda _device: 1,
    lost: Callable[[], None] = lambda: None,
) -> Iterator[Loaded | Failed]:
    """Load every graph of a version, one after the other. Blocks while it does.

    Args:
        version: The version.
        device: Where sessions run.
        threads: Threads of one run on the CPU.
        tuning: How the costs of runs are measured.
        runs: How many batches of a graph may run at once on a device.
        lost: Called, from any thread, when this process loses the device.

    Yields:
        One result for each graph, as soon as it is there.
    """
    manifest = version.manifest
    try:
        check_precision(manifest.precision, device)
        with private_copy(version.folder, manifest) as folder:
            verify(folder, manifest)
            for graph, reason in manifest.skipped.items():
                LOGGER.warning("%s: graph %s is not served: %s", manifest.name, graph, reason)
            tokeniser = None
            if file := manifest.tokenizer:
                path = folder / file.file
                tokeniser = Tokeniser(path, max_tokens=manifest.text_max_tokens, prompt=file.prompt)
            for graph in manifest.graphs:
                signature = signature_of(manifest, graph)
                path = folder / manifest.graphs[graph].file
                yield _load_graph(
                    path,
                    signature,
                    tokeniser,
                    device=device,
                    threads=threads,
                    tuning=tuning,
                    runs=runs,
                    lost=lost,
                )
    except Exception as error:
        failed = _failure(error)
        yield from (
            failed(name=manifest.served_name(graph), version=version.version) for graph in manifest.graphs
        )


def _load_graph(
    path: Path,
    signature: Signature,
    tokeniser: Tokeniser | None,
    *,
    device: Device,
    threads: int,
    tuning: Tuning,
    runs: Callable[[Device], int],
    lost: Callable[[], None],
) -> Loaded | Failed:
    engine = single_thread = None
    try:
        engine = Engine(path, signature=signature, device=device, threads=threads, lost=lost)
        tuning = replace(tuning, runs=runs(engine.device))
        seconds = tuning.seconds
        if has_single_thread := _may_have_single_thread(signature.manifest, device, threads):
            seconds *= 1 - _SINGLE_THREAD_SHARE
        costs = tune(engine, signature, threads=threads, tuning=replace(tuning, seconds=seconds))
        if has_single_thread:
            single_thread = _load_single_thread(path, signature, engine, threads, tuning)
    except Exception as error:
        if engine is not None:
            engine.close()
        return _failure(error)(name=signature.name, version=signature.version)
    return Loaded(
        signature=signature, engine=engine, costs=costs, single_thread=single_thread, tokeniser=tokeniser
    )


def _may_have_single_thread(manifest: Manifest, device: Device, threads: int) -> bool:
    """Return whether a second session, with one thread a run, is of use, and may hold the weights again."""
    weights = sum(file.bytes for file in manifest.files.values())  # the other files are small
    return device.host_threads and threads > 1 and (weights <= _MAX_DOUBLED_WEIGHTS or not device.packed)


def _load_single_thread(
    path: Path, signature: Signature, wide: Engine, threads: int, tuning: Tuning
) -> SingleThreadSession:
    runs = 1 if tuning.runs == 1 else max(tuning.runs, min(threads, _MAX_RUNS))
    tuning = replace(tuning, seconds=_SINGLE_THREAD_SHARE * tuning.seconds, runs=runs)
    engine = Engine(path, signature=signature, device=wide.device, threads=1)
    costs = tune(engine, signature, threads=1, tuning=tuning, beside=wide)
    return SingleThreadSession(engine=engine, costs=costs, runs=runs)


def _failure(error: Exception) -> Callable[..., Failed]:
    """Log an error; return how a graph failed by it. Reasons are our own words: the index shows them."""
    if isinstance(error, RepositoryError | DeviceError):
        reason = str(error)
        if error.__cause__ is not None:
            LOGGER.warning("%s: %s", error, error.__cause__)
    else:
        reason = "it could not be loaded; the server's log says why"
        LOGGER.exception("a model could not be loaded")
    return partial(Failed, reason=reason, may_pass=_may_pass(error))


def _may_pass(error: BaseException | None) -> bool:
    return error is not None and (exhausted(error) or is_out_of_memory(error) or _may_pass(error.__cause__))


def in_thread(function: Callable[[], T]) -> asyncio.Future[T]:
    """Call a function in a daemon thread of its own: a stop signal must not wait for a large model."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(how: Callable[[Any], None], outcome: object) -> None:
        if not future.done():
            how(outcome)

    def run() -> None:
        try:
            settled = partial(settle, future.set_result, function())
        except BaseException as error:
            settled = partial(settle, future.set_exception, error)
        with suppress(RuntimeError):  # the loop is closed: the server has stopped meanwhile
            loop.call_soon_threadsafe(settled)

    threading.Thread(target=run, name="loading", daemon=True).start()
    return future
