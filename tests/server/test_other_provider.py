"""Servers on CUDA, and on a provider that no code knows by name: sessions say so, and compute on the CPU."""

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.numerics import close
from tests.server.conftest import Running, pretend, running
from tests.servers import quick_settings

from polyhead_proto import messages as pb
from polyhead_server.doctor import inspect
from polyhead_server.engine.device import CPU, CUDA, Device
from polyhead_server.engine.devices import choose_device

PROVIDER = "OpenVINOExecutionProvider"
DEVICE = Device(name="openvino", provider=PROVIDER, reason="chosen by hand", options={"device_type": "CPU"})


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """OpenVINO, computed by the CPU; the providers that all sessions asked for."""
    seen = pretend(monkeypatch, PROVIDER)
    monkeypatch.setattr("polyhead_server.runtime.choose_device", lambda _device: DEVICE)
    return seen


@pytest.fixture
def other(repository: Path, opened: list[list[Any]]) -> Iterator[Running]:
    with running(quick_settings(repository, threads=2)) as one:
        yield one


def test_it_is_served_and_named(server: Running, other: Running, opened: list[list[Any]]) -> None:
    feeds = {
        "x": np.random.default_rng(0).standard_normal((2, 5, 16), np.float32),
        "lengths": np.array([5, 3], np.int32),
    }
    expected, result = server.infer("tiny", feeds), other.infer("tiny", feeds)
    metadata = other.call("ModelMetadata", pb.ModelMetadataRequest(name="tiny"))
    config = other.call("ModelConfig", pb.ModelConfigRequest(name="tiny")).config
    samples = other.runtime.registry.metrics.totals()["tiny", "1"].samples["polyhead_model_info"]

    close(result["output"], expected["output"])
    assert opened == [[(PROVIDER, {"device_type": "CPU"}), CPU]] * 6  # one session for each graph
    assert metadata.properties["execution_provider"] == PROVIDER
    assert config.instance_group[0].kind == pb.ModelInstanceGroup.KIND_CPU
    assert {sample.labels["provider"] for sample in samples} == {PROVIDER}


def test_nothing_is_assumed_of_a_provider() -> None:
    assert DEVICE.arena == "cpu:0"
    assert DEVICE.precisions == {"fp32"}
    assert DEVICE.default_lanes == 1
    assert DEVICE.checks_placement
    assert not DEVICE.host_threads  # nothing runs on the event loop


def test_the_doctor_finds_what_runs_where(repository: Path, opened: list[list[Any]]) -> None:
    (graph,) = inspect(repository, "tiny.attention", DEVICE)

    assert (graph["provider"], graph["problem"]) == (PROVIDER, None)


def test_on_cuda_it_answers_as_on_the_cpu(
    repository: Path, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = pretend(monkeypatch, CUDA)
    choose = partial(choose_device, problem=lambda _number: None)
    monkeypatch.setattr("polyhead_server.runtime.choose_device", choose)
    random = np.random.default_rng(0)
    with running(quick_settings(repository, device="cuda:1", gpu_memory=2**30, threads=2)) as on_cuda:
        for batch, tokens in [(3, 5), (3, 5), (1, 8), (3, 7), (9, 13), (3, 2)]:
            x = random.standard_normal((batch, tokens, 16), np.float32)
            lengths = random.integers(0, tokens + 1, batch).astype(np.int32)
            for model in ("tiny", "tiny.attention"):
                expected = server.infer(model, {"x": x, "lengths": lengths})
                result = on_cuda.infer(model, {"x": x, "lengths": lengths})

                assert set(result.outputs) == set(expected.outputs)
                for name in expected.outputs:
                    close(result[name], expected[name])

        for number in range(2):  # which have run before there was work
            assert f"engine-tiny.attention-{number}" in {thread.name for thread in threading.enumerate()}

    assert len(opened) == 6  # small work has no session of its own
    for (provider, options), fallback in opened:
        assert (provider, fallback) == (CUDA, CPU)
        chosen = {"device_id": "1", "gpu_mem_limit": str(2**30), "use_tf32": "0"}
        assert chosen.items() <= options.items()


def test_the_memory_of_a_gpu_is_shared_by_its_workers_and_by_the_batches_of_a_graph(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, CUDA)
    choose = partial(choose_device, problem=lambda _number: None)
    monkeypatch.setattr("polyhead_server.runtime.choose_device", choose)

    def most_rows(**overrides: Any) -> int:
        with running(quick_settings(repository, device="cuda", **overrides)) as one:
            model = one.runtime.registry.find("tiny", "")
            assert model.device.memory_limit == overrides.get("gpu_memory", 0) // overrides.get("workers", 1)
            return model.scheduler.dispatch.planner.most_rows(64, model.scheduler.dispatch.lanes.count)

    free, limited, halved = (
        most_rows(max_working_bytes=2**26, **more)
        for more in ({}, {"gpu_memory": 2**25}, {"gpu_memory": 2**25, "workers": 2})
    )
    assert free > 2 * limited > 0  # as weights are in it
    assert limited > 2 * halved > 0
