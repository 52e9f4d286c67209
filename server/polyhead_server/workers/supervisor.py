"""The process above the workers: starts them, replaces those that end, stops them all.

It loads no model and nothing that computes, so that there is little that could end it.
"""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from polyhead_server.address import format_address, warn_if_exposed
from polyhead_server.engine.cpus import available_cpus
from polyhead_server.errors import StartError
from polyhead_server.observability.logs import LOGGER
from polyhead_server.observability.metrics import serve_metrics
from polyhead_server.observability.shared_counters import SharedCounters
from polyhead_server.settings import Settings
from polyhead_server.workers.assignment import READY, Assignment
from polyhead_server.workers.port import reserve

_FIRST_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 30.0
_MOST_FAILED_STARTS = 5
# A worker that was ready for so long has started well; its end is a new misfortune.
_SETTLED_SECONDS = 30.0
# On top of the grace that workers know of, for their own last steps.
_FAREWELL_SECONDS = 5.0


class Supervisor:
    """Keeps a number of workers running.

    Args:
        settings: The server's; the port is one that is reserved.
        counters: Where the workers count.
        cards: The GPUs that the workers spread over; none leaves the device to each.
    """

    def __init__(
        self,
        settings: Settings,
        counters: SharedCounters,
        cards: Sequence[int] = (),
    ) -> None:
        self.processes: dict[int, int] = {}
        """The process of each worker that runs."""
        self.restarts = [0] * settings.workers
        self._settings = settings
        self._counters = counters
        self._cards = cards
        self._running: dict[int, Process] = {}
        self._ready: set[int] = set()
        self._started = False
        self._stopping = asyncio.Event()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> int:
        """Runs the workers until `stop`, and returns the exit code: 0 when all of them drained well.

        Raises:
            StartError: A worker could not start at all, or none of them does any more.
        """
        keepers = [asyncio.create_task(self._keep(worker)) for worker in range(self._settings.workers)]
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((stopping, self._failed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.stop()
            stopping.cancel()
            codes = await self._end(keepers)
        if self._failed.done():
            self._failed.result()
        return 0 if all(code == 0 for code in codes) else 1

    def stop(self) -> None:
        """Lets all workers drain. Telling them twice would end them at once."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        for worker, process in self._running.items():
            LOGGER.debug("worker %d is told to stop", worker)
            process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends all workers at once."""
        for process in self._running.values():
            process.kill()

    async def _end(self, keepers: Sequence[asyncio.Task[int]]) -> list[int]:
        """Waits for all workers, and ends those that take too long."""
        _, late = await asyncio.wait(keepers, timeout=self._settings.drain_seconds + _FAREWELL_SECONDS)
        if late:
            LOGGER.error("%d workers did not stop in time", len(late))
            self.kill()
        return list(await asyncio.gather(*keepers))

    async def _keep(self, worker: int) -> int:
        """Runs one worker after the other in the same place; returns the last one's exit code."""
        failures = 0
        late = False
        while not self._stopping.is_set():
            ready, settled, code, end = await self._live(worker, late=late)
            if self._stopping.is_set():
                LOGGER.debug("worker %d has ended (%s)", worker, end)
                return code if ready else 0
            if not ready and not self._started:
                self._fail(f"worker {worker} could not start ({end})")
                return code
            failures = 0 if settled else failures + 1
            if failures >= _MOST_FAILED_STARTS and not self._ready and not ready:
                self._fail(f"no worker runs any more, and {failures} in a row could not start")
                return code
            pause = min(_FIRST_PAUSE_SECONDS * 2 ** (max(failures, 1) - 1), _LONGEST_PAUSE_SECONDS)
            LOGGER.error("worker %d has ended (%s); the next one starts in %g s", worker, end, pause)
            self.restarts[worker] += 1
            late = True
            await self._pause(pause)
        return 0

    async def _live(self, worker: int, *, late: bool) -> tuple[bool, bool, int, str]:
        """One worker's life: whether it was ready, and long enough; its exit code, and that in words."""
        try:
            process = await self._start(worker, late=late)
        except OSError as error:  # no memory for a process, or no more processes: maybe later
            return False, False, 1, f"it cannot be started: {error}"
        if self._stopping.is_set():  # while it started, so nobody has told it
            process.send_signal(signal.SIGTERM)
        loop = asyncio.get_running_loop()
        ready = await self._wait_until_ready(worker, process)
        ready_at = loop.time()
        code = await process.wait()
        self._forget(worker)
        settled = ready and loop.time() - ready_at >= _SETTLED_SECONDS
        return ready, settled, code, _spell(code)

    async def _start(self, worker: int, *, late: bool) -> Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "polyhead_server.workers.worker"),
            stdin=PIPE,
            stdout=PIPE,
            pass_fds=self._counters.files,
            # Ctrl-C goes to all processes of a terminal's session; workers hear of it from here.
            start_new_session=True,
        )
        self._running[worker] = process
        self.processes[worker] = process.pid
        LOGGER.debug("worker %d is process %d", worker, process.pid)
        assignment = Assignment(
            settings=settings_of(worker, self._settings, self._cards),
            worker=worker,
            files=self._counters.files,
            late=late,
        )
        assert process.stdin is not None  # noqa: S101 - a pipe, as was asked for
        process.stdin.write(assignment.to_line())  # and left open: its end is ours
        return process

    async def _wait_until_ready(self, worker: int, process: Process) -> bool:
        assert process.stdout is not None  # noqa: S101 - a pipe, as was asked for
        if await process.stdout.readline() != READY:
            return False
        self._ready.add(worker)
        if not self._started and len(self._ready) == self._settings.workers:
            self._started = True
            where = format_address(self._settings.host, self._settings.port)
            LOGGER.info("%d workers serve on %s", self._settings.workers, where)
        return True

    def _forget(self, worker: int) -> None:
        self._ready.discard(worker)
        del self._running[worker]
        del self.processes[worker]
        self._counters.clear_gauges(worker)

    def _fail(self, reason: str) -> None:
        if not self._failed.done():
            self._failed.set_exception(StartError(reason))

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass


def settings_of(worker: int, settings: Settings, cards: Sequence[int]) -> Settings:
    """A worker's own settings: the workers take the cards in turn, and each knows how many share its own."""
    if not cards:
        return settings
    device = f"cuda:{cards[worker % len(cards)]}"
    return replace(settings, device=device, workers=settings.workers // len(cards))


def supervise(settings: Settings, cards: Sequence[int] = ()) -> int:
    """Serves with several workers until SIGTERM or SIGINT, which drains them. SIGINT ends them at once then.

    Args:
        settings: The server's.
        cards: GPUs, each with as many workers as the settings say; none is that many workers in all.

    Returns:
        The exit code: 0 when every accepted request was finished.

    Raises:
        StartError: It could not start, or has nothing to serve.
    """
    return asyncio.run(_supervise(settings, cards))


async def _supervise(settings: Settings, cards: Sequence[int]) -> int:
    warn_if_exposed(settings)
    settings = replace(settings, workers=settings.workers * max(1, len(cards)))
    if settings.repository_mode == "explicit":
        raise StartError(
            f"--repository-mode explicit must have one worker, was {settings.workers}: a call "
            "reaches only one of them; use --repository-mode poll, which every worker follows"
        )
    with ExitStack() as stack:
        port = stack.enter_context(reserve(settings.host, settings.port)).getsockname()[1]
        threads = settings.threads or max(1, available_cpus() // settings.workers)
        settings = replace(settings, port=port, threads=threads)
        counters = SharedCounters.create(settings.workers, worker=None)
        stack.callback(counters.close)
        supervisor = Supervisor(settings, counters, cards)
        stack.enter_context(serve_metrics(settings, counters, supervisor.processes, supervisor.restarts))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, _stop, loop, supervisor, number)
        code = await supervisor.run()
        LOGGER.info("stopped")
        return code


def _stop(loop: asyncio.AbstractEventLoop, supervisor: Supervisor, number: signal.Signals) -> None:
    LOGGER.info("%s received", number.name)
    loop.add_signal_handler(signal.SIGINT, _end_at_once, loop, supervisor, signal.SIGINT)
    supervisor.stop()


def _end_at_once(loop: asyncio.AbstractEventLoop, supervisor: Supervisor, number: signal.Signals) -> None:
    supervisor.kill()
    loop.remove_signal_handler(number)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _spell(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
