"""The device: what is asked of torch and given to onnxruntime, with a driver of the test's own."""

from contextlib import nullcontext
from typing import Any

import onnxruntime as ort
import pytest
import torch

from gpu.card import Cpu, Gpu, NoCardError, open_card


class FakeStream:
    cuda_stream = 4711

    def __init__(self, _device: object) -> None:
        pass


class FakeEvent:
    """Its clock goes 10 ms further with each event."""

    now = 0.0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.at = 0.0

    def record(self, stream: FakeStream) -> None:
        assert isinstance(stream, FakeStream)
        FakeEvent.now += 10.0
        self.at = FakeEvent.now

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: "FakeEvent") -> float:
        return end.at - self.at


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver with one card of 100 bytes, 60 of them free."""
    fakes: dict[str, Any] = {
        "is_available": lambda: True,
        "init": lambda: None,
        "Stream": FakeStream,
        "Event": FakeEvent,
        "stream": lambda _stream: nullcontext(),
        "mem_get_info": lambda _device: (60, 100),
        "get_device_name": lambda _device: "NVIDIA H200",
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)


@pytest.mark.usefixtures("driver")
def test_onnxruntime_works_on_the_stream_that_is_timed() -> None:
    (cuda, options), cpu = Gpu().providers()

    assert (cuda, cpu) == ("CUDAExecutionProvider", "CPUExecutionProvider")
    assert options["user_compute_stream"] == "4711"
    assert options["use_tf32"] == "0"
    assert "enable_cuda_graph" not in options
    assert Gpu().providers(graphs=True)[0][1]["enable_cuda_graph"] == "1"


@pytest.mark.usefixtures("driver")
def test_time_is_between_two_events_around_all_runs() -> None:
    calls: list[float] = []

    assert Gpu().milliseconds(lambda: calls.append(FakeEvent.now), 4) == pytest.approx(10.0 / 4)
    assert len(calls) == 4
    assert len(set(calls)) == 1  # nothing is recorded in between


@pytest.mark.usefixtures("driver")
def test_memory_is_the_drivers() -> None:
    card = Gpu()

    assert (card.name, card.used_bytes(), card.free_bytes()) == ("NVIDIA H200", 40, 60)


@pytest.mark.usefixtures("driver")
def test_an_onnxruntime_without_cuda_is_no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CPUExecutionProvider"])

    with pytest.raises(NoCardError, match="built without CUDA: install onnxruntime-gpu"):
        open_card("cuda")


def test_a_torch_without_a_gpu_is_no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    with pytest.raises(NoCardError, match=r"sees no GPU.*--device cpu --tiny"):
        open_card("cuda")


def test_the_cpu_is_timed_by_the_hosts_clock() -> None:
    calls: list[int] = []

    assert Cpu().milliseconds(lambda: calls.append(1), 3) > 0
    assert len(calls) == 3
    assert open_card("cpu").providers() == ["CPUExecutionProvider"]
    with pytest.raises(NoCardError, match="CUDA graphs need a GPU"):
        Cpu().providers(graphs=True)
