"""The server that a sweep starts, and one that runs."""

import contextlib
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.load.sweep.synthetic import small_sweep
from tests.servers import quick_settings, serving

from polyhead_client import Client
from polyhead_load.errors import SweepError
from polyhead_load.sweep.families import SweepFamily, find_family, provide
from polyhead_load.sweep.server import RunningServer, free_port, own_server

FLAGS = ("--device", "cpu")


def test_only_the_families_of_the_group_are_served_and_nothing_is_left(
    repository: Path, tmp_path: Path
) -> None:
    provided = provide(small_sweep(), repository)
    log = tmp_path / "server.log"

    with own_server([provided.families["tiny"]], log, FLAGS) as server:
        with Client(server.address) as client:
            names = {model.name for model in client.models()}
        assert server.alive()
        assert (server.cpu_seconds() or 0) > 0
        assert (server.memory_mib() or 0) > 10

    assert names == {"tiny", "tiny.attention"}
    assert not server.alive()
    assert server.cpu_seconds() is None
    assert "tiny" in log.read_text()


_SWEEP = """
import os, signal, sys
from pathlib import Path
from polyhead_load.sweep.families import find_family
from polyhead_load.sweep.server import own_server
repository, log, *flags = sys.argv[1:]
with own_server([find_family(Path(repository), "tiny")], Path(log), flags) as server:
    print(server.process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's end")
def test_no_server_outlives_a_sweep_that_is_killed(repository: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _SWEEP, str(repository), str(tmp_path / "server.log"), *FLAGS]
    output = subprocess.run(command, stdout=subprocess.PIPE, check=False, timeout=240).stdout

    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(output)).wait(240)
    assert not psutil.pid_exists(int(output))


def test_a_server_that_does_not_start_says_why(repository: Path, tmp_path: Path) -> None:
    family: Any = find_family(repository, "tiny")
    log = tmp_path / "server.log"
    log.write_text("of an earlier one\n")

    with (
        pytest.raises(SweepError, match=r"the server did not start, it ended with 2: .*--nonsense"),
        own_server([family], log, ["--nonsense"]),
    ):
        pass

    gone = SweepFamily(name="gone", folder=tmp_path / "gone" / "1", manifest={})
    with (
        pytest.raises(SweepError, match="the server did not start, it ended with 1"),
        own_server([gone], log, FLAGS),
    ):
        pass


def test_a_server_that_runs(repository: Path) -> None:
    with serving(quick_settings(repository)) as there:
        server = RunningServer(there.address)

        assert server.alive()
        assert server.cpu_seconds() is None

    assert not server.alive()


def test_a_free_port_is_kept_for_a_server() -> None:
    port = free_port()

    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    with socket.create_server(("127.0.0.1", port)) as server:
        assert server.getsockname()[1] == port
