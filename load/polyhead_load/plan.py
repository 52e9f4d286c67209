"""What load to put on: one plan is one run of the generator, and one cell of a sweep.

Shape letters: B batch, T tokens.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from polyhead_client.options import OPEN_ACCESS, Access, parse_indices
from polyhead_load.errors import LoadError

ONLY_FAMILY = ""
"""As a model: the only family that is served."""


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """A distribution of sequence lengths, in tokens."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    kind: Literal["lognormal"] = "lognormal"
    median: float
    sigma: float
    """Standard deviation of the logarithm; sentences have about 0.6."""
    low: int
    """What would be shorter is as long as this."""
    high: int
    """What would be longer is as long as this."""

    def __post_init__(self) -> None:
        _require("tokens.median", "more than 0, and finite", self.median, 0 < self.median < math.inf)
        _require("tokens.sigma", "0 or more, and finite", self.sigma, 0 <= self.sigma < math.inf)
        _require("tokens.low", "1 or more", self.low, self.low >= 1)
        _require("tokens.high", f"low ({self.low}) or more", self.high, self.high >= self.low)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A load: what is asked for, how often, for how long."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    address: str
    """The server: host:port, or unix:/path."""
    access: Access = OPEN_ACCESS
    """What the server asks of its callers: TLS, a token."""
    model: str
    """The family; "" is the only one that is served."""
    attention: Literal["all"] | list[int] | None = None
    """The layers whose attention weights are fetched."""
    heads: str | None = None
    """The heads of those layers, such as 3, 0,3 or 0:4; None is all."""
    queries: str | None = None
    """The rows of those weights, likewise."""
    dtype: str | None = None
    """What the weights cross the wire as: FP32, FP16 or UINT8."""
    batch: int = 1
    """B, sequences in a request."""
    tokens: int | Lengths
    """T, or how the lengths are distributed."""
    text: bool = False
    """Send sentences, which the server tokenises; otherwise vectors or token ids, whichever it takes."""
    mode: Literal["closed", "open"]
    """Closed: a user sends the next request when it has the answer. Open: requests are sent at Poisson
    times, however long the answers take."""
    users: int = 1
    """Users of a closed loop."""
    rate: float | None = None
    """Requests a second of an open loop."""
    seconds: float
    """How long requests are measured."""
    warm_up_seconds: float = 0.0
    """How long requests are sent before that, and forgotten."""
    seed: int = 0
    """The seed of the schedule, the lengths and the contents."""
    max_in_flight: int = 1000
    """In an open loop, requests beyond this many are not sent but counted as shed."""
    timeout_seconds: float = 30.0
    """How long a request may take."""

    def __post_init__(self) -> None:
        _require("batch", "1 or more", self.batch, self.batch >= 1)
        if isinstance(self.tokens, int):
            _require("tokens", "1 or more", self.tokens, self.tokens >= 1)
        if self.mode == "closed":
            _require("users", "1 or more", self.users, self.users >= 1)
        else:
            fits = self.rate is not None and 0 < self.rate < math.inf
            _require("rate", "more than 0 requests a second, and finite, for an open loop", self.rate, fits)
        # Infinite are those of a run that locust ends.
        _require("seconds", "more than 0", self.seconds, self.seconds > 0)
        _require(
            "warm_up_seconds",
            "0 or more, and finite",
            self.warm_up_seconds,
            0 <= self.warm_up_seconds < math.inf,
        )
        _require("seed", "0 or more", self.seed, self.seed >= 0)
        _require("max_in_flight", "1 or more", self.max_in_flight, self.max_in_flight >= 1)
        _require(
            "timeout_seconds",
            "more than 0, and finite",
            self.timeout_seconds,
            0 < self.timeout_seconds < math.inf,
        )

    @property
    def longest(self) -> int:
        """The largest T."""
        return self.tokens if isinstance(self.tokens, int) else self.tokens.high

    @property
    def asked(self) -> dict[str, Any]:
        """What to ask `Client.encode` for beside the output."""
        return {
            "attention": True if self.attention == "all" else self.attention,
            "heads": None if self.heads is None else parse_indices("heads", self.heads),
            "queries": None if self.queries is None else parse_indices("queries", self.queries),
            "dtype": self.dtype,
        }

    def to_json(self) -> str:
        """Return the plan as JSON."""
        return _PLAN.dump_json(self, indent=1).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> "Plan":
        """Return a plan from JSON.

        Raises:
            LoadError: it is none; the message names the field.
        """
        try:
            return _PLAN.validate_json(text)
        except ValidationError as error:
            # Where several kinds of value are possible, the one that came furthest was meant.
            first = max(error.errors(), key=lambda one: len(one["loc"]))
            where = "".join(f"{part}: " for part in first["loc"])
            raise LoadError(f"no plan: {where}{first['msg']}") from None

    @classmethod
    def read(cls, path: Path) -> "Plan":
        """Return a plan from a file.

        Raises:
            LoadError: it holds none; the message names the field.
            OSError: it cannot be read.
        """
        return cls.from_json(path.read_bytes())


def _require(name: str, rule: str, value: object, holds: bool) -> None:
    if not holds:
        raise LoadError(f"{name} must be {rule}, was {value}")


_PLAN = TypeAdapter(Plan)
