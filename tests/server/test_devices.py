"""A device works, or the server says why it does not."""

import pytest

from polyhead_server.devices import CPU, CUDA, check_provider, choose_device, cuda_problem, on_cpu, on_cuda
from polyhead_server.errors import DeviceError

MISSING = "missing libcublas.so.13"


def never() -> str | None:
    raise AssertionError("the CPU must not be asked about CUDA")


def test_the_cpu_needs_no_probe() -> None:
    assert choose_device("cpu", problem=never).provider == CPU


def test_cuda_that_works_is_taken() -> None:
    for device in ("cuda", "auto"):
        chosen = choose_device(device, problem=lambda: None)

        assert chosen.provider == CUDA
        assert chosen.providers[0][0] == CUDA


def test_cuda_that_does_not_work_is_an_error_that_names_what_is_missing() -> None:
    with pytest.raises(DeviceError, match=f"--device cuda does not work here: {MISSING}"):
        choose_device("cuda", problem=lambda: MISSING)


def test_auto_falls_back_and_says_why() -> None:
    chosen = choose_device("auto", problem=lambda: MISSING)

    assert chosen.provider == CPU
    assert chosen.reason == f"auto: CUDA does not work here: {MISSING}"


def test_a_session_on_another_device_is_an_error() -> None:
    check_provider([CPU], on_cpu(""))
    check_provider([CUDA, CPU], on_cuda(""))
    with pytest.raises(
        DeviceError, match="must run on CUDAExecutionProvider, onnxruntime gave it CPUExecution"
    ):
        check_provider([CPU], on_cuda(""))


def test_the_probe_of_this_machine_answers_quietly(capfd: pytest.CaptureFixture[str]) -> None:
    problem = cuda_problem()

    assert problem is None or problem
    assert capfd.readouterr().out == ""


def test_an_onnxruntime_without_cuda_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: [CPU])

    assert "built without CUDA" in str(cuda_problem())
