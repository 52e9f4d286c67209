"""Ray as processes of their own: what it does to its process stays there."""

import os
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import psutil
import pytest
import yaml

from polyhead_load.sweep.server import free_port

with suppress(ImportError), warnings.catch_warnings(action="ignore"):  # it warns when it is imported
    import ray.serve  # noqa: F401

CONFIG = Path(__file__).parents[3] / "deploy" / "ray" / "serve.yaml"
FAMILIES = ("tiny", "tiny-tokens")

ALONE = pytest.mark.skipif(
    os.environ.get("POLYHEAD_TEST_RAY") != "1",
    reason="make test-ray runs it, on two cores that do nothing else",
)
"""For tests that start many processes: Ray waits 30 s for a node, which beside other tests is too short."""


class RayCluster:
    """`cluster.py` as a process, with the config file that is shipped.

    Args:
        models: The repository.
        folder: For files of its own.
    """

    def __init__(self, models: Path, folder: Path) -> None:
        self.models = models
        self.address = f"127.0.0.1:{free_port()}"
        self._folder = folder
        self._log = (folder / "log").open("w")
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("cluster.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._said: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.put(line)
        self._said.put("")

    @property
    def log(self) -> str:
        """The end of what has been logged so far."""
        return (self._folder / "log").read_text()[-4000:]

    def wait_for(self, word: str) -> bool:
        """Waits for a line; whether it came before the process ended, and in time."""
        try:
            while line := self._said.get(timeout=600):
                if line == f"{word}\n":
                    return True
        except Empty:
            pass
        return False

    def do(self, line: str) -> None:
        """Has it do something."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        assert self.wait_for("done"), self.log

    def deploy(self, **options: Any) -> None:
        """Deploys the shipped config file for what is here, and options of the tiny family's deployment."""
        config: dict[str, Any] = yaml.safe_load(CONFIG.read_text())
        config["grpc_options"]["port"] = int(self.address.rpartition(":")[2])
        config["http_options"] = {"host": "127.0.0.1", "port": free_port()}
        (application,) = config["applications"]
        application["args"] |= {"models": str(self.models), "families": list(FAMILIES), "cpus": 1}
        application["args"]["repository_mode"] = "none"
        application["deployments"].append({"name": "tiny", **options})
        file = self._folder / "serve.yaml"
        file.write_text(yaml.safe_dump(config))
        self.do(f"deploy {file}")

    def replicas(self, family: str) -> list[psutil.Process]:
        """The processes of a family's replicas."""
        found = psutil.Process(self._process.pid).children(recursive=True)
        title = f"ray::ServeReplica:polyhead:{family}"
        return [one for one in found if " ".join(command(one)).split(".")[0].strip() == title]

    def close(self) -> None:
        """Ends everything."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        left = psutil.Process(self._process.pid).children(recursive=True)
        self._process.stdin.close()
        try:
            self._process.wait(240)
        except subprocess.TimeoutExpired:
            self._process.kill()
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._reader.join()
        self._process.stdout.close()
        self._log.close()


def command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.fixture(scope="module")
def cluster(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """Two nodes that serve two families, with two replicas each."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'polyhead[ray]'")
    folder = tmp_path_factory.mktemp("ray")
    models = shutil.copytree(repository, folder / "models")
    # Ray waits 30 s for each node: on a busy machine that can be too short.
    for _ in range(2):
        one = RayCluster(models, folder)
        try:
            if one.wait_for("started"):
                one.deploy()
                yield one
                return
        finally:
            one.close()
    pytest.skip(f"Ray cannot start here: {one.log}")
