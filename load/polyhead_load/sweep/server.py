"""Measure a running server, or start one for a few families at a time."""

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import psutil

from polyhead_client import Client, PolyheadError
from polyhead_client.options import OPEN_ACCESS, Access
from polyhead_load.errors import SweepError
from polyhead_load.sweep.families import SweepFamily
from polyhead_load.sweep.processes import failure

_START_SECONDS = 600.0
"""Large weights take their time to be copied, hashed and packed."""
_STOP_SECONDS = 30.0
_PORTS = range(20_000, 32_768)
"""Below the ports of outgoing connections, which begin at 32,768 on Linux and at 49,152 elsewhere."""

# A server that ends with the sweep, however that ends.
_SERVE = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv[1]):
    sys.exit("the sweep has ended")
from polyhead_client.command import main
sys.exit(main(sys.argv[2:]))
"""


class MeasuredServer:
    """A server that a sweep calls; of one that it has not started, CPU time and memory are unknown."""

    def __init__(self, address: str, access: Access = OPEN_ACCESS) -> None:
        self.address = address
        self.access = access

    def alive(self) -> bool:
        """Return whether it answers."""
        with self.access.client(self.address, timeout=5) as client:
            return client.live()

    def cpu_seconds(self) -> float | None:
        """Return the CPU seconds used so far by all its processes; None where unknown."""
        return None

    def memory_mib(self) -> float | None:
        """Return the memory of all its processes; None where unknown."""
        return None


def cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU time of a process and of all below it, those that have ended included."""
    seconds = 0.0
    with suppress(psutil.Error):
        for each in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                seconds += sum(each.cpu_times()[:4])  # own, and of children that were waited for
    return seconds


def memory_of(process: psutil.Process) -> int:
    """Return the bytes that a process holds; where Linux tells, what is mapped twice counts once."""
    memory = process.memory_full_info()
    return int(getattr(memory, "pss", memory.rss))


class RunningServer(MeasuredServer):
    """A server that was started by other means, perhaps on another machine.

    Raises:
        SweepError: No server answers there, or it denies access.
    """

    def __init__(self, address: str, access: Access = OPEN_ACCESS) -> None:
        super().__init__(address, access)
        with access.client(address, timeout=5) as client:
            try:
                self.version = client.metadata().version
            except PolyheadError as error:
                raise SweepError(
                    f"--address must be a polyhead server, {error}: start one, or leave --address out "
                    "to have the sweep start its own"
                ) from error


class OwnServer(MeasuredServer):
    """A `polyhead serve` process on a free port of the loopback interface."""

    def __init__(self, process: psutil.Popen, address: str) -> None:
        super().__init__(address)
        self.process = process
        """Workers are its children."""

    def alive(self) -> bool:
        """Return whether the process runs."""
        return self.process.poll() is None

    def cpu_seconds(self) -> float | None:
        """Add up the server and its workers."""
        return cpu_seconds(self.process) if self.alive() else None

    def memory_mib(self) -> float | None:
        """Add up the server and its workers."""
        try:
            return sum(map(memory_of, [self.process, *self.process.children(recursive=True)])) / 2**20
        except psutil.Error:
            return None


@contextmanager
def own_server(
    families: Collection[SweepFamily], log: Path, flags: Sequence[str] = ()
) -> Iterator[OwnServer]:
    """Serve some families and nothing else.

    Raises:
        SweepError: It does not start.
    """
    with tempfile.TemporaryDirectory(prefix="polyhead-sweep-") as name:
        for family in families:
            # The folder of a family may be a link, its files may not.
            (Path(name) / family.name).symlink_to(family.folder.parent.resolve(), target_is_directory=True)
        with started_server(Path(name), ["--http-port", "off", *flags], log=log) as server:
            yield server


@contextmanager
def started_server(models: Path, flags: Sequence[str], *, log: Path | None = None) -> Iterator[OwnServer]:
    """Start `polyhead serve`, wait until it has loaded its models, and stop it at the end.

    Args:
        models: The model repository.
        flags: More flags for the server.
        log: File to append its log to; None leaves it on this process's own output.

    Raises:
        SweepError: It does not start.
    """
    begin = log.stat().st_size if log is not None and log.exists() else 0
    port = free_port()
    command = [sys.executable, "-c", _SERVE, str(os.getpid()), *serve_command(models, port, flags)]
    with running(command, log=log) as process:
        address = f"127.0.0.1:{port}"
        wait_until_ready(process, address, log=log, begin=begin)
        yield OwnServer(process, address)


@contextmanager
def running(
    command: Sequence[str], *, log: Path | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[psutil.Popen]:
    """Run a command until the block ends, and its children no longer.

    Args:
        command: It ends when it is told to (SIGTERM); it is killed where that takes too long.
        log: File to append its output to; None leaves it on this process's own.
        environment: Variables beyond this process's own.
    """
    with nullcontext() if log is None else log.open("ab") as output:
        process = psutil.Popen(
            command,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            env=os.environ | (environment or {}),
        )
    try:
        yield process
    finally:
        every: list[psutil.Process] = [process]
        with suppress(psutil.Error):  # it has ended
            every += process.children(recursive=True)
            process.terminate()
        _, left = psutil.wait_procs(every, timeout=_STOP_SECONDS)
        for one in left:
            with suppress(psutil.Error):
                one.kill()
        psutil.wait_procs(left)


def free_port() -> int:
    """Return a port of the loopback interface that nothing listens on, and that no other call returns soon.

    The system gives it to no outgoing connection. A connection to it was closed, so for a minute only
    listeners with `SO_REUSEADDR` can take it: servers can, and this function does not.
    """
    while True:
        with suppress(OSError), socket.socket() as listener:
            listener.bind(("127.0.0.1", secrets.choice(_PORTS)))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.listen()
            with socket.create_connection(listener.getsockname(), timeout=1) as caller:
                listener.accept()[0].close()  # the end that closes first is the one in TIME_WAIT
                caller.recv(1)  # in vain where another caller was accepted
            return int(listener.getsockname()[1])


def serve_command(models: Path | str, port: int | str, flags: Sequence[str]) -> list[str]:
    """Return the arguments with which a sweep starts its own server."""
    return ["serve", "--models", str(models), "--port", str(port), *flags]


def wait_until_ready(
    process: psutil.Popen, address: str, *, log: Path | None = None, begin: int = 0, connections: int = 1
) -> None:
    """Wait until a server has loaded its models.

    Args:
        process: The server.
        address: Where it listens.
        log: The file of its log, if there is one.
        begin: Where in that its own part begins.
        connections: How many must find it ready. The system picks a worker for each connection; one that is
            ready says nothing of the others.

    Raises:
        SweepError: It has ended, or is not ready in time.
    """
    deadline = time.monotonic() + _START_SECONDS
    while connections:
        with Client(address, timeout=5) as client:  # a new connection each time: one may get stuck
            if client.ready():
                connections -= 1
                continue
        if (code := process.poll()) is not None:
            written = b"" if log is None else log.read_bytes()[begin:]
            raise SweepError(
                f"the server did not start, it {failure(written.decode(errors='replace'), code)}"
            )
        if time.monotonic() > deadline:
            where = "" if log is None else f", see {log}"
            raise SweepError(f"the server was not ready within {_START_SECONDS:.0f} s{where}")
        time.sleep(0.1)
