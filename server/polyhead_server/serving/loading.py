"""Load the graphs of a version, in a thread of its own, while the server already listens."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
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
from polyhead_server.scheduling import CostModel, Lanes
from polyhead_server.scheduling.prior import measure_prior
from polyhead_server.serving.tokeniser import Tokeniser

_MAX_DOUBLED_WEIGHTS = 2**30
"""Weights of at most so many bytes are held twice: for lanes, and for a lone request."""
_MEASURED_BYTES = 256 * 2**20
"""The most working memory of a run that is only measured."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """One graph, ready to run."""

    signature: Signature
    lanes: Lanes
    wide: Lanes | None
    """A session whose runs have the threads of all lanes; None leaves all to the lanes."""
    tokeniser: Tokeniser | None

    def close(self) -> None:
        """Free its memory after its last run. May block for some moments."""
        for session in (self.lanes, self.wide):
            if session is not None:
                session.engine.close()


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
    lanes: int = 0,
    lost: Callable[[], None] = lambda: None,
) -> Iterator[Loaded | Failed]:
    """Load every graph of a version, one after the other. Blocks while it does.

    Args:
        version: The version.
        device: Where sessions run.
        threads: CPU threads of all runs of a graph together.
        lanes: How many batches of a graph run side by side; 0 chooses.
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
                    lanes=lanes,
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
    lanes: int,
    lost: Callable[[], None],
) -> Loaded | Failed:
    opened: list[Lanes] = []
    try:
        open_lanes = partial(_open, path, signature=signature, device=device, lost=lost)
        count = lanes or (threads if _may_double(signature.manifest, device) else device.default_lanes)
        if device.host_threads and count > 1:
            opened.append(open_lanes(threads=max(1, threads // count), count=count))
            opened.append(open_lanes(threads=threads))
        else:
            opened.append(open_lanes(threads=threads, count=count))
    except Exception as error:
        for session in opened:
            session.engine.close()
        return _failure(error)(name=signature.name, version=signature.version)
    return Loaded(
        signature=signature, lanes=opened[0], wide=opened[1] if opened[1:] else None, tokeniser=tokeniser
    )


def _open(
    path: Path,
    *,
    signature: Signature,
    device: Device,
    threads: int,
    count: int = 1,
    lost: Callable[[], None],
) -> Lanes:
    """Open a session, and run it a few times to know what runs cost."""
    engine = Engine(path, signature=signature, device=device, threads=threads, lost=lost)

    def run(batch: int, tokens: int) -> None:
        engine.run(engine.example(batch, tokens), engine.outputs)

    try:
        prior = measure_prior(
            run,
            max_tokens=signature.max_tokens,
            fits=lambda batch, tokens: signature.working_bytes(batch, tokens) <= _MEASURED_BYTES,
        )
    except Exception:
        engine.close()
        raise
    return Lanes(engine=engine, costs=CostModel(prior), count=count)


def _may_double(manifest: Manifest, device: Device) -> bool:
    """Return whether a graph gets a second session, for lanes, without being asked to."""
    weights = sum(file.bytes for file in manifest.files.values())  # the other files are small
    return device.host_threads and (weights <= _MAX_DOUBLED_WEIGHTS or not device.packed)


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
