"""Load the graphs of versions, in threads of their own, while the server already listens."""

import asyncio
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from polyhead_server.engine.allocator import use_huge_pages
from polyhead_server.engine.dataflow import outputs_after
from polyhead_server.engine.device import Device
from polyhead_server.engine.devices import check_precision
from polyhead_server.engine.engine import Engine, Runner
from polyhead_server.engine.failures import is_out_of_memory
from polyhead_server.errors import DeviceError, DownloadError, RepositoryError, exhausted
from polyhead_server.observability.logs import LOGGER
from polyhead_server.repository.copies import fetch, private_copy
from polyhead_server.repository.integrity import verify
from polyhead_server.repository.manifest import Manifest
from polyhead_server.repository.scanning import VersionFolder
from polyhead_server.repository.signature import Signature, signature_of
from polyhead_server.scheduling import CostModel, Lanes
from polyhead_server.scheduling.costs import DOUBLING_TOKENS, LARGE_SIZES, SIZES, Size, measure_prior
from polyhead_server.serving.drift import measure_drift, same_bits
from polyhead_server.serving.tokeniser import Tokeniser, open_tokeniser

_MAX_DOUBLED_WEIGHTS = 2**30
"""Weights of at most so many bytes are held twice: for lanes, and for a lone request."""
_MEASURED_BYTES = 256 * 2**20
"""The most working memory of a run that is only measured."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, eq=False)
class Loaded:
    """One graph, ready to run."""

    signature: Signature
    lanes: Lanes
    wide: Lanes | None = None
    """A session whose runs have the threads of all lanes; None leaves all to the lanes."""
    tokeniser: Tokeniser | None = None
    same_bits: tuple[str, ...] = ()
    """The outputs of which a sequence gets the same bits alone and in a batch, with few threads and many."""
    initializer: Callable[[], object] = lambda: None
    """What each thread of the lanes does before all else."""
    drift: dict[str, Any] = field(default_factory=dict)
    """What computing in another precision than fp32 changes; empty in fp32, and until it is measured."""

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
    error: Exception
    """What happened. The log may show it, the index does not."""

    @property
    def reason(self) -> str:
        """Why, in our own words: the index shows it."""
        if isinstance(self.error, RepositoryError | DeviceError):
            return str(self.error)
        return "it could not be loaded; the server's log says why"

    @property
    def may_pass(self) -> bool:
        """The machine lacked memory or room, or the storage did not answer: it may load another time."""
        error: BaseException | None = self.error
        while error is not None:
            if isinstance(error, DownloadError) or exhausted(error) or is_out_of_memory(error):
                return True
            error = error.__cause__
        return False


@dataclass(kw_only=True, eq=False)
class Loader:
    """Load versions, several side by side, and open as many sessions at once as there are threads."""

    device: Device
    """Where sessions run."""
    threads: int
    """CPU threads of all runs of a graph together."""
    lanes: int = 0
    """How many batches of a graph run side by side; 0 chooses."""
    lost: Callable[[], None] = lambda: None
    """Called, from any thread, when this process loses the device."""

    def __post_init__(self) -> None:
        self._slots = threading.Semaphore(self.threads)
        self._measuring = threading.Lock()  # one at a time, beside what is loaded and served

    def load(self, version: VersionFolder) -> Generator[Loaded | Failed]:
        """Load every graph of a version, one after the other. Blocks while it does.

        What another precision changes is measured afterwards, in a thread of its own.

        Yields:
            One result for each graph, as soon as it is there.
        """
        manifest = version.manifest
        left = list(manifest.graphs)
        try:
            check_precision(manifest.precision, self.device)
            signatures = {graph: signature_of(manifest, graph) for graph in manifest.graphs}
            if version.source is not None:
                fetch(version.source, version.folder, manifest)
            with ExitStack() as copies:
                folder = copies.enter_context(private_copy(version.folder, manifest))
                verify(folder, manifest)
                for graph, reason in manifest.skipped.items():
                    LOGGER.warning("%s: graph %s is not served: %s", manifest.name, graph, reason)
                tokeniser = open_tokeniser(folder, manifest)
                loaded: list[Loaded] = []
                for graph, signature in signatures.items():
                    result = self._load_graph(folder / manifest.graphs[graph].file, signature, tokeniser)
                    left.remove(graph)
                    yield result
                    if isinstance(result, Loaded):
                        loaded.append(result)
                if self.device.compute_precision != "fp32":
                    start(partial(self._measure_drifts, folder, loaded, copies.pop_all()))
        except Exception as error:
            for graph in left:
                yield Failed(name=manifest.served_name(graph), version=version.version, error=error)

    def _load_graph(self, path: Path, signature: Signature, tokeniser: Tokeniser | None) -> Loaded | Failed:
        device, threads = self.device, self.threads
        count = self.lanes or (threads if _may_double(signature.manifest, device) else device.default_lanes)
        sessions = [(threads, count)]  # threads of a run, and lanes
        if device.host_threads and count > 1:
            sessions = [(max(1, threads // count), count), (threads, 1)]
        opening = [start(partial(self._open, path, signature, *each)) for each in sessions]
        wait(opening)
        engines = [one.result() for one in opening if one.exception() is None]
        try:
            if errors := [error for one in opening if (error := one.exception()) is not None]:
                raise errors[0]
            if device.host_threads:
                use_huge_pages()  # before its runs are timed
            prior = self._measure(engines[0], signature)
            same = self._same_bits(path, engines, signature)
        except Exception as error:
            for engine in engines:
                engine.close()
            if isinstance(error, DeviceError):
                error.args = (f"{error}{without(signature)}",)
            return Failed(name=signature.name, version=signature.version, error=error)
        model = partial(CostModel, doubling_tokens=DOUBLING_TOKENS if self.device.host_threads else inf)
        wide = None
        if engines[1:]:
            # As if threads shared the work without loss: runs soon show what it really takes. A price that
            # was too high would stay, as nothing would run there.
            shared = {size: seconds * sessions[0][0] / threads for size, seconds in prior.items()}
            wide = Lanes(engine=engines[1], costs=model(shared))
        return Loaded(
            signature=signature,
            lanes=Lanes(engine=engines[0], costs=model(prior), count=count),
            wide=wide,
            tokeniser=tokeniser,
            same_bits=same,
            initializer=engines[0].warm_up if not device.host_threads else lambda: None,
        )

    def _same_bits(self, path: Path, engines: Sequence[Engine], signature: Signature) -> tuple[str, ...]:
        """Return the outputs that keep their bits on this machine, and log the others.

        What rarely changes may not be met: the rest follows from the graph.
        """
        if not self.device.host_threads:  # a GPU's kernels differ with the number of rows
            return ()
        with self._slots:
            try:
                same = same_bits(engines, signature)
                moved = outputs_after(path, self.device.unsteady)
                if signature.manifest.precision == "int8" and self.device.compute_precision != "fp32":
                    moved = frozenset(same)  # by an operator that is not known
                same = tuple(name for name in same if name not in moved)
            except Exception as error:
                LOGGER.warning("%s: what keeps its bits was not measured: %s", signature.name, error)
                return ()
        if others := [spec.name for spec in signature.results if spec.name not in same]:
            LOGGER.warning(
                "%s: batch-mates and threads change last digits of %s on this machine, or more in int8",
                signature.name,
                ", ".join(others),
            )
        return same

    def _open(self, path: Path, signature: Signature, threads: int, lanes: int) -> Engine:
        with self._slots:
            return Engine(
                path,
                signature=signature,
                device=self.device,
                threads=threads,
                lanes=lanes,
                lost=self.lost,
            )

    def _measure(self, engine: Engine, signature: Signature) -> Mapping[Size, float]:
        """Run a few sizes to know what runs cost."""
        with self._slots:
            return measure_prior(
                lambda batch, tokens: engine.run(signature.example(batch, tokens), engine.outputs),
                max_tokens=signature.max_tokens,
                sizes=SIZES if self.device.host_threads else LARGE_SIZES,
                fits=lambda batch, tokens: signature.working_bytes(batch, tokens) <= _MEASURED_BYTES,
            )

    def _measure_drifts(self, folder: Path, loaded: Sequence[Loaded], copies: ExitStack) -> None:
        """Compare sessions with others that compute in fp32, which are closed again, as are the copies."""
        with copies, self._measuring:
            for one in loaded:
                signature = one.signature
                path = folder / signature.manifest.graphs[signature.graph].file
                try:
                    one.drift.update(drift_on(self.device, path, one.lanes.engine, signature, one.tokeniser))
                except Exception as error:  # such as: it went out of service meanwhile
                    LOGGER.warning(
                        "%s: what its precision changes was not measured: %s", signature.name, error
                    )


def drift_on(
    device: Device, path: Path, engine: Runner, signature: Signature, tokeniser: Tokeniser | None
) -> dict[str, Any]:
    """Measure what a device's precision of computation changes.

    Args:
        device: Where the engine runs.
        path: The graph's file.
        engine: Runs it.
        signature: Its inputs and outputs.
        tokeniser: The family's, if it has one.

    Raises:
        EngineError: A run failed.
    """
    exact = Engine(path, signature=signature, device=replace(device, compute_precision="fp32"), threads=1)
    try:
        drift = measure_drift(engine, exact, signature, tokeniser)
    finally:
        exact.close()
    for name, cosine in drift["cosines"].items():
        LOGGER.info(
            "%s: %s in %s has a cosine of at least %s with fp32, %s in the mean, on %s",
            *(signature.name, name, device.compute_precision, *cosine.values(), drift["inputs"]),
        )
    return drift


def _may_double(manifest: Manifest, device: Device) -> bool:
    """Return whether a graph gets a second session, for lanes, without being asked to."""
    weights = sum(file.bytes for file in manifest.files.values())  # the other files are small
    return device.host_threads and (weights <= _MAX_DOUBLED_WEIGHTS or not device.packed)


def without(signature: Signature) -> str:
    """Say which outputs a family lacks without one of its graphs, to end a sentence."""
    manifest = signature.manifest
    others = {
        tensor.name
        for graph, record in manifest.graphs.items()
        if graph != signature.graph
        for tensor in record.outputs
    }
    lost = [tensor.name for tensor in signature.results if tensor.name not in others]
    return f"; the family lacks {', '.join(lost)} without it" if lost else ""


def start(function: Callable[[], T]) -> Future[T]:
    """Call a function in a daemon thread of its own: a stop signal must not wait for a large model."""
    future: Future[T] = Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = function()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="loading", daemon=True).start()
    return future


def in_thread(function: Callable[[], T]) -> asyncio.Future[T]:
    """Call a function as `start` does, and await its result."""
    return asyncio.wrap_future(start(function))
