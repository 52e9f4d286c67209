"""What `encode` returns.

Shape letters: B batch, T tokens, D d_model, H heads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from numpy.typing import NDArray

Arrays: TypeAlias = Any
"""An array, or for a ragged batch a list of B arrays: the inputs decide, so checkers cannot know."""


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Where the time of one call went, in nanoseconds; None where the server does not say.

    Of a batch that was sent as several requests, the server's times are sums; as requests run side by side,
    they may be more than `total_ns`.
    """

    total_ns: int
    """From sending to having the reply, as the client saw it."""
    parse_ns: int | None = None
    tokenise_ns: int | None = None
    """Texts only."""
    queue_ns: int | None = None
    compute_ns: int | None = None
    serialise_ns: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoding:
    """The encoder's answer, in the form of its inputs.

    | given                           | output       | attention[layer]  | pooled | tokens        | lengths |
    |---------------------------------|--------------|-------------------|--------|---------------|---------|
    | one sequence: str, [T, D], [T]  | [T, D]       | [H, T, T]         | [D]    | T strings     | int     |
    | a list: texts, [T_i, D], [T_i]  | B × [T_i, D] | B × [H, T_i, T_i] | [B, D] | B × T_i       | [B]     |
    | an array: [B, T, D], [B, T]     | [B, T, D]    | [B, H, T, T]      | [B, D] | B × T         | [B]     |

    Arrays are read-only views of the reply, which each of them keeps in memory as a whole: `array.copy()` or
    `torch.tensor(array)` gives one to write to. Only what comes in several messages, or as FP16 or UINT8
    weights, is put into arrays of its own. What was not asked for is None.
    """

    model: str
    """The served model that answered, such as `minilm` or `minilm.attention`."""
    version: str
    output: Arrays
    pooled: NDArray[Any] | None
    attention: Mapping[int, Arrays] | None
    """Layer → weights, always float32 (rows that were sent as FP16 or UINT8 are turned back). The
    axes are [head, query, key]; only the chosen heads and queries are there, in the order chosen."""
    heads: tuple[int, ...] | None
    """The numbers of the heads in `attention`, in order."""
    queries: tuple[int, ...] | None
    """The positions of the queries in `attention` where they were chosen; None: all T."""
    tokens: list[str] | list[list[str]] | None
    """"" is padding."""
    lengths: int | NDArray[Any]
    timings: Timings
