"""Describe what a sweep measures.

Shape letters: B batch, T tokens, D d_model, H heads, K head width, L layers, F feed-forward width.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from polyhead_load.load_plan import Lengths
from polyhead_load.outputs import DEFAULT_OUTPUTS, Outputs, parse_outputs
from polyhead_load.sweep.intervals import FEWEST_BLOCKS
from polyhead_load.sweep.loads import parse_load
from polyhead_load.sweep.target import ServiceTarget
from polyhead_load.sweep.validation import Table
from polyhead_model.description import check_field_names, near

Dimension = Literal["family", "tokens", "batch", "outputs"]
"""A property in which configurations may differ."""

DIMENSIONS: tuple[Dimension, ...] = ("family", "tokens", "batch", "outputs")

FAMILY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def _check_load(text: str) -> str:
    if (kind := parse_load(text).kind) in {"throughput", "p99"}:
        raise ValueError(f"must not be {kind}: that is measured where another load, or a target, needs it")
    return text


def _outputs(value: Any) -> Any:
    return parse_outputs(value) if isinstance(value, str) else value


def _check_family(name: str) -> str:
    if not FAMILY.fullmatch(name):
        raise ValueError(
            f"must start with a letter or digit and hold only letters, digits, '_' and '-', was {name!r}"
        )
    return name


Encoder: TypeAlias = dict[str, bool | int | float | str | list[Any] | dict[str, Any]]


def _check_encoder(encoder: Encoder) -> Encoder:
    check_field_names(encoder)
    return encoder


EncoderFields = Annotated[Encoder, AfterValidator(_check_encoder)]


class Gates(Table):
    """Limits beyond which a run is void, or the server was overloaded."""

    send_lag_ms: Annotated[float, Field(ge=0)] = 1.0
    """Open loop: 99 % of the requests must leave at most this late (beyond chance) ..."""
    send_lag_share: Annotated[float, Field(ge=0)] = 0.05
    """... or at most this share of the median latency, or of the searched limit, where that is more."""
    generator_cpu: Annotated[float, Field(gt=0)] = 0.8
    """Largest share of one core for the generator."""
    foreign_cpu: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.15
    """Most cores for other processes, and for the machine's host (steal)."""
    drift: Annotated[float, Field(gt=0)] = 0.1
    """Overloaded: largest relative difference between the medians of the first and the last third, beyond
    chance."""
    backlog: Annotated[float, Field(gt=0)] = 0.05
    """Overloaded: largest share of an open loop's requests that may be unanswered when the last one is sent;
    ten requests in any case."""


class Sweep(Table):
    """Which cells to measure and how: {families × T × B × attention} × loads."""

    title: str
    about: str = ""
    encoder: EncoderFields = Field(default_factory=dict)
    """Fields that all families share; empty where they are served or exported already."""
    families: Annotated[
        dict[Annotated[str, AfterValidator(_check_family)], EncoderFields], Field(min_length=1)
    ]
    """Name → its own fields."""
    tokens: Annotated[tuple[Annotated[int, Field(ge=1)] | Lengths, ...], Field(min_length=1)]
    """T: lengths of sequences."""
    batch: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)] = (1,)
    """B: sequences in a request."""
    outputs: Annotated[tuple[Annotated[Outputs, BeforeValidator(_outputs)], ...], Field(min_length=1)] = (
        DEFAULT_OUTPUTS,
    )
    """What is fetched of each reply."""
    loads: Annotated[tuple[Annotated[str, AfterValidator(_check_load)], ...], Field(min_length=1)] = (
        "single",
        "50%",
        "85%",
    )
    baseline: dict[Dimension, str | int] = Field(default_factory=dict)
    """The others are compared with the configuration that has these labels and is the same otherwise."""
    blocks: Annotated[int, Field(ge=1)] = 5
    """How often each cell is measured, in a new random order each time."""
    seconds: Annotated[float, Field(gt=0)] = 4.0
    """How long each of these measurements takes."""
    warm_up_seconds: Annotated[float, Field(ge=0)] = 3.0
    """How long the same load is sent before each measurement."""
    throughput_runs: Annotated[int, Field(ge=1)] = 3
    """How often a configuration's throughput is measured, before the first block; the median counts."""
    throughput_users: Annotated[int, Field(ge=1)] = 8
    """Requests in flight while a configuration's throughput is measured."""
    rounds: Annotated[int, Field(ge=FEWEST_BLOCKS)] = 5
    """How often the capacity is searched that a target asks for."""
    search_seconds: Annotated[float, Field(gt=0)] = 10.0
    """How long a run of that search takes, at least."""
    max_in_flight: Annotated[int, Field(ge=1)] = 128
    """Open loop: requests beyond this are not sent but counted; or beyond what arrives within
    `timeout_seconds`, where that is more, so that no stall is hidden."""
    timeout_seconds: Annotated[float, Field(gt=0)] = 30.0
    """How long a request may take."""
    retries: Annotated[int, Field(ge=0)] = 1
    """How often a void measurement is tried again, at the end of its block."""
    seed: Annotated[int, Field(ge=0)] = 0
    """The seed of order, arrivals and contents, and of the weights of what is exported."""
    serve: tuple[str, ...] = ()
    """More flags for `polyhead serve`."""
    gates: Gates = Gates()
    target: ServiceTarget | None = None
    """What the report chooses configurations for: its limit on p99 is searched for the rate that holds it."""

    @model_validator(mode="after")
    def _check(self) -> "Sweep":
        for dimension in DIMENSIONS:
            labels = self.labels(dimension)
            if len(set(labels)) != len(labels):
                raise ValueError(f"{dimension}: all must differ from each other, were {', '.join(labels)}")
            if dimension in self.baseline and (value := str(self.baseline[dimension])) not in labels:
                raise ValueError(
                    f"baseline.{dimension} must be one of {', '.join(labels)}, "
                    f"was {value!r}{near(value, labels)}"
                )
        if len(set(map(parse_load, self.loads))) != len(self.loads):
            raise ValueError(f"loads: all must differ from each other, were {', '.join(self.loads)}")
        return self

    def labels(self, dimension: Dimension) -> list[str]:
        """Return a dimension's values, as people read them."""
        return list(map(str, self.families if dimension == "family" else getattr(self, dimension)))

    @property
    def varied(self) -> list[Dimension]:
        """Return the dimensions with several values; the family where there are none."""
        return [name for name in DIMENSIONS if len(self.labels(name)) > 1] or ["family"]

    def encoder_of(self, family: str) -> dict[str, Any]:
        """Return the family's fields; empty where it must exist already."""
        return {**self.encoder, **self.families[family]}

    @property
    def compared(self) -> Mapping[Dimension, str]:
        """Return the baseline as labels; without one, the first value of the first dimension with several."""
        if self.baseline:
            return {dimension: str(value) for dimension, value in self.baseline.items()}
        first = self.varied[0]
        return {first: self.labels(first)[0]} if len(self.labels(first)) > 1 else {}
