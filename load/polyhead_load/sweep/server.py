"""The server that is measured: one that a sweep starts with a few families at a time, or one that runs."""

import socket
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import psutil

from polyhead_client import PolyheadError
from polyhead_client.options import OPEN_ACCESS, Access
from polyhead_load.sweep.errors import SweepError
from polyhead_load.sweep.families import Family
from polyhead_load.sweep.processes import POLYHEAD, last_words

_START_SECONDS = 600.0
"""A first start measures the speed of every graph, and large weights take their time."""
_STOP_SECONDS = 30.0


class Server(Protocol):
    """What a sweep needs of a server."""

    address: str
    access: Access

    def alive(self) -> bool:
        """Whether it still runs, as far as one can tell."""

    def cpu_seconds(self) -> float | None:
        """What it has used so far; None where one cannot know."""

    def memory_mib(self) -> float | None:
        """What it holds; None where one cannot know."""


class RunningServer:
    """A server that somebody else has started.

    Args:
        address: Where it is.
        access: What it asks of its callers.

    Raises:
        SweepError: Nobody answers there, or it lets nobody in who comes so.
    """

    def __init__(self, address: str, access: Access = OPEN_ACCESS) -> None:
        self.address = address
        self.access = access
        with access.client(address, timeout=5) as client:
            try:
                client.metadata()
            except PolyheadError as error:
                raise SweepError(
                    f"--address must be a polyhead server, {error}: start one, or leave --address out "
                    "to have the sweep start its own"
                ) from error

    def alive(self) -> bool:
        """Whether it answers."""
        with self.access.client(self.address, timeout=5) as client:
            return client.live()

    def cpu_seconds(self) -> float | None:
        """It may be on another machine."""
        return None

    def memory_mib(self) -> float | None:
        """It may be on another machine."""
        return None


class OwnServer:
    """A `polyhead serve` process on a free port of the loopback interface."""

    def __init__(self, process: "subprocess.Popen[bytes]", address: str) -> None:
        self.address = address
        self.access = OPEN_ACCESS
        self._process = process
        self._watched = psutil.Process(process.pid)

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def cpu_seconds(self) -> float | None:
        """Of the process and its workers."""
        try:
            times = [process.cpu_times() for process in self._family()]
        except psutil.Error:
            return None
        return sum(each.user + each.system for each in times)

    def memory_mib(self) -> float | None:
        """Of the process and its workers."""
        try:
            return sum(process.memory_info().rss for process in self._family()) / 2**20
        except psutil.Error:
            return None

    def _family(self) -> list[psutil.Process]:
        return [self._watched, *self._watched.children(recursive=True)]


@contextmanager
def own_server(families: Collection[Family], log: Path, flags: Sequence[str] = ()) -> Iterator[OwnServer]:
    """Starts a server of some families, and waits until it has loaded them; stops it at the end.

    Args:
        families: What it serves.
        log: Where its log goes, behind what is there.
        flags: More flags for it.

    Raises:
        SweepError: It does not start.
    """
    with ExitStack() as stack:
        models = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="polyhead-sweep-")))
        for family in families:
            # The folder of a family may be a link, its files may not.
            (models / family.name).symlink_to(family.folder.parent.resolve(), target_is_directory=True)
        output = stack.enter_context(log.open("ab"))
        begin = output.tell()
        with socket.create_server(("127.0.0.1", 0)) as probe:
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        command = [*POLYHEAD, "serve", "--models", str(models), "--port", address.rpartition(":")[2]]
        process = stack.enter_context(
            subprocess.Popen(  # noqa: S603 - our own command
                [*command, "--no-metrics", *flags], stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )
        )
        stack.callback(_stop, process)
        _wait(process, address, log, begin)
        yield OwnServer(process, address)


def _wait(process: "subprocess.Popen[bytes]", address: str, log: Path, begin: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    with OPEN_ACCESS.client(address, timeout=5) as client:
        while not client.ready():
            if (code := process.poll()) is not None:
                with log.open("rb") as file:
                    file.seek(begin)
                    said = file.read().decode(errors="replace")
                raise SweepError(f"the server did not start, it {last_words(said, code)}")
            if time.monotonic() > deadline:
                raise SweepError(f"the server was not ready within {_START_SECONDS:.0f} s, see {log}")
            time.sleep(0.05)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
