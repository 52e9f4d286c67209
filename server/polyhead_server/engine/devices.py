"""Which device the models run on. A device that was asked for works, or the server does not start.

onnxruntime itself falls back to the CPU with a warning when CUDA does not load, and lists the CUDA provider
as available because the file is there. So the decision is made here, by running a small graph.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from polyhead_server.engine.cuda_libraries import load, preload
from polyhead_server.engine.gpus import count_gpus, named_gpus
from polyhead_server.errors import DeviceError, RepositoryError, StartError

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"

_SIXTEEN_BITS = frozenset({"fp16", "bf16"})


@dataclass(frozen=True, kw_only=True)
class Device:
    """Where sessions run."""

    name: str
    provider: str
    reason: str
    """Why this one, for the log."""
    options: Mapping[str, str] = field(default_factory=dict)
    """onnxruntime's options of the provider."""
    card: int = 0
    """The GPU's number, among those that CUDA_VISIBLE_DEVICES leaves."""
    memory_limit: int = 0
    """Bytes of the GPU's memory that each graph's weights and runs may take; 0 is no limit."""
    packed: bool = True
    """Each session copies its weights into the form that its kernels read best; else it maps the file."""

    @property
    def providers(self) -> list[Any]:
        """What a session is created with. The CPU stays for the few shape operators that CUDA lacks."""
        if self.provider == CPU:
            return [CPU]
        options = dict(self.options)
        if self.memory_limit:
            options["gpu_mem_limit"] = str(self.memory_limit)
        return [(self.provider, options), CPU]


def on_cpu(reason: str) -> Device:
    """The CPU."""
    return Device(name="cpu", provider=CPU, reason=reason)


def on_cuda(reason: str, card: int = 0) -> Device:
    """A CUDA device, by its number."""
    # TF32 keeps 10 bits of each product: not what an fp32 model was checked with.
    options = {"device_id": str(card), "use_tf32": "0", "arena_extend_strategy": "kSameAsRequested"}
    return Device(name="cuda", provider=CUDA, reason=reason, card=card, options=options)


def cuda_problem(card: int = 0) -> str | None:
    """What keeps CUDA from working, None when a graph ran on this card."""
    if CUDA not in ort.get_available_providers():
        return "this onnxruntime was built without CUDA: install onnxruntime-gpu in its place"
    missing = _missing_libraries()
    if missing:
        return (
            f"missing {', '.join(missing)}: pip install 'polyhead[cuda]', and the NVIDIA driver for libcuda"
        )
    cards = count_gpus()
    if cards is not None and cards < 1:
        return "the NVIDIA driver shows no device"
    if cards is not None and card >= cards:
        return f"there is no card {card}: the NVIDIA driver shows {cards}, numbered from 0"
    return _try_cuda(card)


def choose_device(device: str, *, problem: Callable[[int], str | None] = cuda_problem) -> Device:
    """Decides where to run.

    Args:
        device: `auto`, `cpu`, `cuda`, or `cuda:1` for a card. Of several cards, a process takes the first.
        problem: Says what keeps CUDA from working on a card; tests have their own.

    Raises:
        DeviceError: CUDA was asked for and does not work.
    """
    if device == "cpu":
        return on_cpu("--device cpu")
    card = next(iter(named_gpus(device)), 0)
    found = problem(card)
    if found is None:
        return on_cuda("auto: CUDA works" if device == "auto" else f"--device {device}", card)
    if device != "auto":
        raise DeviceError(f"--device {device} does not work here: {found}")
    return on_cpu(f"auto: CUDA does not work here: {found}")


def check_provider(session_providers: Sequence[str], device: Device) -> None:
    """Checks that a session really got its device.

    Raises:
        DeviceError: onnxruntime took another one.
    """
    if session_providers[0] != device.provider:
        raise DeviceError(
            f"the session must run on {device.provider}, onnxruntime gave it {session_providers[0]}"
        )


def check_precision(precision: str, device: Device) -> None:
    """Checks that a device has kernels for a family's numbers.

    Raises:
        RepositoryError: It has not: the CPU, for 16-bit numbers.
    """
    if precision in _SIXTEEN_BITS and device.provider == CPU:
        raise RepositoryError(
            f"it is {precision}, which runs on CUDA only: serve it with --device cuda on a machine with a "
            "GPU, or export it with --precision fp32"
        )


def _missing_libraries() -> list[str]:
    driver = ["libcuda.so.1"] if sys.platform == "linux" and not load("libcuda.so.1") else []
    return driver + preload()


def _try_cuda(card: int) -> str | None:
    """Multiplies two matrices on a card; returns what went wrong."""
    matrix = onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [2, 2])
    product = onnx.helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, [2, 2])
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["a", "a"], ["b"])], "probe", [matrix], [product]
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    device = on_cuda("probe", card)
    try:
        session = ort.InferenceSession(model.SerializeToString(), providers=device.providers)
        check_provider(session.get_providers(), device)
        session.run(None, {"a": np.eye(2, dtype=np.float32)})
    except StartError as error:
        return str(error)
    except Exception as error:
        return f"a test run failed: {str(error).splitlines()[0]}"
    return None
