"""The device that is measured: the first GPU, or the CPU to try the code."""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import onnxruntime as ort
import torch


class NoDeviceError(Exception):
    """There is no GPU to measure; the message says what to install."""


class TimedDevice:
    """A device and its clock.

    Args:
        kind: `cuda` for the first GPU, or `cpu`.

    Raises:
        NoDeviceError: `cuda` was asked for, and PyTorch or onnxruntime cannot use it.
    """

    def __init__(self, kind: Literal["cuda", "cpu"]) -> None:
        self.kind = kind
        self.torch = torch.device(kind)
        self.stream: Any = None
        """The CUDA stream that both PyTorch and onnxruntime compute on; None on the CPU."""
        if kind == "cpu":
            return
        if not torch.cuda.is_available():
            raise NoDeviceError(
                f"torch {torch.__version__} sees no GPU: an NVIDIA driver and a torch with CUDA are needed; "
                "`--device cpu --tiny` tries the code without one"
            )
        if "CUDAExecutionProvider" not in ort.get_available_providers():
            raise NoDeviceError(
                f"onnxruntime {ort.__version__} was built without CUDA: install onnxruntime-gpu in its place"
            )
        torch.cuda.init()
        # PyTorch has loaded its CUDA libraries; onnxruntime looks for the others where pip installs them.
        ort.preload_dlls()
        self.stream = torch.cuda.Stream()

    @property
    def name(self) -> str:
        """The GPU's name by its driver."""
        return "cpu" if self.kind == "cpu" else str(torch.cuda.get_device_name())

    @property
    def providers(self) -> list[Any]:
        """The providers of an onnxruntime session; the CPU gets operators on shapes."""
        if self.kind == "cpu":
            return ["CPUExecutionProvider"]
        options = {"device_id": "0", "use_tf32": "0", "user_compute_stream": str(self.stream.cuda_stream)}
        return [("CUDAExecutionProvider", options), "CPUExecutionProvider"]

    def on_stream(self) -> AbstractContextManager[Any]:
        """Let PyTorch compute on the timed stream."""
        return nullcontext() if self.kind == "cpu" else torch.cuda.stream(self.stream)

    def milliseconds(self, call: Callable[[], object], runs: int) -> float:
        """Return the time of one of `runs` calls in a row, by the device's own clock."""
        if self.kind == "cpu":
            start = time.perf_counter()
            for _ in range(runs):
                call()
            return 1e3 * (time.perf_counter() - start) / runs
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with self.on_stream():
            begin.record()
            for _ in range(runs):
                call()
            end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / runs

    def compare(
        self, calls: Mapping[str, Callable[[], object]], *, sample_ms: float, rounds: int
    ) -> dict[str, list[float]]:
        """Time calls in turn, so that a dropping clock slows all of them.

        Args:
            calls: By name.
            sample_ms: How long a call is repeated for one sample.
            rounds: Samples per call.

        Returns:
            Milliseconds of one call by name, a sample per round.
        """
        runs = {}
        for name, call in calls.items():
            self.milliseconds(call, 3)  # makes plans, allocates memory, raises clocks
            runs[name] = max(1, min(200, int(sample_ms / max(1e-3, self.milliseconds(call, 1)))))
        samples: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                samples[name].append(self.milliseconds(call, runs[name]))
        return samples
