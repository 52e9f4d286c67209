"""A device: its capabilities, which all others ask, and runs of graphs on it. `devices` chooses one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from numpy.typing import NDArray

from polyhead_server.errors import DeviceError

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
OPENVINO = "OpenVINO"
"""OpenVINO's own runtime, which is no provider of onnxruntime's."""

ComputePrecision = Literal["fp32", "bf16"]


@dataclass(frozen=True, kw_only=True)
class Device:
    """A device and its capabilities. The defaults are safe for a provider that is not known here."""

    name: str
    provider: str
    backend: str = "onnxruntime"
    """What opens graphs, as Triton names it."""
    reason: str
    """Why this device was chosen, for the log."""
    options: Mapping[str, str] = field(default_factory=dict)
    """The provider's options."""
    number: int = 0
    """The GPU's number among those that CUDA_VISIBLE_DEVICES leaves."""
    memory_limit: int = 0
    """Bytes of GPU memory that each graph's weights and runs may take; 0 is no limit."""
    packed: bool = True
    """Whether sessions copy their weights into the layout of their kernels, instead of mapping the file."""
    precisions: frozenset[str] = frozenset({"fp32"})
    """Precisions of families that it has kernels for."""
    computes: frozenset[ComputePrecision] = frozenset({"fp32"})
    """Precisions in which it can compute what a family holds in fp32."""
    compute_precision: ComputePrecision = "fp32"
    """The one of them in which it does."""
    host_memory: bool = True
    """Whether tensors of a run are in the host's memory, not in a GPU's."""
    host_threads: bool = False
    """Whether threads of the CPU compute the runs.

    Then small work may run on the event loop, where it waits for no larger run, and a second session with one
    thread a run gets more done.
    """
    default_lanes: int = 1
    """How many runs of one session go side by side: two where copies of one go beside kernels of another."""
    least_size: int = 1
    """Sequences, and what is asked of each, are padded to this, where kernels multiply a matrix of one row in
    another way than one of several."""
    length_multiple: int = 1
    """Sequences are padded to a multiple of this, where kernels take vectors of so many numbers and treat
    what is left in another way. So a CPU gives a sequence the same bits at any T, as zeros change no sum, and
    a GPU has its fast kernels."""
    batch_tokens: int = 16_384
    """The most tokens of a batch of several requests, unless the server is told otherwise."""
    unsteady: frozenset[str] = frozenset()
    """Operators whose kernels compute the last numbers of an array, which fill no vector of the processor, by
    another function, so that a number depends on where it lies."""
    slow_fusions: frozenset[str] = frozenset()
    """Onnxruntime's fusions whose kernels are slower here than the operators that they replace."""

    @property
    def providers(self) -> list[Any]:
        """What sessions are created with. The CPU stays for the few shape operators that CUDA lacks."""
        if self.provider == CPU:
            return [CPU]
        options = dict(self.options)
        if self.memory_limit:
            options["gpu_mem_limit"] = str(self.memory_limit)
        return [(self.provider, options), CPU]

    @property
    def checks_placement(self) -> bool:
        """Whether onnxruntime may leave operators to another provider, which has to be checked."""
        return self.provider != CPU

    @property
    def arena(self) -> str:
        """Onnxruntime's name for the memory arena that runs take memory from."""
        return "cpu:0" if self.host_memory else f"gpu:{self.number}"


def check_provider(session_providers: Sequence[str], device: Device) -> None:
    """Check that a session got its device.

    Raises:
        DeviceError: onnxruntime took another one.
    """
    if session_providers[0] != device.provider:
        raise DeviceError(
            f"the session must run on {device.provider}, onnxruntime gave it {session_providers[0]}"
        )


class EngineRun(Protocol):
    """One run of a session."""

    def __call__(
        self, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str], *, shrink: bool
    ) -> list[NDArray[Any]]:
        """Compute, and return arrays that no later run changes. The GIL is free meanwhile.

        Args:
            feeds: Every input by name.
            outputs: The outputs to return.
            shrink: Whether to return memory of earlier runs to the system afterwards.
        """

    def cancel(self) -> None:
        """End the run at its next operator, or as soon as it begins: it raises. Any thread may call this."""


EngineSession: TypeAlias = Callable[[], EngineRun]
"""A graph that is loaded: returns a run that has not begun. Runs may go side by side."""
