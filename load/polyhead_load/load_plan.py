"""Describe a load: one plan is one run of the generator, and one run of a sweep's cell.

Shape letters: B batch, T tokens.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from polyhead_client.options import OPEN_ACCESS, Access
from polyhead_load.errors import LoadError
from polyhead_load.outputs import DEFAULT_OUTPUTS, Outputs

_STRICT = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """A distribution of sequence lengths, in tokens."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    kind: Literal["lognormal"] = "lognormal"
    median: float
    sigma: float
    """Standard deviation of the logarithm; sentences have about 0.6."""
    low: int
    """Shorter lengths are raised to this."""
    high: int
    """Longer lengths are cut to this."""

    def __post_init__(self) -> None:
        _require("tokens.median", "more than 0, and finite", self.median, 0 < self.median < math.inf)
        _require("tokens.sigma", "0 or more, and finite", self.sigma, 0 <= self.sigma < math.inf)
        _require("tokens.low", "1 or more", self.low, self.low >= 1)
        _require("tokens.high", f"low ({self.low}) or more", self.high, self.high >= self.low)

    def __str__(self) -> str:
        return f"{self.low}–{self.high}, median {self.median:g}"


@dataclass(frozen=True, kw_only=True)
class LoadPlan:
    """What to request, how often and for how long."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    address: str
    """The server: host:port, or unix:/path."""
    access: Access = OPEN_ACCESS
    """TLS and token for the server."""
    model: str
    """The family; "" is the only one that is served."""
    outputs: Outputs = DEFAULT_OUTPUTS
    """What is fetched of each reply."""
    batch: int = 1
    """B, sequences in a request."""
    tokens: int | Lengths
    """T, or how the lengths are distributed."""
    text: bool = False
    """Send sentences, which the server tokenises, or a query and passages to a reranker; otherwise vectors or
    token ids, whichever it takes."""
    mode: Literal["closed", "open"]
    """Closed: each user sends its next request after the answer. Open: requests are sent at Poisson times,
    however long the answers take."""
    users: int = 1
    """Users of a closed loop."""
    rate: float | None = None
    """Requests a second of an open loop."""
    seconds: float
    """How long requests are measured; infinite where locust ends the run."""
    warm_up_seconds: float = 0.0
    """How long requests are sent before that, unrecorded."""
    seed: int = 0
    """Seed of the schedule, the lengths and the contents."""
    max_in_flight: int = 1000
    """In an open loop, requests beyond this many are not sent but counted as shed."""
    timeout_seconds: float = 30.0
    """How long a request may take."""

    def __post_init__(self) -> None:
        if self.mode == "open":
            rate = self.rate or 0
            rule = "more than 0 requests a second, and finite, for an open loop"
            _require("rate", rule, self.rate, 0 < rate < math.inf)
        counts = {"batch": self.batch, "max_in_flight": self.max_in_flight}
        if isinstance(self.tokens, int):
            counts["tokens"] = self.tokens
        if self.mode == "closed":
            counts["users"] = self.users
        for name, count in counts.items():
            _require(name, "1 or more", count, count >= 1)
        _require("seconds", "more than 0", self.seconds, self.seconds > 0)
        warm_up, timeout = self.warm_up_seconds, self.timeout_seconds
        _require("warm_up_seconds", "0 or more, and finite", warm_up, 0 <= warm_up < math.inf)
        _require("timeout_seconds", "more than 0, and finite", timeout, 0 < timeout < math.inf)
        _require("seed", "0 or more", self.seed, self.seed >= 0)

    @property
    def longest(self) -> int:
        """Return the largest T."""
        return self.tokens if isinstance(self.tokens, int) else self.tokens.high

    def to_json(self) -> str:
        """Return the plan as JSON."""
        return _PLAN.dump_json(self, indent=1).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> "LoadPlan":
        """Return a plan from JSON.

        Raises:
            LoadError: It is no plan; the message names the field.
        """
        try:
            return _PLAN.validate_json(text)
        except ValidationError as error:
            # Where several types are possible, the one that matched furthest was meant.
            first = max(error.errors(), key=lambda one: len(one["loc"]))
            where = "".join(f"{part}: " for part in first["loc"])
            raise LoadError(f"no plan: {where}{first['msg']}") from None


def _require(name: str, rule: str, value: object, holds: bool) -> None:
    if not holds:
        raise LoadError(f"{name} must be {rule}, was {value}")


_PLAN = TypeAdapter(LoadPlan)
