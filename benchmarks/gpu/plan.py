"""Encoders and sizes of a check: at full size, or tiny to try the code on a CPU."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from benchmarks.encoders import BERT, MINILM, BenchEncoder
from benchmarks.gpu.device import TimedDevice
from polyhead_model import EncoderConfig

Size = tuple[int, int]
"""(B, T) of a run."""


@dataclass(frozen=True, kw_only=True)
class EncoderFamily:
    """An encoder over token ids, in one precision."""

    encoder: BenchEncoder
    precision: Literal["fp32", "fp16", "bf16"]

    @property
    def key(self) -> str:
        """Its name, and that of its model repository."""
        return f"{self.encoder.name}-{self.precision}"


@dataclass(frozen=True, kw_only=True)
class CheckPlan:
    """What a check measures."""

    compared: tuple[EncoderFamily, ...]
    """For parity."""
    timed: tuple[EncoderFamily, ...]
    """For the speed table; the first is also served."""
    parity_sizes: tuple[Size, ...] = ((1, 1), (3, 33), (5, 2), (8, 128), (2, 511))
    speed_sizes: tuple[Size, ...] = (
        *((1, 128), (8, 128), (32, 128), (128, 128)),
        *((1, 512), (8, 512), (32, 512)),
    )
    batches: tuple[int, ...] = (1, 8, 32, 64, 128)
    """B of onnxruntime in process, which the server is compared with."""
    served_tokens: int = 128
    workers: tuple[int, ...] = (1, 4)
    in_flight: int = 256
    """Sequences in flight to the server."""
    sample_ms: float = 50.0

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
    seconds: float
    """Length of a load."""
    rounds: int
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

    def judge(self, name: str, holds: bool, seen: str) -> None:
        """Store whether a target is met, and what was seen."""
        self.write("target", name=name, holds=holds, seen=seen)


def full(device: str) -> CheckPlan:
    """Return the plan for a GPU; on the CPU everything is in fp32."""
    large = replace(
        BERT,
        name="bert-large-random",
        config=replace(BERT.config, d_model=1024, heads=16, layers=24, feed_forward=4096),
    )
    if device == "cpu":
        return CheckPlan(
            compared=(EncoderFamily(encoder=MINILM, precision="fp32"),),
            timed=tuple(EncoderFamily(encoder=each, precision="fp32") for each in (BERT, large)),
        )
    return CheckPlan(
        compared=(
            EncoderFamily(encoder=MINILM, precision="fp32"),
            EncoderFamily(encoder=MINILM, precision="fp16"),
            EncoderFamily(encoder=MINILM, precision="bf16"),
        ),
        timed=tuple(EncoderFamily(encoder=each, precision="fp16") for each in (BERT, large)),
    )


def tiny(device: str) -> CheckPlan:
    """Return a plan that takes seconds, on a CPU as well; its numbers mean nothing."""
    config = EncoderConfig(
        d_model=32, heads=4, layers=2, feed_forward=64, vocabulary=50, positions=32, pooling="mean"
    )
    encoder = BenchEncoder(name="tiny", config=config, tokens=8)
    family = EncoderFamily(encoder=encoder, precision="fp16" if device == "cuda" else "fp32")
    return CheckPlan(
        compared=(family,),
        timed=(family,),
        parity_sizes=((1, 1), (3, 7)),
        speed_sizes=((4, 8),),
        batches=(1, 4),
        served_tokens=8,
        workers=(1,),
        in_flight=4,
        sample_ms=2.0,
    )
