"""What the doctor finds, as values. Sizes are in bytes; None stands for what cannot be found out."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from polyhead_server.serving.drift import ComputeDrift

RequestedDevice = Literal["auto", "cpu", "openvino", "cuda"]


@dataclass(frozen=True, kw_only=True)
class Processors:
    """The CPUs that this process may use."""

    in_machine: int
    affinity: int
    """Those that its CPU affinity allows."""
    usable: int
    """Those that affinity and the container's quota leave: the threads of `polyhead serve`."""
    model: str | None = None
    instructions: Mapping[str, bool] | None = None
    """Whether it has those that make encoders fast."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The memory of the machine and of the container."""

    total: int
    available: int
    limit: int | None
    """The control group's; None is no limit."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU that the driver shows to this process."""

    name: str
    capability: str
    """Compute capability, such as 9.0."""
    memory: int


@dataclass(frozen=True, kw_only=True)
class OnnxRuntime:
    """The installed onnxruntime."""

    version: str
    packages: tuple[str, ...]
    """The distributions that installed it. Several overwrite each other."""
    cuda: str | None
    """The CUDA version that it was built for; None where it was built without."""
    providers: tuple[str, ...]
    """Those that it was built with, whether they load or not."""


@dataclass(frozen=True, kw_only=True)
class OpenVino:
    """The installed OpenVINO."""

    version: str | None
    computes: tuple[str, ...]
    """The precisions in which it computes here."""
    problem: str | None
    """What keeps it from working."""


@dataclass(frozen=True, kw_only=True)
class Library:
    """A library that the CUDA provider uses."""

    name: str
    needed: Literal["to start", "for speed"]
    """Without those for speed CUDA works, with slower attention."""
    path: str | None
    """Where it was loaded from; None where it cannot be loaded."""
    brought_by: str
    """The pip package, or what else contains it."""


@dataclass(frozen=True, kw_only=True)
class Cuda:
    """Everything about NVIDIA on this machine."""

    driver: str | None
    highest: str | None
    """The highest CUDA version that the driver runs."""
    runtime: str | None
    """The version of CUDA's runtime, as it says itself."""
    compiler: str | None
    """That of nvrtc, with which cuDNN compiles kernels."""
    gpus: tuple[Gpu, ...]
    libraries: tuple[Library, ...]
    problem: str | None
    """What keeps CUDA from working; None when a graph ran on it."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What there is."""

    processors: Processors
    memory: Memory
    runtime: OnnxRuntime
    openvino: OpenVino
    cuda: Cuda


@dataclass(frozen=True, kw_only=True)
class GraphReport:
    """One graph of a model repository, loaded as a server would."""

    model: str
    version: int
    precision: str
    provider: str | None = None
    """Where it runs; None where it cannot be loaded."""
    attention: str = ""
    """`fused` (one operator computes it), `explicit` (products and a softmax), or both."""
    attention_operators: Mapping[str, int] = field(default_factory=dict)
    operators: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """The number of nodes of each operator on each provider."""
    slow_on_cpu: Mapping[str, int] = field(default_factory=dict)
    """Operators on the CPU that should run on the GPU: products, attention, norms."""
    drift: ComputeDrift | None = None
    """What computing in another precision than fp32 changes."""
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that does not work, and what to do."""

    what: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class Report(Machine):
    """Everything."""

    polyhead: str
    python: str
    system: str
    asked: RequestedDevice
    chosen: str | None
    """The device that a server would take; None where it would not start."""
    reason: str
    compute_precision: str
    graphs: tuple[GraphReport, ...]
    problems: tuple[Problem, ...]
    advice: tuple[Problem, ...]
    """What works and could be better."""

    @property
    def works(self) -> bool:
        """Whether a server would run as requested."""
        return not self.problems

    def facts(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {"works": self.works} | asdict(self)
