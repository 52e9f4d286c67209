"""Describe what a sweep measures, and read it from a file or a preset.

Shape letters: B batch, T tokens, D d_model, H heads, K head width, L layers, F feed-forward width.
"""

import difflib
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from polyhead_client.errors import InvalidRequest
from polyhead_client.options import parse_indices
from polyhead_load.errors import LoadError, SweepError
from polyhead_load.load_plan import Lengths
from polyhead_model.description import check_field_names
from polyhead_proto.datatypes import Precision

Dimension = Literal["family", "tokens", "batch", "attention"]
"""A property in which configurations may differ."""

DIMENSIONS: tuple[Dimension, ...] = ("family", "tokens", "batch", "attention")

Encoder: TypeAlias = Mapping[str, bool | int | float | str | list[Any] | dict[str, Any]]

_FAMILY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_PRESETS = files("polyhead_load.sweep") / "presets"
_OF_REPOSITORY = """
title = "All families of a model repository"
tokens = [32]
loads = ["single", "50%", "85%", "common"]
[families]
"""
_LOAD = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>%|/s)")


def near(wanted: str, known: Iterable[str]) -> str:
    """Return such as `; did you mean 'heads'?`, or nothing where nothing is similar."""
    matches = difflib.get_close_matches(wanted, list(known), n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""


class LoadKind(NamedTuple):
    """How a configuration is called."""

    kind: Literal["capacity", "single", "share", "common", "rate"]
    """capacity: many in flight; single: one in flight; share: of the configuration's own capacity;
    common: the same rate for all that are compared; rate: in requests a second."""
    value: float = 0.0
    """A share from 0 to 1, or a rate in requests a second."""


def parse_load(text: str) -> LoadKind:
    """Read `single`, `50%`, `common` or `20/s`.

    Raises:
        ValueError: It is none of these.
    """
    if text in {"capacity", "single", "common"}:
        return LoadKind(text)  # type: ignore[arg-type]  # one of the three
    match = _LOAD.fullmatch(text)
    if match is None or not 0 < (number := float(match["number"])) < math.inf:
        raise ValueError(f"must be single, common, a share such as 50% or a rate such as 20/s, was {text!r}")
    if match["unit"] == "/s":
        return LoadKind("rate", number)
    if number >= 100:
        raise ValueError(f"must be below 100% (a queue would only grow), was {text!r}")
    return LoadKind("share", number / 100)


def _check_load(text: str) -> str:
    if parse_load(text).kind == "capacity":
        raise ValueError("must not be capacity: that is measured wherever a load needs it")
    return text


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def length_label(tokens: int | Lengths) -> str:
    """Return T as people read it."""
    return str(tokens) if isinstance(tokens, int) else f"{tokens.low}–{tokens.high}, median {tokens.median:g}"


class Attention(_Table):
    """The attention weights that a request asks for."""

    name: Annotated[str, Field(min_length=1)]
    layers: Literal["all"] | tuple[Annotated[int, Field(ge=0)], ...] | None = None
    """None asks for no attention, on the fast graph."""
    heads: str | None = None
    """Only these, such as `0,3` or `0:4`."""
    queries: str | None = None
    """Only these rows, likewise."""
    dtype: Precision | None = None

    @model_validator(mode="after")
    def _check(self) -> "Attention":
        for name in ("heads", "queries", "dtype"):
            value = getattr(self, name)
            if value is None:
                continue
            if self.layers is None:
                raise ValueError(f"{name} must come with layers: without them no attention is asked for")
            if name != "dtype":
                try:
                    parse_indices(name, value)
                except InvalidRequest as error:
                    raise ValueError(str(error)) from error
        return self


MODES: Mapping[str, Attention] = {
    mode.name: mode
    for mode in (
        Attention(name="off"),
        Attention(name="one", layers=(0,)),
        Attention(name="all", layers="all"),
        Attention(name="all-fp16", layers="all", dtype="FP16"),
        Attention(name="all-uint8", layers="all", dtype="UINT8"),
        Attention(name="all-head-0", layers="all", heads="0"),
        Attention(name="all-row-0", layers="all", queries="0"),
    )
}
"""Named selections. `one` is the first layer's attention."""


def _lengths(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    names = [field.name for field in fields(Lengths)]
    for name in value:
        if name not in names:
            raise ValueError(f"there is no field {name!r}{near(name, names)} (known: {', '.join(names)})")
    try:
        return Lengths(**value)
    except (LoadError, TypeError) as error:
        raise ValueError(
            f"must be such as {{median = 32, sigma = 0.6, low = 8, high = 128}}: {error}"
        ) from error


def _named_mode(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value not in MODES:
        raise ValueError(f"must be one of {', '.join(MODES)}, or a table, was {value!r}{near(value, MODES)}")
    return MODES[value]


def _check_family(name: str) -> str:
    if not _FAMILY.fullmatch(name):
        raise ValueError(
            f"must start with a letter or digit and hold only letters, digits, '_' and '-', was {name!r}"
        )
    return name


def _check_encoder(encoder: Encoder) -> Encoder:
    check_field_names(encoder)
    return encoder


EncoderFields = Annotated[
    dict[str, bool | int | float | str | list[Any] | dict[str, Any]], AfterValidator(_check_encoder)
]


class Gates(_Table):
    """Limits beyond which a run is void, or the server was overloaded."""

    warm_up: Annotated[float, Field(gt=0)] = 0.1
    """Largest relative difference between three windows of the warm-up."""
    send_lag_ms: Annotated[float, Field(ge=0)] = 1.0
    """Open loop: 99 % of the requests must leave at most this late (beyond chance) ..."""
    send_lag_share: Annotated[float, Field(ge=0)] = 0.05
    """... or at most this share of the median latency, where that is more."""
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


class Sweep(_Table):
    """Which cells to measure and how: {families × T × B × attention} × loads."""

    title: str
    about: str = ""
    encoder: EncoderFields = Field(default_factory=dict)
    """Fields that all families share; empty where they are served or exported already."""
    families: Annotated[
        dict[Annotated[str, AfterValidator(_check_family)], EncoderFields], Field(min_length=1)
    ]
    """Name → its own fields."""
    tokens: Annotated[
        tuple[Annotated[Annotated[int, Field(ge=1)] | Lengths, BeforeValidator(_lengths)], ...],
        Field(min_length=1),
    ]
    """T: lengths of sequences."""
    batch: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)] = (1,)
    """B: sequences in a request."""
    attention: Annotated[
        tuple[Annotated[Attention, BeforeValidator(_named_mode)], ...], Field(min_length=1)
    ] = (MODES["off"],)
    loads: Annotated[tuple[Annotated[str, AfterValidator(_check_load)], ...], Field(min_length=1)] = (
        "single",
        "30%",
        "50%",
        "70%",
        "85%",
        "common",
    )
    baseline: dict[Dimension, str | int] = Field(default_factory=dict)
    """The others are compared with the configuration that has these labels and is the same otherwise."""
    blocks: Annotated[int, Field(ge=1)] = 5
    """How often each cell is measured, in a new random order each time."""
    seconds: Annotated[float, Field(gt=0)] = 4.0
    """How long each of these measurements takes."""
    warm_up_seconds: Annotated[float, Field(ge=0)] = 6.0
    """Longest warm-up before each measurement."""
    common: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """The common rate, as a share of the least capacity among those that are compared."""
    capacity_runs: Annotated[int, Field(ge=1)] = 3
    """How often a configuration's capacity is measured, before the first block; the median counts."""
    capacity_users: Annotated[int, Field(ge=1)] = 8
    """Requests in flight while a configuration's capacity is measured."""
    max_in_flight: Annotated[int, Field(ge=1)] = 128
    """Open loop: requests beyond this are not sent but counted; or beyond what arrives within
    `timeout_seconds`, where that is more, so that no stall is hidden."""
    timeout_seconds: Annotated[float, Field(gt=0)] = 30.0
    """How long a request may take."""
    retries: Annotated[int, Field(ge=0)] = 1
    """How often a void measurement is tried again, at the end of its block."""
    seed: Annotated[int, Field(ge=0)] = 0
    """The seed of weights, order, arrivals and contents."""
    arrivals: Annotated[int, Field(ge=0)] = 0
    """Changes order, arrivals and contents but not weights: for a second run."""
    serve: tuple[str, ...] = ()
    """More flags for `polyhead serve`."""
    gates: Gates = Gates()

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
        match dimension:
            case "family":
                return list(self.families)
            case "attention":
                return [mode.name for mode in self.attention]
            case "tokens":
                return [length_label(tokens) for tokens in self.tokens]
            case "batch":
                return [str(batch) for batch in self.batch]

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
        several = [dimension for dimension in DIMENSIONS if len(self.labels(dimension)) > 1]
        return {dimension: self.labels(dimension)[0] for dimension in several[:1]}


def preset_files() -> Mapping[str, str]:
    """Return the presets: name → the text of its file."""
    return {
        entry.name.removesuffix(".toml"): entry.read_text()
        for entry in sorted(_PRESETS.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".toml")
    }


def families_in(repository: Path) -> list[str]:
    """Return the families of a model repository; none where it is something else."""
    names = {file.parts[-3] for file in repository.glob("*/[1-9]*/manifest.json")}
    return sorted(name for name in names if _FAMILY.fullmatch(name))


def repository_run(repository: Path) -> str:
    """Return the short name of a sweep over all families of a model repository."""
    return f"all-{repository.resolve().name}"


def read_sweep(source: str, *, foreign_cpu: float | None = None, **overrides: Any) -> tuple[str, Sweep]:
    """Read a sweep from a preset or a file.

    Args:
        source: A preset's name, the path of a TOML file, or a model repository, for all of its families.
        foreign_cpu: That gate, where it is not None.
        overrides: Fields that replace the file's, where they are not None.

    Returns:
        A short name, and the sweep.

    Raises:
        SweepError: There is neither, or it does not describe a sweep.
    """
    known = preset_files()
    if source in known:
        name, text, where = source, known[source], f"preset {source}"
    elif families := families_in(path := Path(source)):
        name, where = repository_run(path), source
        text = _OF_REPOSITORY + "".join(f"{family} = {{}}\n" for family in families)
    else:
        if path.suffix != ".toml":
            raise SweepError(
                f"the sweep must be one of {', '.join(known)}, a .toml file, or a model repository, was "
                f"{source!r}{near(source, known)}"
            )
        name, where = path.stem, source
        try:
            text = path.read_text()
        except UnicodeDecodeError as error:
            raise SweepError(f"{where} must be a TOML file: {error}") from error
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SweepError(f"{where} must be a TOML file: {error}") from error
    values.setdefault("title", name)
    values |= {field: value for field, value in overrides.items() if value is not None}
    if foreign_cpu is not None:
        values["gates"] = {**values.get("gates", {}), "foreign_cpu": foreign_cpu}
    try:
        return name, Sweep.model_validate(values)
    except ValidationError as error:
        raise SweepError(f"{where}: {_in_words(error)}") from error


_TABLES: Mapping[str, type[BaseModel]] = {"gates": Gates, "attention": Attention}


def _in_words(error: ValidationError) -> str:
    """Describe the first fault; an unknown field goes before others, which it may explain."""
    fault = min(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    path = [str(part) for part in fault["loc"] if not _is_type(part)]
    if fault["type"] == "extra_forbidden":
        table = _TABLES.get(path[0], Sweep) if len(path) > 1 else Sweep
        known = tuple(table.model_fields)
        return f"there is no field {'.'.join(path)!r}{near(path[-1], known)} (known: {', '.join(known)})"
    where = ".".join(path)
    if path and path[0] == "baseline" and fault["type"] == "literal_error":
        return f"there is no baseline.{path[1]}{near(path[1], DIMENSIONS)} (known: {', '.join(DIMENSIONS)})"
    if fault["type"] == "missing":
        return f"{where} must be given"
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] != "value_error":
        message = f"{message[:1].lower()}{message[1:]}, was {fault['input']!r}"
    return f"{where}: {message}" if where else message


def _is_type(part: object) -> bool:
    """Return whether a part of a path is pydantic's own: a member of a union, or `[key]`."""
    return part in {"int", "Lengths", "[key]", "bool", "float", "str"} or str(part).startswith(
        ("constrained-", "function-", "tuple[", "literal[")
    )
