"""What a part of the soak has found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.rounds import Condition


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a part contributes to the page."""

    conditions: Sequence[Condition]
    lines: Sequence[str]
    facts: Mapping[str, Any]
