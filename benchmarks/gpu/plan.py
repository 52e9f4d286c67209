"""Encoders and sizes of a check: at full size, or tiny to try the code on a CPU."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpu.device import Device
from polyhead_model import PRESETS, EncoderConfig

Precision = Literal["fp32", "fp16", "bf16"]
Size = tuple[int, int]
"""(B, T) of a run."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """An encoder over token ids, at one precision."""

    name: str
    precision: Precision
    config: EncoderConfig
    trained: bool = False
    """Take the weights of all-MiniLM-L6-v2, which has this configuration; otherwise random ones."""

    @property
    def key(self) -> str:
        """Its name in the model repository."""
        return f"{self.name}-{self.precision}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one check measures."""

    compared: tuple[Family, ...]
    """For parity and for the attention kernels."""
    timed: tuple[Family, ...]
    """For the speed table. The first is served, too."""
    parity_sizes: tuple[Size, ...]
    kernel_size: Size
    speed_sizes: tuple[Size, ...]
    batches: tuple[int, ...]
    """B of onnxruntime in process, which the server is compared with."""
    served_tokens: int
    workers: tuple[int, ...]
    callers: int
    """Processes that send requests."""
    in_flight: int
    """Requests of all callers together."""
    seconds: float
    """Length of a load."""
    sample_ms: float
    rounds: int

    @property
    def families(self) -> tuple[Family, ...]:
        """Every family once."""
        return tuple({family.key: family for family in (*self.timed, *self.compared)}.values())


@dataclass(frozen=True, kw_only=True)
class Check:
    """What a part is given."""

    device: Device
    plan: Plan
    models: Path
    """Model repositories, one for each family."""
    write: Callable[..., None]
    """`write(kind, **facts)` keeps one result."""

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """Keep what fails in here as a problem, and go on."""
        try:
            yield
        except Exception as error:
            self.write(
                "problem", what=what, reason=" ".join(f"{type(error).__name__}: {error}".split())[:300]
            )


def full(device: str) -> Plan:
    """Return the plan for a GPU; on the CPU everything is in fp32."""
    gpu = device == "cuda"
    fast: Precision = "fp16" if gpu else "fp32"
    precisions: tuple[Precision, ...] = ("fp32", "fp16", "bf16") if gpu else ("fp32",)
    minilm = _sentences(PRESETS["minilm"])
    return Plan(
        compared=tuple(
            Family(name="minilm", precision=each, config=minilm, trained=True) for each in precisions
        ),
        timed=(
            Family(name="base", precision=fast, config=_sentences(PRESETS["bert-base"])),
            Family(name="large", precision=fast, config=_sentences(PRESETS["bert-large"])),
        ),
        parity_sizes=((1, 1), (3, 33), (5, 2), (8, 128), (2, 511)),
        kernel_size=(32, 512),
        speed_sizes=((1, 128), (8, 128), (32, 128), (128, 128), (1, 512), (8, 512), (32, 512)),
        batches=(1, 8, 32, 64, 128),
        served_tokens=128,
        workers=(1, 4),
        callers=8,
        in_flight=256,
        seconds=5.0,
        sample_ms=50.0,
        rounds=5,
    )


def tiny(device: str) -> Plan:
    """Return a plan that takes seconds, on a CPU as well; its numbers mean nothing."""
    config = EncoderConfig(
        d_model=32, heads=4, layers=2, feed_forward=64, vocabulary=50, positions=32, pooling="mean"
    )
    precision: Precision = "fp16" if device == "cuda" else "fp32"
    family = Family(name="tiny", precision=precision, config=config)
    return Plan(
        compared=(family,),
        timed=(family,),
        parity_sizes=((1, 1), (3, 7)),
        kernel_size=(2, 8),
        speed_sizes=((1, 8), (4, 8)),
        batches=(1, 4),
        served_tokens=8,
        workers=(1,),
        callers=1,
        in_flight=4,
        seconds=0.3,
        sample_ms=2.0,
        rounds=2,
    )


def _sentences(preset: EncoderConfig) -> EncoderConfig:
    """A preset's shape over token ids, pooled to a sentence vector."""
    return EncoderConfig(
        d_model=preset.d_model,
        heads=preset.heads,
        layers=preset.layers,
        feed_forward=preset.feed_forward,
        vocabulary=30_522,
        positions=512,
        types=2,
        embedding_norm=True,
        pooling="mean",
        normalise=True,
    )
