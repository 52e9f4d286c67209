"""Loads a repository's models in a thread of their own, while the server already listens."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from polyhead_server.devices import CPU, Device, check_precision
from polyhead_server.engine import Engine
from polyhead_server.errors import DeviceError, RepositoryError
from polyhead_server.logs import LOGGER
from polyhead_server.repository import Manifest, VersionFolder, private_copy, verify
from polyhead_server.scheduling import CostTable, Small, has_small_work
from polyhead_server.signature import Signature, signature_of
from polyhead_server.tokeniser import Tokeniser
from polyhead_server.tuning import Tuning, tune

_SMALL_SECONDS = 0.5
"""How long small work is measured: it takes less than a millisecond."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """One graph, ready to run."""

    signature: Signature
    engine: Engine
    costs: CostTable
    small: Small | None
    """What computes small work; None leaves it to the engine."""
    tokeniser: Tokeniser | None

    def close(self) -> None:
        """Gives back its memory, after its last run. May block for some moments."""
        self.engine.close()
        if self.small is not None:
            self.small.engine.stop()


@dataclass(frozen=True, kw_only=True)
class Failed:
    """One graph that cannot be served."""

    name: str
    version: int
    reason: str


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
                Failed(name=manifest.served_name(graph), version=version.version, reason=reason)
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
    tokeniser = None
    if manifest.tokenizer is not None:
        tokeniser = Tokeniser(folder / manifest.tokenizer.file, max_tokens=manifest.text_max_tokens)
    for graph, record in manifest.graphs.items():
        signature = signature_of(manifest, graph)
        engine = None
        try:
            path = folder / record.file
            engine = Engine(path, signature=signature, device=device, threads=threads, lost=lost)
            tuning = replace(tuning, runs=runs(engine.device))
            costs = tune(engine, signature, threads=threads, tuning=tuning)
            small = _small(path, signature, device, threads, tuning) if has_small_work(costs) else None
        except Exception as error:
            if engine is not None:
                engine.close()
            yield Failed(name=signature.name, version=signature.version, reason=_reason(error))
        else:
            yield Loaded(signature=signature, engine=engine, costs=costs, small=small, tokeniser=tokeniser)


def _small(path: Path, signature: Signature, device: Device, threads: int, tuning: Tuning) -> Small | None:
    """A session with one thread. It holds weights of its own: little, where the work is little."""
    if threads == 1 or device.provider != CPU:
        return None
    engine = Engine(path, signature=signature, device=device, threads=1)
    brief = replace(tuning, seconds=min(tuning.seconds, _SMALL_SECONDS), runs=1)
    return Small(engine=engine, costs=tune(engine, signature, threads=1, tuning=brief))


def _reason(error: Exception) -> str:
    """What the index says: our own words, or none; the log has the rest."""
    if isinstance(error, RepositoryError | DeviceError):
        if error.__cause__ is not None:
            LOGGER.warning("%s: %s", error, error.__cause__)
        return str(error)
    LOGGER.exception("a model could not be loaded")
    return "it could not be loaded; the server's log says why"
