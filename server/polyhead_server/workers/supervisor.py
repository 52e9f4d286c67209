"""The supervisor: starts the workers, replaces those that end or stand still, and stops them all.

It loads no model and nothing that computes, so that there is little that could end it.

It also keeps the files in which workers count, and which each of them reads. prometheus_client has a file for
each worker and each kind of metric, and maps it into memory. A worker's replacement goes on with the files of
its predecessor: no counter decreases, and there are never more files.
"""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from prometheus_client.multiprocess import mark_process_dead

from polyhead_proto.system.locked_folders import abandoned_folders, locked_folder
from polyhead_server.address import format_address, reserve_port, warn_if_exposed
from polyhead_server.engine.cpus import available_cpus
from polyhead_server.errors import StartError
from polyhead_server.http.listener import announce, open_port
from polyhead_server.observability.logs import LOGGER
from polyhead_server.settings import Settings
from polyhead_server.workers.worker import ASSIGNMENTS, READY, REPORT_SECONDS, Assignment

_PREFIX = "polyhead-metrics-"
_FILE_BYTES = {
    **dict.fromkeys(("counter", "histogram"), 2**20),  # some thirty graphs; then a file is doubled
    **dict.fromkeys(("gauge_livesum", "gauge_livemax", "gauge_max"), 2**16),
}

_FIRST_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 30.0
_MOST_FAILED_STARTS = 5
# A worker that was ready for this long has started well: its end does not count as a failed start.
_SETTLED_SECONDS = 30.0
# A worker that misses so many reports in a row stands still. Each is waited for by itself, so that nobody is
# killed because the supervisor stood still.
_MOST_MISSED = 30
# Before its first report it is imported and chooses its device, during which nothing of it could report.
_MOST_MISSED_AT_START = 300
# What a worker may take on top of its time to drain.
_LAST_STEPS_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class _Ended:
    """How a worker's process ended."""

    code: int
    reason: str
    ready_seconds: float | None = None
    """How long it had been ready; None if it never was."""


class Supervisor:
    """Keep a number of workers running.

    Args:
        settings: How they run; the port is reserved.
        metrics: The folder in which they count; see `metric_files`.
        gpus: The GPUs that they spread over; none lets each worker choose its device.
    """

    def __init__(self, settings: Settings, metrics: Path, gpus: Sequence[int] = ()) -> None:
        self.restarts = [0] * settings.workers
        self._settings = settings
        self._metrics = metrics
        self._gpus = gpus
        self._running: dict[int, Process] = {}
        self._ready: set[int] = set()
        self._started = False
        """All of them have been ready."""
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        """Run the workers until `stop`, and return the exit code: 0 if all of them drained in time.

        Raises:
            StartError: A worker could not start at all, or none of them can any more.
        """
        keepers = [asyncio.create_task(self._keep(worker)) for worker in range(self._settings.workers)]
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((stopping, *keepers), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.stop()
            stopping.cancel()
            await self._wait_for(keepers)
        return int(any(await asyncio.gather(*keepers)))

    def stop(self) -> None:
        """Let all workers drain. Only the first call does anything."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        for worker, process in self._running.items():
            LOGGER.debug("stopping worker %d", worker)
            _signal(process, signal.SIGTERM)

    def kill(self) -> None:
        """End all workers at once."""
        for process in self._running.values():
            _signal(process, signal.SIGKILL)

    async def _wait_for(self, keepers: Sequence[asyncio.Task[int]]) -> None:
        """Wait for all workers, and kill those that take too long."""
        _, late = await asyncio.wait(keepers, timeout=self._settings.drain_seconds + _LAST_STEPS_SECONDS)
        if late:
            LOGGER.error("%d workers did not stop in time", len(late))
            self.kill()
            await asyncio.wait(late)

    async def _keep(self, worker: int) -> int:
        """Keep one worker running until `stop`, and return the exit code of its last process.

        Raises:
            StartError: It could not start at all, or no worker can any more.
        """
        failures = 0
        while not self._stopping.is_set():
            end = await self._run_once(worker)
            if self._stopping.is_set():
                LOGGER.debug("worker %d has ended (%s)", worker, end.reason)
                return 0 if end.ready_seconds is None else end.code
            if end.ready_seconds is None and not self._started:
                raise StartError(f"worker {worker} could not start ({end.reason})")
            failures = 0 if (end.ready_seconds or 0) >= _SETTLED_SECONDS else failures + 1
            if failures >= _MOST_FAILED_STARTS and not self._ready and end.ready_seconds is None:
                raise StartError(f"no worker runs any more, and {failures} in a row could not start")
            pause = min(_FIRST_PAUSE_SECONDS * 2 ** (max(failures, 1) - 1), _LONGEST_PAUSE_SECONDS)
            LOGGER.error("worker %d has ended (%s); the next one starts in %g s", worker, end.reason, pause)
            self.restarts[worker] += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
        return 0

    async def _run_once(self, worker: int) -> _Ended:
        """Run a worker's process to its end."""
        try:
            process = await self._start(worker)
        except OSError as error:  # no memory for a process, or too many processes: both may pass
            return _Ended(code=1, reason=f"it cannot be started: {error}")
        if self._stopping.is_set():  # `stop` has not seen it
            _signal(process, signal.SIGTERM)
        ready_at = await self._take_reports(worker, process)
        code = await process.wait()
        reason = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        self._ready.discard(worker)
        del self._running[worker]
        mark_process_dead(worker, str(self._metrics))
        ready_seconds = None if ready_at is None else asyncio.get_running_loop().time() - ready_at
        return _Ended(code=code, reason=reason, ready_seconds=ready_seconds)

    async def _start(self, worker: int) -> Process:
        add_files(self._metrics, worker)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "polyhead_server.workers.worker"),
            stdin=PIPE,
            stdout=PIPE,
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(self._metrics)},
            # Ctrl-C goes to all processes of a terminal's session; the supervisor passes it on.
            start_new_session=True,
        )
        self._running[worker] = process
        LOGGER.debug("worker %d is process %d", worker, process.pid)
        settings = settings_of(worker, self._settings, self._gpus)
        assignment = Assignment(settings=settings, worker=worker, restarts=self.restarts[worker])
        assert process.stdin is not None  # noqa: S101 - a pipe
        # And left open: it ends with this process.
        process.stdin.write(ASSIGNMENTS.dump_json(assignment) + b"\n")
        return process

    async def _take_reports(self, worker: int, process: Process) -> float | None:
        """Take a worker's reports until it ends or is killed, and return when it was ready, if it was."""
        assert process.stdout is not None  # noqa: S101 - a pipe
        ready_at = None
        missed = _MOST_MISSED - _MOST_MISSED_AT_START
        while missed < _MOST_MISSED:
            try:
                async with asyncio.timeout(REPORT_SECONDS):
                    line = await process.stdout.readline()
            except TimeoutError:
                missed += 1
                continue
            if not line:
                return ready_at
            missed = 0
            if line == READY and ready_at is None:
                ready_at = asyncio.get_running_loop().time()
                self._note_ready(worker)
        # Or its connections would wait for ever.
        LOGGER.error("worker %d stands still, and is killed", worker)
        _signal(process, signal.SIGKILL)
        return ready_at

    def _note_ready(self, worker: int) -> None:
        self._ready.add(worker)
        if not self._started and len(self._ready) == self._settings.workers:
            self._started = True
            address = format_address(self._settings.host, self._settings.port)
            LOGGER.info("%d workers serve on %s", self._settings.workers, address)


def _signal(process: Process, number: signal.Signals) -> None:
    """Send a signal to a process, unless it has ended."""
    with suppress(ProcessLookupError):
        process.send_signal(number)


def settings_of(worker: int, settings: Settings, gpus: Sequence[int]) -> Settings:
    """Return a worker's own settings: workers take the GPUs in turn, and know how many share theirs."""
    if not gpus:
        return settings
    device = f"cuda:{gpus[worker % len(gpus)]}"
    return replace(settings, device=device, workers=settings.workers // len(gpus))


@contextmanager
def metric_files(workers: int) -> Iterator[Path]:
    """Make a folder with the files of all workers in the system's temporary one (TMPDIR).

    Yields:
        The folder, which is removed at the end of the block.

    Raises:
        StartError: There is no room, or the temporary folder cannot be written.
    """
    for folder in abandoned_folders(_PREFIX, Path(tempfile.gettempdir())):
        shutil.rmtree(folder, ignore_errors=True)
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(locked_folder(_PREFIX))
            for worker in range(workers):
                add_files(folder, worker)
        except OSError as error:
            raise StartError(
                f"workers must be able to keep metrics in the temporary folder, {error.strerror}: set TMPDIR"
            ) from error
        yield folder


def add_files(folder: Path, worker: int) -> None:
    """Add the files that a worker lacks, with room on the disk: without, a write would kill it (SIGBUS).

    Raises:
        OSError: There is no room.
    """
    for kind, size in _FILE_BYTES.items():
        file = folder / f"{kind}_{worker}.db"
        if not file.exists():
            new = file.with_suffix(".new")  # which no other worker reads yet
            new.write_bytes(bytes(size))
            new.rename(file)


async def supervise(settings: Settings, gpus: Sequence[int] = ()) -> int:
    """Serve with several workers until SIGTERM or SIGINT, then drain. Another SIGINT ends them at once.

    Args:
        settings: How the server runs.
        gpus: GPUs, each with as many workers as the settings say; none is that many workers in all.

    Returns:
        The exit code: 0 if every accepted request was finished.

    Raises:
        StartError: The server cannot start, or has nothing to serve.
    """
    warn_if_exposed(settings)
    settings = replace(settings, workers=settings.workers * max(1, len(gpus)))
    if settings.repository_mode == "explicit":
        raise StartError(
            f"--repository-mode explicit must have one worker, was {settings.workers}: a call "
            "reaches only one of them; use --repository-mode poll, which every worker follows"
        )
    with ExitStack() as stack:
        port = stack.enter_context(reserve_port(settings.host, settings.port)).getsockname()[1]
        threads = settings.threads or max(1, available_cpus() // settings.workers)
        settings = replace(settings, port=port, threads=threads)
        reserved = open_port(settings, reserve_port)
        http_port = None if reserved is None else stack.enter_context(reserved).getsockname()[1]
        settings = replace(settings, http_port=http_port or "off")
        supervisor = Supervisor(settings, stack.enter_context(metric_files(settings.workers)), gpus)
        announce(settings, http_port)
        loop = asyncio.get_running_loop()

        def stop(number: signal.Signals) -> None:
            LOGGER.info("%s received", number.name)
            loop.add_signal_handler(signal.SIGINT, end_at_once)
            supervisor.stop()

        def end_at_once() -> None:
            supervisor.kill()
            loop.remove_signal_handler(signal.SIGINT)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop, number)
        code = await supervisor.run()
        LOGGER.info("stopped")
        return code
