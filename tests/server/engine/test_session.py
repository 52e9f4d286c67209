"""What does not open as a session."""

from pathlib import Path
from typing import Any

import pytest
from tests.server.conftest import everything_on, pretend

from polyhead_server.engine.device import CUDA
from polyhead_server.engine.devices import on_cpu, on_cuda
from polyhead_server.engine.session import open_session
from polyhead_server.errors import DeviceError, RepositoryError


def test_what_is_no_graph_is_refused(repository: Path) -> None:
    with pytest.raises(RepositoryError, match=r"weights\.bin cannot be loaded by onnxruntime"):
        open_session(repository / "tiny" / "1" / "weights.bin", device=on_cpu(""), threads=1)


@pytest.mark.parametrize("recorded", [[], everything_on("AnotherExecutionProvider")])
def test_a_graph_of_which_nothing_is_known_to_be_on_the_device_is_refused(
    repository: Path, monkeypatch: pytest.MonkeyPatch, recorded: list[Any]
) -> None:
    pretend(monkeypatch, CUDA, recorded)
    with pytest.raises(DeviceError, match=r"model\.onnx must run on CUDAExecutionProvider, but onnxruntime"):
        open_session(repository / "tiny" / "1" / "model.onnx", device=on_cuda(""), threads=1)
