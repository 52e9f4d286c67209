"""Run a sweep from end to end: families, server, cells."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from polyhead_client.options import OPEN_ACCESS, Access
from polyhead_load.sweep.families import SweepFamily, provide
from polyhead_load.sweep.fingerprint import fingerprint
from polyhead_load.sweep.folder import RunFolder
from polyhead_load.sweep.processes import generate
from polyhead_load.sweep.progress import SweepProgress
from polyhead_load.sweep.runner import StartServer, SweepRunner
from polyhead_load.sweep.server import MeasuredServer, RunningServer, own_server, serve_command
from polyhead_load.sweep.spec import Sweep
from polyhead_proto.names import Property


def run_sweep(
    sweep: Sweep,
    out: Path,
    *,
    models: Path,
    address: str | None,
    access: Access = OPEN_ACCESS,
    command: Sequence[str],
    progress: SweepProgress,
) -> RunFolder:
    """Measure what `out` does not hold yet, at a running server or at one of its own for `models`.

    Raises:
        SweepError: It cannot begin, or go on.
    """
    folder = RunFolder(out)
    mark = fingerprint(command)
    if address is None:
        own = serve_command("MODELS", "PORT", ["--http-port", "off", *sweep.serve])
        server = f"its own: polyhead {' '.join(own)}"
    else:
        version = RunningServer(address, access).version  # before the folder is made
        server = f"at {address}, version {version}"
        mark["machine"] = "the generator's; what of the server's is known is what the server says"
    with folder.locked():
        folder.begin(sweep, {"fingerprint": mark, "server": server, "skipped": {}})
        start: StartServer
        if address is not None:
            families = list(sweep.families)
            start = partial(_running, address, access)
        else:
            provided = _provide(sweep, models, folder, progress)
            families = list(provided)
            start = partial(own_server, provided.values(), folder.log, sweep.serve)
        with SweepRunner(
            sweep, folder, families, start=start, own=address is None, generate=generate, progress=progress
        ) as runner:
            _run(runner, folder, progress)
    return folder


def _provide(
    sweep: Sweep, models: Path, folder: RunFolder, progress: SweepProgress
) -> Mapping[str, SweepFamily]:
    """Export what is missing, and note what is served and what is skipped."""
    provided = provide(sweep, models, on_step=progress.step)
    for name, why in provided.skipped.items():
        progress.skip(name, why)
    hashes = {name: family.hashes for name, family in provided.families.items()}
    folder.require({"hashes": hashes})
    about = {name: family.facts for name, family in provided.families.items()}
    folder.note({"skipped": {**provided.skipped}, "families": about, "hashes": hashes})
    return provided.families


def _run(runner: SweepRunner, folder: RunFolder, progress: SweepProgress) -> None:
    """Measure what is missing, and note what the server says of its families."""
    measured = folder.journal().measurements
    if measured and not runner.missing:
        progress.line(
            f"all is measured already, the last on {measured[-1].started}: give another --out for a new run"
        )
    else:
        progress.step("starting the server")
    try:
        runner.run()
    finally:
        providers = {
            name: its.get(Property.EXECUTION_PROVIDER, "") for name, its in runner.properties.items()
        }
        folder.note({"skipped": runner.skipped, "providers": providers})


def _running(address: str, access: Access) -> AbstractContextManager[MeasuredServer]:
    return nullcontext(RunningServer(address, access))
