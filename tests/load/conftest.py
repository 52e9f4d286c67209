"""A fake server, and the generator as a process: it changes the standard library, which tests must not."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from polyhead_load import LoadPlan

FAKE_SERVER = Path(__file__).with_name("fake_server.py")

Fake = Callable[..., "FakeServer"]
Generate = Callable[[LoadPlan], "Generated"]


@dataclass(frozen=True)
class FakeServer:
    """A fake server that runs."""

    process: subprocess.Popen[str]
    address: str

    def wait_until_reached(self) -> None:
        """Returns when it has received as many requests as it waits for."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "reached\n"


@dataclass(frozen=True)
class Generated:
    """What the generator has written."""

    columns: dict[str, NDArray[Any]]
    summary: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "Generated":
        """From its folder."""
        with np.load(folder / "records.npz", allow_pickle=False) as arrays:
            columns = dict(arrays)
        return cls(columns, json.loads((folder / "generator.json").read_text()))

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    @property
    def latency(self) -> NDArray[np.float64]:
        """Seconds from when it was planned to when it was done."""
        return np.asarray(self["done"] - self["planned"])


class Generator:
    """The generator, at work."""

    def __init__(self, plan: LoadPlan, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "plan.json").write_text(plan.to_json())
        self.folder = folder
        command = [sys.executable, "-m", "polyhead_load.generate", "--plan", str(folder / "plan.json")]
        self.process = subprocess.Popen(
            [*command, "--out", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def end(self) -> Generated:
        """Waits for it."""
        out, error = self.process.communicate(timeout=240)
        assert self.process.returncode == 0, error
        assert out == ""
        return Generated.read(self.folder)


@pytest.fixture
def fake() -> Iterator[Fake]:
    """Starts a fake server: `fake(tell_at=40)`."""
    with ExitStack() as stack:

        def start(tell_at: int = -1) -> FakeServer:
            process: Any = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, FAKE_SERVER, str(tell_at)], stdout=subprocess.PIPE, text=True
                )
            )
            stack.callback(process.kill)
            return FakeServer(process, f"127.0.0.1:{int(process.stdout.readline())}")

        yield start


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[[LoadPlan], Generator]]:
    """Starts the generator."""
    begun: list[Generator] = []

    def start(plan: LoadPlan) -> Generator:
        begun.append(Generator(plan, tmp_path / f"generated-{len(begun)}"))
        return begun[-1]

    yield start
    for one in begun:
        one.process.kill()
        one.process.communicate()


@pytest.fixture
def generate(begin: Callable[[LoadPlan], Generator]) -> Generate:
    """Runs the generator, and reads what it has written."""
    return lambda plan: begin(plan).end()


def plan_for(server: FakeServer | str, model: str, **fields: Any) -> LoadPlan:
    """A short plan."""
    address = server if isinstance(server, str) else server.address
    quick: dict[str, Any] = {
        "tokens": 4,
        "mode": "closed",
        "seconds": 1.0,
        "seed": 7,
        "timeout_seconds": 20.0,
    }
    return LoadPlan(address=address, model=model, **(quick | fields))
