"""The device that models run on: which one it is, and how graphs are opened on it.

Only this module, `device` and `session` know onnxruntime's execution providers by name; all others ask a
`Device`.

A device that was asked for works, or the server does not start. onnxruntime itself falls back to the CPU with
a warning if CUDA does not load, and lists the CUDA provider as available because its file exists. So the
decision is made here, by running a small graph.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnx.parser import parse_model

from polyhead_server.engine import openvino_session, session
from polyhead_server.engine.cuda_libraries import load, preload
from polyhead_server.engine.device import (
    CPU,
    CUDA,
    OPENVINO,
    ComputePrecision,
    Device,
    EngineSession,
    check_provider,
)
from polyhead_server.errors import DeviceError, RepositoryError, StartError
from polyhead_server.gpus import check_device, count_gpus, named_gpus

_PROBE = parse_model(
    '<ir_version: 8, opset_import: ["": 17]> probe (float[2, 2] a) => (float[2, 2] b) { b = MatMul(a, a) }'
).SerializeToString()
"""A graph that multiplies a matrix with itself."""

_SDPA_KERNELS = 1 | 2
"""The kernels of attention in 16 bits that CUDA may choose from, as bits: 1 flash, 2 memory-efficient, 8
cuDNN, 16 unfused. Without this, onnxruntime prefers cuDNN's on compute capability 9.0 and above, which builds
a plan for each (B, T) in each thread: that takes 45 to 100 ms. Packed operators and ONNX's `Attention` have
both of the others, com.microsoft `MultiHeadAttention` and `Attention` neither for sequences of lengths."""


def on_cpu(reason: str) -> Device:
    """Describe the CPU."""
    return Device(
        name="cpu",
        provider=CPU,
        reason=reason,
        # Not 16 bits: it has no kernels for bf16, and computes fp16 as fp32 with conversions.
        precisions=frozenset({"fp32", "int8"}),
        host_threads=True,
        least_size=2,
        # Sines, too, but for rows of whole vectors, which the export makes of them.
        unsteady=frozenset({"Elu", "Log", "Mish", "Softplus"}),
        slow_fusions=frozenset({"SkipLayerNormFusion"}),
    )


def on_cuda(reason: str, number: int = 0) -> Device:
    """Describe a CUDA device by its number."""
    return Device(
        name="cuda",
        provider=CUDA,
        reason=reason,
        number=number,
        options={
            # Where it is given, onnxruntime first looks for CUDA among its plug-ins, and logs that it is not.
            **({"device_id": str(number)} if number else {}),
            # TF32 keeps 10 bits of each product: not what an fp32 model was checked with.
            "use_tf32": "0",
            "arena_extend_strategy": "kSameAsRequested",
            "sdpa_kernel": str(_SDPA_KERNELS),
        },
        precisions=frozenset({"fp32", "fp16", "bf16"}),
        host_memory=False,
        default_lanes=2,
        # Attention with a bias is fused where rows of it are aligned, and products of 16 bits are faster.
        length_multiple=8,
        batch_tokens=131_072,
    )


def on_openvino(reason: str) -> Device:
    """Describe the CPU as OpenVINO computes on it.

    Raises:
        DeviceError: OpenVINO does not work.
    """
    offered = openvino_session.capabilities()
    bf16: frozenset[ComputePrecision] = frozenset({"bf16"} if "BF16" in offered else ())
    return Device(
        name="openvino",
        provider=OPENVINO,
        backend="openvino",
        reason=reason,
        precisions=frozenset({"fp32", "int8"}),
        computes=bf16 | {"fp32"},
        host_threads=True,
        least_size=2,
        length_multiple=16,  # the most numbers of fp32 in a vector
    )


def cuda_problem(number: int = 0) -> str | None:
    """Return what keeps CUDA from working, or None if a graph ran on this GPU."""
    if CUDA not in ort.get_available_providers():
        return "this onnxruntime was built without CUDA: install onnxruntime-gpu in its place"
    driver = [] if load("libcuda.so.1") else ["libcuda.so.1"]
    if missing := driver + preload():
        return (
            f"missing {', '.join(missing)}: pip install 'polyhead[cuda]', and the NVIDIA driver for libcuda"
        )
    count = count_gpus()
    if count is not None and count < 1:
        return "the NVIDIA driver shows no device"
    if count is not None and number >= count:
        return f"there is no GPU {number}: the NVIDIA driver shows {count}, numbered from 0"
    return _try_cuda(number)


def choose_device(
    device: str,
    *,
    problem: Callable[[int], str | None] = cuda_problem,
    gpus: Callable[[], int | None] = count_gpus,
) -> Device:
    """Choose where to run.

    Args:
        device: `auto`, `cpu`, `openvino`, `cuda`, or `cuda:1` for one GPU. Of several GPUs, a process takes
            the first.
        problem: Returns what keeps CUDA from working on a GPU; replaced in tests.
        gpus: Counts the GPUs; replaced in tests.

    Raises:
        ValueError: There is no such device.
        DeviceError: CUDA or OpenVINO was asked for and does not work.
    """
    check_device(str, device)
    on_host: Mapping[str, Callable[[str], Device]] = {"cpu": on_cpu, "openvino": on_openvino}
    if device in on_host:
        return on_host[device](f"--device {device}")
    number = next(iter(named_gpus(device)), 0)
    found = problem(number)
    if found is None:
        return on_cuda("auto: CUDA works" if device == "auto" else f"--device {device}", number)
    if device != "auto":
        raise DeviceError(f"--device {device} does not work here: {found}")
    # Without a GPU it is no news that its libraries are missing.
    return on_cpu(f"auto: CUDA does not work here: {found}" if gpus() else "auto: no NVIDIA GPU is seen")


def in_precision(device: Device, precision: ComputePrecision) -> Device:
    """Return the device, computing in a precision.

    Raises:
        DeviceError: It cannot.
    """
    if precision not in device.computes:
        raise DeviceError(
            f"--compute-precision {precision} does not work here: --device {device.name} computes in "
            f"{' or '.join(sorted(device.computes))}. bf16 needs --device openvino, and a processor with "
            "AVX512_BF16 or AMX"
        )
    return replace(device, compute_precision=precision)


def open_graph(path: Path, device: Device, *, threads: int, lanes: int) -> EngineSession:
    """Open a session of a graph.

    Args:
        path: The graph's file, beside its weights.
        device: Where it runs.
        threads: Threads of one run on the CPU.
        lanes: How many runs go side by side.

    Raises:
        RepositoryError: The graph does not load.
        DeviceError: It does not run on the device, or only in part.
    """
    if device.provider == OPENVINO:
        return openvino_session.OpenVinoSession(
            path, precision=device.compute_precision, threads=threads, lanes=lanes
        ).prepare
    opened = session.open_session(path, device=device, threads=threads)
    return partial(session.OnnxRuntimeRun, opened, device.arena)


def check_precision(precision: str, device: Device) -> None:
    """Check that a device has kernels for a family's precision.

    Raises:
        RepositoryError: It has none: 16-bit numbers run on CUDA only, and products of 8 bits on the CPU only.
    """
    if precision in device.precisions:
        return
    if precision == "int8":
        raise RepositoryError(
            "it is int8, which runs on the CPU only: serve it with --device cpu or openvino, or export it "
            "with --precision fp16"
        )
    raise RepositoryError(
        f"it is {precision}, which runs on CUDA only: serve it with --device cuda on a machine with a "
        "GPU, or export it with --precision fp32"
    )


def flush_denormals() -> None:
    """Let this thread, and those that it starts from now on, take denormal numbers for zero.

    Onnxruntime's softmax gives masked keys weights of about 4e-39, which are denormal, and a CPU multiplies
    by them slowly. Onnxruntime sets the mode once, where a process opens its first session.
    """
    options = ort.SessionOptions()
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    ort.InferenceSession(_PROBE, options, providers=[CPU])


def _try_cuda(number: int) -> str | None:
    """Multiply two matrices on a GPU; return what went wrong."""
    device = on_cuda("probe", number)
    try:
        probe = ort.InferenceSession(_PROBE, providers=device.providers)
        check_provider(probe.get_providers(), device)
        probe.run(None, {"a": np.eye(2, dtype=np.float32)})
    except StartError as error:
        return str(error)
    except Exception as error:
        return f"a test run failed: {str(error).splitlines()[0]}"
    return None
