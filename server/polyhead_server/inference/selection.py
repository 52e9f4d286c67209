"""Which heads and which queries of an attention map: `0,3`, `0:4`, or both mixed.

Shape letters: B batch, H heads, T tokens.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_server.errors import InvalidRequestError, quoted

_ITEM = re.compile(r"\s*([0-9]{1,9})\s*(?::\s*([0-9]{1,9})\s*)?")
_LONGEST = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class Selector:
    """A list of indices as it was written; how far they may reach is known only later."""

    name: str
    whose: str
    ranges: Sequence[tuple[int, int]]
    """Start and end, the end not included."""

    def resolve(self, size: int, what: str) -> Sequence[int]:
        """The indices, in the order given.

        Args:
            size: How many there are to choose from.
            what: Their letter, for messages.

        Raises:
            InvalidRequestError: One is out of range or comes twice.
        """
        for _, stop in self.ranges:
            if stop > size:
                raise InvalidRequestError(
                    f"parameter {self.name} of {self.whose} must be between 0 and {what}-1 ({size - 1}), "
                    f"was {stop - 1}"
                )
        if len(self.ranges) == 1:
            return range(*self.ranges[0])
        seen: dict[int, None] = {}
        for start, stop in self.ranges:
            for index in range(start, stop):
                if index in seen:
                    raise InvalidRequestError(
                        f"parameter {self.name} of {self.whose} must name each index once, has {index} twice"
                    )
                seen[index] = None
        return list(seen)


def parse_selector(name: str, text: str, whose: str) -> Selector:
    """Reads `0,3` or `0:4` or a mixture.

    Raises:
        InvalidRequestError: The text is nothing of the kind.
    """
    if len(text) > _LONGEST:
        raise InvalidRequestError(f"parameter {name} of {whose} must be at most {_LONGEST} characters long")
    ranges = []
    for item in text.split(","):
        match = _ITEM.fullmatch(item)
        start, stop = (int(match[1]), int(match[2] or int(match[1]) + 1)) if match else (0, 0)
        if start >= stop:
            raise InvalidRequestError(
                f"parameter {name} of {whose} must be indices such as '0,3' or '0:4', was {quoted(text)}"
            )
        ranges.append((start, stop))
    return Selector(name=name, whose=whose, ranges=ranges)


def select(
    attention: NDArray[Any], heads: Sequence[int] | None, queries: Sequence[int] | None
) -> NDArray[Any]:
    """Takes heads and queries from weights [B, …, H, queries, keys]; a view where indices are consecutive."""
    if heads is not None:
        attention = attention[..., _index(heads), :, :]
    if queries is not None:
        attention = attention[..., _index(queries), :]
    return attention


def convert(array: NDArray[Any], datatype: str) -> NDArray[Any]:
    """Converts an output to FP32, FP16 or UINT8 (weights × 255, rounded; NaN becomes 0)."""
    if datatype == "UINT8":
        scaled = np.rint(array * np.float32(255))
        return np.fmin(np.fmax(scaled, 0), 255).astype(np.uint8)
    if datatype == "FP32":
        return array.astype(np.float32, copy=False)
    with np.errstate(over="ignore"):
        return array.astype(np.float16, copy=False)


def _index(indices: Sequence[int]) -> slice | list[int]:
    return slice(indices.start, indices.stop) if isinstance(indices, range) else list(indices)
