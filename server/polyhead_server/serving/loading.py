"""Loads a repository's models in a thread of their own, while the server already listens."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

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

_MOST_WEIGHTS = 256 * 2**20
"""Up to so many bytes of weights are worth holding twice to get more done."""
_FOR_SINGLE_THREAD = 0.5
"""Of the time in which a graph is measured."""
_MOST_RUNS = 8
"""With one thread each; every one takes memory of its own."""


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
        """Gives back its memory, after its last run. May block for some moments."""
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
    """The machine lacked memory or room, so that the same files may be loaded another time."""


def load(
    versions: Sequence[VersionFolder],
    *,
    device: Device,
    threads: int,
    tuning: Tuning | None = None,
    runs: Callable[[Device], int] = lambda _device: 1,
    lost: Callable[[], None] = lambda: None,
) -> Iterator[Loaded | Failed]:
    """Loads every graph of every version, one after the other. Blocks while it does.

    Args:
        versions: What to load, in this order.
        device: Where sessions run.
        threads: Threads of one run on the CPU.
        tuning: How the costs of runs are measured.
        runs: How many batches of a graph go at once, by the device as it is used.
        lost: Called, from any thread, when the device is lost to this process.

    Yields:
        One result for each graph, as soon as it is there.
    """
    for version in versions:
        manifest = version.manifest
        try:
            check_precision(manifest.precision, device)
            with private_copy(version.folder, manifest) as folder:
                yield from _load_graphs(
                    folder,
                    manifest,
                    device=device,
                    threads=threads,
                    tuning=tuning or Tuning(),
                    runs=runs,
                    lost=lost,
                )
        except Exception as error:
            reason = _reason(error)
            yield from (
                Failed(
                    name=manifest.served_name(graph),
                    version=version.version,
                    reason=reason,
                    may_pass=_may_pass(error),
                )
                for graph in manifest.graphs
            )


def _load_graphs(
    folder: Path,
    manifest: Manifest,
    *,
    device: Device,
    threads: int,
    tuning: Tuning,
    runs: Callable[[Device], int],
    lost: Callable[[], None],
) -> Iterator[Loaded | Failed]:
    verify(folder, manifest)
    for graph, reason in manifest.skipped.items():
        LOGGER.warning("%s: graph %s is not served: %s", manifest.name, graph, reason)
    tokeniser = None
    if manifest.tokenizer is not None:
        tokeniser = Tokeniser(
            folder / manifest.tokenizer.file,
            max_tokens=manifest.text_max_tokens,
            prompt=manifest.tokenizer.prompt,
        )
    for graph, record in manifest.graphs.items():
        signature = signature_of(manifest, graph)
        engine = None
        try:
            path = folder / record.file
            engine = Engine(path, signature=signature, device=device, threads=threads, lost=lost)
            tuning = replace(tuning, runs=runs(engine.device))
            seconds = tuning.seconds
            if may_have_single_thread := _may_have_single_thread(manifest, device, threads):
                seconds *= 1 - _FOR_SINGLE_THREAD
            costs = tune(engine, signature, threads=threads, tuning=replace(tuning, seconds=seconds))
            single_thread = (
                _single_thread(path, signature, engine, threads, tuning) if may_have_single_thread else None
            )
        except Exception as error:
            if engine is not None:
                engine.close()
            yield Failed(
                name=signature.name,
                version=signature.version,
                reason=_reason(error),
                may_pass=_may_pass(error),
            )
        else:
            yield Loaded(
                signature=signature,
                engine=engine,
                costs=costs,
                single_thread=single_thread,
                tokeniser=tokeniser,
            )


def _may_have_single_thread(manifest: Manifest, device: Device, threads: int) -> bool:
    """A second session, with one thread a run, may be of use, and the weights may be held twice."""
    weights = sum(file.bytes for file in manifest.files.values())  # the other files are small
    return device.host_threads and threads > 1 and (weights <= _MOST_WEIGHTS or not device.packed)


def _single_thread(
    path: Path, signature: Signature, wide: Engine, threads: int, tuning: Tuning
) -> SingleThreadSession:
    runs = 1 if tuning.runs == 1 else max(tuning.runs, min(threads, _MOST_RUNS))
    tuning = replace(tuning, seconds=_FOR_SINGLE_THREAD * tuning.seconds, runs=runs)
    engine = Engine(path, signature=signature, device=wide.device, threads=1)
    costs = tune(engine, signature, threads=1, tuning=tuning, beside=wide)
    return SingleThreadSession(engine=engine, costs=costs, runs=runs)


def _may_pass(error: BaseException | None) -> bool:
    if error is None:
        return False
    return exhausted(error) or is_out_of_memory(error) or _may_pass(error.__cause__)


def _reason(error: Exception) -> str:
    """What the index says: our own words, or none; the log has the rest."""
    if isinstance(error, RepositoryError | DeviceError):
        if error.__cause__ is not None:
            LOGGER.warning("%s: %s", error, error.__cause__)
        return str(error)
    LOGGER.exception("a model could not be loaded")
    return "it could not be loaded; the server's log says why"
