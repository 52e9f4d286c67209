"""A device works, or the server says why it does not; and what devices can do."""

import platform
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import onnxruntime as ort
import pytest

from polyhead_server.engine.device import CPU, CUDA, OPENVINO, check_provider
from polyhead_server.engine.devices import (
    check_precision,
    choose_device,
    cuda_problem,
    in_precision,
    on_cpu,
    on_cuda,
)
from polyhead_server.engine.session import placed
from polyhead_server.errors import DeviceError, RepositoryError

MISSING = "missing libcublas.so.13"


def never(_number: int) -> str | None:
    raise AssertionError("the CPU must not be asked about CUDA")


def test_the_cpu_needs_no_probe() -> None:
    assert choose_device("cpu", problem=never).provider == CPU


def test_cuda_that_works_is_taken() -> None:
    for device in ("cuda", "auto"):
        chosen = choose_device(device, problem=lambda _number: None)

        assert chosen.provider == CUDA
        assert chosen.providers[0][0] == CUDA


def test_a_gpu_is_named_by_its_number() -> None:
    asked: list[int] = []
    chosen = choose_device("cuda:3", problem=asked.append)

    assert asked == [3]
    assert chosen.number == 3
    assert chosen.providers[0][1]["device_id"] == "3"
    with pytest.raises(DeviceError, match="--device cuda:3 does not work here: there is no GPU 3"):
        choose_device("cuda:3", problem=lambda number: f"there is no GPU {number}")


def test_what_cuda_sessions_are_created_with() -> None:
    (_, plain), fallback = on_cuda("").providers
    (_, limited), _ = replace(on_cuda(""), memory_limit=2**30).providers

    assert fallback == CPU
    assert plain["use_tf32"] == "0"
    assert "device_id" not in plain  # else onnxruntime logs that CUDA is no plug-in
    assert int(plain["sdpa_kernel"]) & 8 == 0  # cuDNN's attention builds a plan for each (B, T)
    assert "gpu_mem_limit" not in plain
    assert limited["gpu_mem_limit"] == "1073741824"


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_sixteen_bit_numbers_need_cuda(precision: str) -> None:
    check_precision(precision, on_cuda(""))
    check_precision("fp32", on_cpu(""))
    with pytest.raises(RepositoryError, match=f"it is {precision}, which runs on CUDA only"):
        check_precision(precision, on_cpu(""))


def test_integers_of_8_bits_need_the_cpu() -> None:
    check_precision("int8", on_cpu(""))
    with pytest.raises(RepositoryError, match="it is int8, which runs on the CPU only: serve it with"):
        check_precision("int8", on_cuda(""))


def test_bf16_is_only_computed_where_the_device_can() -> None:
    able = replace(on_cpu(""), name="openvino", computes=frozenset({"fp32", "bf16"}))

    assert in_precision(on_cpu(""), "fp32").compute_precision == "fp32"
    assert in_precision(able, "bf16").compute_precision == "bf16"
    assert able.compute_precision == "fp32"
    for device in (on_cpu(""), on_cuda("")):
        message = f"--compute-precision bf16 does not work here: --device {device.name} computes in fp32"
        with pytest.raises(DeviceError, match=message):
            in_precision(device, "bf16")


@pytest.mark.skipif(find_spec("openvino") is None, reason="OpenVINO is not installed")
@pytest.mark.parametrize(
    ("offered", "computes"), [({"FP32"}, {"fp32"}), ({"BF16", "FP32"}, {"bf16", "fp32"})]
)
def test_openvino_computes_in_what_it_says(
    monkeypatch: pytest.MonkeyPatch, offered: set[str], computes: set[str]
) -> None:
    monkeypatch.setattr("polyhead_server.engine.openvino_session.capabilities", lambda: frozenset(offered))
    chosen = choose_device("openvino", problem=never)

    assert (chosen.name, chosen.provider, chosen.compute_precision) == ("openvino", OPENVINO, "fp32")
    assert chosen.computes == computes
    assert (chosen.host_memory, chosen.host_threads, chosen.default_lanes) == (True, True, 1)
    check_precision("int8", chosen)
    with pytest.raises(RepositoryError, match="which runs on CUDA only"):
        check_precision("bf16", chosen)


def test_cuda_that_does_not_work_is_an_error_that_names_what_is_missing() -> None:
    with pytest.raises(DeviceError, match=f"--device cuda does not work here: {MISSING}"):
        choose_device("cuda", problem=lambda _number: MISSING)


@pytest.mark.parametrize("gpus", [None, 0, 1])
def test_auto_falls_back_and_says_why_where_there_is_a_gpu(gpus: int | None) -> None:
    chosen = choose_device("auto", problem=lambda _number: MISSING, gpus=lambda: gpus)

    assert chosen.provider == CPU
    why = f"CUDA does not work here: {MISSING}" if gpus else "no NVIDIA GPU is seen"
    assert chosen.reason == f"auto: {why}"


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


def test_threads_that_are_started_later_take_denormal_numbers_for_zero() -> None:
    """In a process of its own: other tests need such numbers."""
    program = """
import threading
import numpy as np
from polyhead_server.engine.devices import flush_denormals

def multiply():
    print((np.array([1e-38], np.float32) * np.float32(0.1))[0] == 0)

multiply()
flush_denormals()
for thread in [threading.Thread(target=multiply) for _ in range(2)]:
    thread.start()
    thread.join()
"""
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    flushed = str(platform.machine() in {"x86_64", "AMD64"})  # where onnxruntime can set the mode
    assert printed.stdout.split() == ["False", flushed, flushed]


@pytest.mark.parametrize("family", ["tiny", "tiny-masked"])  # an arbitrary mask leaves it fused
def test_the_fast_graph_is_fused_and_the_attention_graph_explicit(repository: Path, family: str) -> None:
    for file, operator, other in (
        ("model.onnx", "MultiHeadAttention", "Softmax"),
        ("attention.onnx", "Softmax", "MultiHeadAttention"),
    ):
        options = ort.SessionOptions()
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        session = ort.InferenceSession(
            repository / family / "1" / file, options, disabled_optimizers=on_cpu("").slow_fusions
        )
        operators = [found for _, found in placed(session)[CPU]]

        assert operators.count(operator) == 2
        assert other not in operators
        # Slower on a CPU than the operators that it fuses.
        assert "SkipLayerNormalization" not in operators
