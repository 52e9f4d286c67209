"""The device that is measured on: a GPU as torch sees it, or the CPU for a try-out of the code."""

import importlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import DTypeLike

from gpu.plan import Precision

Kind = Literal["cuda", "cpu"]
"""As torch and onnxruntime call devices."""

DTYPES: Mapping[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
_BFLOAT16 = 16
"""ONNX's number of the type that numpy lacks."""
ELEMENTS: Mapping[torch.dtype, DTypeLike | int] = {
    torch.float32: np.float32,
    torch.float16: np.float16,
    torch.bfloat16: _BFLOAT16,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.bool: np.bool_,
}
"""What onnxruntime calls torch's types when it is given memory."""


class NoCardError(Exception):
    """There is no GPU to measure on."""


class Card(ABC):
    """A device, its clock and its memory."""

    device: torch.device
    kind: Kind

    @property
    @abstractmethod
    def name(self) -> str:
        """What it is called."""

    @abstractmethod
    def providers(self, *, graphs: bool = False) -> list[Any]:
        """What an onnxruntime session on it is created with, on the stream that is timed.

        Args:
            graphs: Capture runs as CUDA graphs.
        """

    @abstractmethod
    def milliseconds(self, call: Callable[[], object], runs: int) -> float:
        """The time of one of `runs` calls, one right behind the other, by the device's own clock."""

    @abstractmethod
    def used_bytes(self) -> int:
        """Memory in use on the device, by whoever uses it."""

    @abstractmethod
    def free_bytes(self) -> int:
        """Memory that is free on the device."""

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Everything of torch's in here goes to the stream that is timed."""
        yield

    @abstractmethod
    def synchronise(self) -> None:
        """Waits until the device has done everything."""

    @abstractmethod
    def give_back(self) -> None:
        """Hands what torch holds and does not use back to the device."""


class Gpu(Card):
    """The first CUDA device.

    Raises:
        NoCardError: There is none, or torch cannot use it.
    """

    kind: Kind = "cuda"

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise NoCardError(
                f"torch {torch.__version__} sees no GPU: an NVIDIA driver and a torch with CUDA are needed; "
                "`--device cpu --tiny` tries the code without one"
            )
        self.device = torch.device("cuda", 0)
        torch.cuda.init()
        self._stream = torch.cuda.Stream(self.device)

    @property
    def name(self) -> str:
        """As the driver says."""
        return str(torch.cuda.get_device_name(self.device))

    def providers(self, *, graphs: bool = False) -> list[Any]:
        """CUDA, with the CPU for the few operators on shapes."""
        options = {
            "device_id": "0",
            "use_tf32": "0",
            "arena_extend_strategy": "kSameAsRequested",
            "user_compute_stream": str(self._stream.cuda_stream),
        }
        if graphs:
            options["enable_cuda_graph"] = "1"
        return [("CUDAExecutionProvider", options), "CPUExecutionProvider"]

    def milliseconds(self, call: Callable[[], object], runs: int) -> float:
        """By events on the stream."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with self.stream():
            start.record(self._stream)
            for _ in range(runs):
                call()
            end.record(self._stream)
        end.synchronize()
        return float(start.elapsed_time(end)) / runs

    def used_bytes(self) -> int:
        """As the driver counts, everyone's."""
        free, total = torch.cuda.mem_get_info(self.device)
        return int(total - free)

    def free_bytes(self) -> int:
        """As the driver counts."""
        return int(torch.cuda.mem_get_info(self.device)[0])

    @contextmanager
    def stream(self) -> Iterator[None]:
        """The stream that onnxruntime is given."""
        with torch.cuda.stream(self._stream):
            yield

    @property
    def torch_stream(self) -> torch.cuda.Stream:
        """For captures."""
        return self._stream

    def synchronise(self) -> None:
        """Waits for all streams."""
        torch.cuda.synchronize(self.device)

    def give_back(self) -> None:
        """Empties torch's cache."""
        torch.cuda.empty_cache()


class Cpu(Card):
    """The processor, for a try-out."""

    kind: Kind = "cpu"
    device = torch.device("cpu")

    @property
    def name(self) -> str:
        """Not the model: a try-out is the same on all."""
        return "cpu"

    def providers(self, *, graphs: bool = False) -> list[Any]:
        """The CPU."""
        if graphs:
            raise NoCardError("CUDA graphs need a GPU")
        return ["CPUExecutionProvider"]

    def milliseconds(self, call: Callable[[], object], runs: int) -> float:
        """By the host's clock: the CPU has done a call when it returns."""
        start = time.perf_counter()
        for _ in range(runs):
            call()
        return 1e3 * (time.perf_counter() - start) / runs

    def used_bytes(self) -> int:
        """What the process has in memory."""
        return int(importlib.import_module("psutil").Process().memory_info().rss)

    def free_bytes(self) -> int:
        """The machine's."""
        return int(importlib.import_module("psutil").virtual_memory().available)

    def synchronise(self) -> None:
        """Nothing is under way."""

    def give_back(self) -> None:
        """Nothing is held."""


def open_card(device: str) -> Card:
    """Makes the device ready, for onnxruntime as well.

    Raises:
        NoCardError: `cuda` was asked for, and torch or onnxruntime cannot use it.
    """
    if device == "cpu":
        return Cpu()
    card = Gpu()
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        raise NoCardError(
            f"onnxruntime {ort.__version__} was built without CUDA: install onnxruntime-gpu in its place"
        )
    # torch has loaded its CUDA libraries by now; what is still missing is looked for where pip puts it.
    ort.preload_dlls()
    return card
