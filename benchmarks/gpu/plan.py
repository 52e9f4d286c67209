"""What is measured: encoders, sizes and the time that parts may take; at full size, or tiny as a try-out."""

from dataclasses import dataclass
from typing import Literal

from polyhead_model import PRESETS, EncoderConfig

Precision = Literal["fp32", "fp16", "bf16"]
Size = tuple[int, int]
"""(B, T)."""

SECONDS = 480.0
"""For everything."""

SHARES = {
    "environment": 15.0,
    "export": 125.0,
    "parity": 30.0,
    "engine": 20.0,
    "kernels": 35.0,
    "table": 135.0,
    "served": 100.0,
    "heads": 20.0,
    "memory": 20.0,
}
"""How that time is shared out, in the order of the parts. `export` makes what the others measure."""

PARTS = tuple(part for part in SHARES if part != "export")


@dataclass(frozen=True, kw_only=True)
class Family:
    """An encoder at one precision."""

    name: str
    config: EncoderConfig | None
    """None: all-MiniLM-L6-v2 where its package is installed, and its shape with random weights elsewhere."""
    precision: Precision

    @property
    def key(self) -> str:
        """Its name in the model repository."""
        return f"{self.name}-{self.precision}"


@dataclass(frozen=True, kw_only=True)
class Server:
    """How one server is started."""

    workers: int
    arguments: tuple[str, ...] = ()
    """Further ones, of `polyhead serve`."""

    @property
    def name(self) -> str:
        """In words."""
        return " ".join([f"{self.workers} worker{'s' if self.workers > 1 else ''}", *self.arguments])


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One check's encoders and sizes."""

    device: Literal["cuda", "cpu"]
    trained: tuple[str, EncoderConfig | None]
    """Whose parity is looked at in every precision."""
    precisions: tuple[Precision, ...]
    fast: Precision
    """That speed is looked at in."""
    encoders: tuple[tuple[str, EncoderConfig], ...]
    """For the table, smallest first. The first is served, too."""
    tokens: tuple[int, ...]
    """T of the table."""
    batches: tuple[int, ...]
    """B of the table."""
    parity_sizes: tuple[Size, ...]
    mask_size: Size
    """At which the kernels for each form of mask are timed."""
    mask_heads: tuple[int, int]
    """(H, K) of those."""
    heads: tuple[int, ...]
    """Of the sweep."""
    heads_config: EncoderConfig
    heads_sizes: tuple[Size, ...]
    served_tokens: int
    servers: tuple["Server", ...]
    """In the order of their importance."""
    generators: int
    """Processes that send requests."""
    in_flight: int
    """Requests, of all of them together."""
    sample_ms: float
    """How long a timing is repeated for one sample."""
    rounds: int
    """Samples of each timing."""
    served_seconds: float
    peak_size: int
    """Rows and columns of the matrices whose product is the peak."""

    @property
    def captures(self) -> tuple[bool, ...]:
        """Whether runs are captured as CUDA graphs: both, on a card."""
        return (False, True) if self.device == "cuda" else (False,)

    @property
    def engine_checks(self) -> int:
        """How many ways the engine is asked in."""
        # Both graphs from one and two threads, then without page-locked memory, and after too large a run.
        return 2 * 2 * len(self.captures) + (2 if self.device == "cuda" else 1)

    @property
    def served(self) -> Family:
        """The family that is served."""
        name, config = self.encoders[0]
        return Family(name=name, config=config, precision=self.fast)

    @property
    def tabled(self) -> tuple[Family, ...]:
        """The families of the table."""
        return tuple(Family(name=name, config=each, precision=self.fast) for name, each in self.encoders)

    @property
    def compared(self) -> tuple[Family, ...]:
        """The families whose parity is looked at."""
        name, config = self.trained
        trained = tuple(Family(name=name, config=config, precision=each) for each in self.precisions)
        return tuple({family.key: family for family in (*trained, *self.tabled)}.values())

    def head_families(self) -> dict[int, Family]:
        """The families of the head sweep, by H."""
        return {
            heads: Family(
                name=f"heads-{heads}",
                config=_with(self.heads_config, heads),
                precision=self.fast,
            )
            for heads in self.heads
        }

    def families(self) -> tuple[Family, ...]:
        """Everything that is exported, what takes longest first."""
        every = (*reversed(self.tabled), *self.compared, *self.head_families().values())
        return tuple({family.key: family for family in every}.values())


def full(device: Literal["cuda", "cpu"]) -> Plan:
    """What the targets are for."""
    return Plan(
        device=device,
        trained=("minilm", None),
        precisions=("fp32", "fp16", "bf16") if device == "cuda" else ("fp32",),
        fast="fp16" if device == "cuda" else "fp32",
        encoders=(("base", _sentences("bert-base")), ("large", _sentences("bert-large"))),
        tokens=(128, 512),
        batches=(1, 8, 32, 128),
        parity_sizes=((1, 1), (3, 33), (5, 2), (8, 128), (2, 511)),
        mask_size=(32, 512),
        mask_heads=(16, 64),
        heads=(1, 2, 3, 4, 6, 8, 12, 16, 24),
        heads_config=EncoderConfig(d_model=768, heads=12, layers=1, feed_forward=3072),
        heads_sizes=((32, 128), (8, 512)),
        served_tokens=128,
        servers=(
            Server(workers=1),
            Server(workers=4),
            Server(workers=4, arguments=("--cuda-graphs",)),
            Server(workers=8),
            Server(workers=2),
        ),
        generators=8,
        in_flight=512,
        sample_ms=50.0,
        rounds=5,
        served_seconds=2.5,
        peak_size=8192,
    )


def tiny(device: Literal["cuda", "cpu"]) -> Plan:
    """The same code in seconds, on a CPU as well: the numbers mean nothing."""
    small = EncoderConfig(d_model=32, heads=4, layers=1, feed_forward=64)
    sentences = EncoderConfig(
        d_model=32, heads=4, layers=2, feed_forward=64, vocabulary=50, positions=32, pooling="mean"
    )
    return Plan(
        device=device,
        trained=("tiny", sentences),
        precisions=("fp32", "fp16", "bf16") if device == "cuda" else ("fp32",),
        fast="fp16" if device == "cuda" else "fp32",
        encoders=(("tiny", sentences),),
        tokens=(8,),
        batches=(1, 4),
        parity_sizes=((1, 1), (3, 7)),
        mask_size=(2, 8),
        mask_heads=(4, 8),
        heads=(2,),
        heads_config=small,
        heads_sizes=((2, 8),),
        served_tokens=8,
        servers=(Server(workers=1),),
        generators=1,
        in_flight=4,
        sample_ms=2.0,
        rounds=2,
        served_seconds=0.3,
        peak_size=64,
    )


def _sentences(preset: str) -> EncoderConfig:
    """A preset's shape over token ids, pooled: what most encoders of that shape are used as."""
    shape = PRESETS[preset]
    return EncoderConfig(
        d_model=shape.d_model,
        heads=shape.heads,
        layers=shape.layers,
        feed_forward=shape.feed_forward,
        vocabulary=30_522,
        positions=512,
        types=2,
        embedding_norm=True,
        pooling="mean",
        normalise=True,
    )


def _with(config: EncoderConfig, heads: int) -> EncoderConfig:
    return EncoderConfig(
        d_model=config.d_model, heads=heads, layers=config.layers, feed_forward=config.feed_forward
    )
