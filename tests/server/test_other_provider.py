"""A server on a provider that no code knows by name: its sessions say so, and compute on the CPU."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from tests.numerics import close
from tests.server.conftest import Running, everything_on, running
from tests.servers import quick_settings

from polyhead_proto import messages as pb
from polyhead_server.doctor.graphs import inspect
from polyhead_server.engine.device import CPU, Device
from polyhead_server.observability.metrics import Metrics

PROVIDER = "OpenVINOExecutionProvider"
DEVICE = Device(name="openvino", provider=PROVIDER, reason="chosen by hand", options={"device_type": "CPU"})


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """OpenVINO, computed by the CPU; the providers that all sessions asked for."""
    seen: list[list[Any]] = []

    class Session(ort.InferenceSession):  # type: ignore[misc]
        def __init__(self, path: str, options: ort.SessionOptions, providers: list[Any], **_: object) -> None:
            super().__init__(path, options, [CPU])
            seen.append(providers)

        def get_providers(self) -> list[str]:
            return [PROVIDER, CPU]

        def get_provider_graph_assignment_info(self) -> list[Any]:
            return everything_on(PROVIDER)

    monkeypatch.setattr(ort, "InferenceSession", Session)
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
    metrics = Metrics(other.runtime.registry.counters)
    samples = [sample for family in metrics.collect() for sample in family.samples]

    close(result["output"], expected["output"])
    assert opened == [[(PROVIDER, {"device_type": "CPU"}), CPU]] * 6  # one session for each graph
    assert metadata.properties["execution_provider"] == PROVIDER
    assert config.instance_group[0].kind == pb.ModelInstanceGroup.KIND_CPU
    found = {sample.labels["provider"] for sample in samples if sample.name == "polyhead_model_info"}
    assert found == {PROVIDER}


def test_nothing_is_assumed_of_it() -> None:
    assert DEVICE.arena == "cpu:0"
    assert DEVICE.precisions == {"fp32"}
    assert DEVICE.default_lanes == 1
    assert DEVICE.checks_placement
    assert not DEVICE.host_threads  # nothing runs on the event loop


def test_the_doctor_finds_what_runs_where(repository: Path, opened: list[list[Any]]) -> None:
    (graph,) = inspect(repository, "tiny.attention", DEVICE)

    assert (graph.provider, graph.operators, graph.problem) == (PROVIDER, {PROVIDER: {"MatMul": 1}}, None)
