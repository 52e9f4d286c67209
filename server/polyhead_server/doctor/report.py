"""What the doctor finds, as values. Sizes are in bytes."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Asked = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class Processors:
    """The CPU as this process may use it."""

    in_machine: int
    affinity: int
    """Those that the scheduler lets this process run on."""
    usable: int
    """What affinity and the container's quota leave: the threads that `polyhead serve` takes."""
    concurrent_runs: int
    """Batches of one model that are computed at once with so many threads."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The machine's memory, and the container's share of it."""

    total: int
    available: int
    limit: int | None
    """The control group's; None where there is none."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """A GPU that the driver shows to this process."""

    name: str
    capability: str
    """Compute capability, such as 9.0."""
    memory: int
    free: int | None
    """None where the management library does not say."""


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The onnxruntime that is installed."""

    version: str
    packages: tuple[str, ...]
    """The distributions that have written into its folder. More than one overwrite each other."""
    cuda: str | None
    """The CUDA version that it was built for; None where it was built without."""
    build: str
    providers: tuple[str, ...]
    """Those that it was built with, whether they load or not."""


@dataclass(frozen=True, kw_only=True)
class Library:
    """A library that the CUDA provider uses."""

    name: str
    needed: Literal["to start", "for speed"]
    """Without one of those for speed CUDA works, with slower attention."""
    path: str | None
    """Where it was loaded from; None where it cannot be loaded."""
    brought_by: str
    """The pip package, or what else has it."""


@dataclass(frozen=True, kw_only=True)
class Cuda:
    """Everything about NVIDIA on this machine. Versions are None where nothing tells them."""

    driver: str | None
    highest: str | None
    """The highest CUDA version that the driver can run."""
    runtime: str | None
    compiler: str | None
    """nvrtc's, which cuDNN compiles kernels with."""
    cublas: str | None
    cudnn: str | None
    cards: tuple[Card, ...]
    libraries: tuple[Library, ...]
    problem: str | None
    """What keeps CUDA from working; None when a graph ran on it."""


@dataclass(frozen=True, kw_only=True)
class GraphReport:
    """One graph of a model repository, loaded as it would be served."""

    model: str
    version: int
    precision: str
    provider: str | None
    """Where it runs; None where it cannot be loaded."""
    attention: str
    """`fused` (an operator that computes it all), `explicit` (products and a softmax), or both."""
    attention_operators: Mapping[str, int]
    operators: Mapping[str, Mapping[str, int]]
    """How many nodes of each operator run on each provider."""
    slow_on_cpu: Mapping[str, int]
    """Those on the CPU that should be on the card: products, attention, norms."""
    problem: str | None


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that keeps what was asked for from working, and what to do."""

    what: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything."""

    polyhead: str
    python: str
    system: str
    asked: Asked
    chosen: str | None
    """The device that a server would take; None where it would not start."""
    reason: str
    processors: Processors
    memory: Memory
    runtime: Runtime
    cuda: Cuda
    graphs: tuple[GraphReport, ...]
    problems: tuple[Problem, ...]
    advice: tuple[Problem, ...]
    """What works and could be better."""

    @property
    def works(self) -> bool:
        """Whether what was asked for works here."""
        return not self.problems

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {"works": self.works} | asdict(self)
