"""A server that believes to be on CUDA: its sessions say so, and compute on the CPU."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from tests.numerics import close
from tests.server.conftest import Running, everything_on, running
from tests.servers import quick_settings

from polyhead_server.engine.device import CPU, CUDA
from polyhead_server.engine.devices import choose_device

Options = dict[str, str]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Options]:
    """CUDA, computed by the CPU; the provider options of all sessions."""
    seen: list[Options] = []

    class Session(ort.InferenceSession):  # type: ignore[misc]
        def __init__(self, path: str, options: ort.SessionOptions, providers: list[Any], **_: object) -> None:
            super().__init__(path, options, [CPU])
            (provider, settings), fallback = providers
            assert (provider, fallback) == (CUDA, CPU)
            seen.append(settings)

        def get_providers(self) -> list[str]:
            return [CUDA, CPU]

        def get_provider_graph_assignment_info(self) -> list[Any]:
            return everything_on(CUDA)

    monkeypatch.setattr(ort, "InferenceSession", Session)
    choose = partial(choose_device, problem=lambda _number: None)
    monkeypatch.setattr("polyhead_server.runtime.choose_device", choose)
    return seen


@pytest.fixture
def on_cuda(repository: Path, opened: list[Options]) -> Iterator[Running]:
    with running(quick_settings(repository, device="cuda:1", gpu_memory=2**30, threads=2)) as one:
        yield one


def test_it_answers_as_on_the_cpu(server: Running, on_cuda: Running, opened: list[Options]) -> None:
    random = np.random.default_rng(0)
    for batch, tokens in [(3, 5), (3, 5), (1, 8), (3, 7), (9, 13), (3, 2)]:
        x = random.standard_normal((batch, tokens, 16), np.float32)
        lengths = random.integers(0, tokens + 1, batch).astype(np.int32)
        for model in ("tiny", "tiny.attention"):
            expected = server.infer(model, {"x": x, "lengths": lengths})
            result = on_cuda.infer(model, {"x": x, "lengths": lengths})

            assert set(result.outputs) == set(expected.outputs)
            for name in expected.outputs:
                close(result[name], expected[name])

    assert len(opened) == 6  # small work has no session of its own
    assert all(options["device_id"] == "1" for options in opened)
    assert all(options["gpu_mem_limit"] == str(2**30) for options in opened)
    assert all(options["use_tf32"] == "0" for options in opened)
