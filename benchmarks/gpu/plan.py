"""Encoders and sizes of a check: at full size, or tiny to try the code on a CPU."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from benchmarks.gpu.device import TimedDevice
from polyhead_model import PRESETS, EncoderConfig

Precision = Literal["fp32", "fp16", "bf16"]
Size = tuple[int, int]
"""(B, T) of a run."""


@dataclass(frozen=True, kw_only=True)
class EncoderFamily:
    """An encoder over token ids, in one precision."""

    name: str
    precision: Precision
    config: EncoderConfig
    trained: bool = False
    """Use the weights of all-MiniLM-L6-v2, which has this configuration; otherwise random ones."""

    @property
    def key(self) -> str:
        """Its name in the model repository."""
        return f"{self.name}-{self.precision}"


@dataclass(frozen=True, kw_only=True)
class CheckPlan:
    """What a check measures."""

    compared: tuple[EncoderFamily, ...]
    """For parity and attention kernels."""
    timed: tuple[EncoderFamily, ...]
    """For the speed table; the first is also served."""
    parity_sizes: tuple[Size, ...] = ((1, 1), (3, 33), (5, 2), (8, 128), (2, 511))
    kernel_size: Size = (32, 512)
    speed_sizes: tuple[Size, ...] = (
        *((1, 128), (8, 128), (32, 128), (128, 128)),
        *((1, 512), (8, 512), (32, 512)),
    )
    batches: tuple[int, ...] = (1, 8, 32, 64, 128)
    """B of onnxruntime in process, which the server is compared with."""
    served_tokens: int = 128
    workers: tuple[int, ...] = (1, 4)
    callers: int = 8
    """Processes that send requests."""
    in_flight: int = 256
    """Requests of all callers together."""
    seconds: float = 5.0
    """Length of a load."""
    sample_ms: float = 50.0
    rounds: int = 5

    @property
    def families(self) -> tuple[EncoderFamily, ...]:
        """Every family once."""
        return tuple({family.key: family for family in (*self.timed, *self.compared)}.values())


@dataclass(frozen=True, kw_only=True)
class Check:
    """The argument of every part."""

    device: TimedDevice
    plan: CheckPlan
    models: Path
    """Model repositories, one for each family."""
    write: Callable[..., None]
    """`write(kind, **facts)` stores one result: a `row` of `cells`, a `line` of `text`, a `target`, …"""

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """Store an exception as a problem, and go on."""
        try:
            yield
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            self.write("problem", what=what, reason=reason)

    def judge(self, name: str, met: bool, seen: str) -> None:
        """Store whether a target is met, and what was seen."""
        self.write("target", name=name, met=met, seen=seen)


def full(device: str) -> CheckPlan:
    """Return the plan for a GPU; on the CPU everything is in fp32."""
    precisions: tuple[Precision, ...] = ("fp32", "fp16", "bf16") if device == "cuda" else ("fp32",)
    fast: Precision = "fp16" if device == "cuda" else "fp32"
    minilm, base, large = (_with_tokens(PRESETS[name]) for name in ("minilm", "bert-base", "bert-large"))
    return CheckPlan(
        compared=tuple(
            EncoderFamily(name="minilm", precision=each, config=minilm, trained=True) for each in precisions
        ),
        timed=(
            EncoderFamily(name="base", precision=fast, config=base),
            EncoderFamily(name="large", precision=fast, config=large),
        ),
    )


def tiny(device: str) -> CheckPlan:
    """Return a plan that takes seconds, on a CPU as well; its numbers mean nothing."""
    config = EncoderConfig(
        d_model=32, heads=4, layers=2, feed_forward=64, vocabulary=50, positions=32, pooling="mean"
    )
    family = EncoderFamily(name="tiny", precision="fp16" if device == "cuda" else "fp32", config=config)
    return CheckPlan(
        compared=(family,),
        timed=(family,),
        parity_sizes=((1, 1), (3, 7)),
        kernel_size=(2, 8),
        speed_sizes=((4, 8),),
        batches=(1, 4),
        served_tokens=8,
        workers=(1,),
        callers=1,
        in_flight=4,
        seconds=0.3,
        sample_ms=2.0,
        rounds=2,
    )


def _with_tokens(preset: EncoderConfig) -> EncoderConfig:
    """Return a preset's shape over token ids, pooled to a sentence vector."""
    return replace(
        preset,
        vocabulary=30_522,
        positions=512,
        types=2,
        embedding_norm=True,
        pooling="mean",
        normalise=True,
    )
