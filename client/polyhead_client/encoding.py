"""The result of `encode`.

Shape letters: B batch, T tokens, D d_model, H heads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from numpy.typing import NDArray

Arrays: TypeAlias = Any
"""An array, or for a ragged batch a list of B arrays; the inputs decide, so type checkers cannot tell."""


@dataclass(frozen=True, kw_only=True)
class Timings:
    """The timings of one call, in nanoseconds; None if the server does not report them.

    For a batch that was sent as several requests, the server's timings are sums. Requests run concurrently,
    so a sum may exceed `total_ns`.
    """

    total_ns: int
    """From sending the request to reading the reply, measured by the client."""
    parse_ns: int | None = None
    tokenise_ns: int | None = None
    """Texts only."""
    queue_ns: int | None = None
    compute_ns: int | None = None
    serialise_ns: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoding:
    """The result of an encoder, in the form of its inputs.

    | given                           | output       | attention[layer]  | pooled | tokens        | lengths |
    |---------------------------------|--------------|-------------------|--------|---------------|---------|
    | one sequence: str, [T, D], [T]  | [T, D]       | [H, T, T]         | [D]    | T strings     | int     |
    | a list: texts, [T_i, D], [T_i]  | B × [T_i, D] | B × [H, T_i, T_i] | [B, D] | B × T_i       | [B]     |
    | an array: [B, T, D], [B, T]     | [B, T, D]    | [B, H, T, T]      | [B, D] | B × T         | [B]     |

    Arrays are read-only views of the reply, and each of them keeps the whole reply in memory; `array.copy()`
    and `torch.tensor(array)` give writable copies. Only outputs that come in several messages, and weights
    that come as FP16 or UINT8, have arrays of their own. Outputs that were not requested are None.
    """

    model: str
    """The served model that answered, such as `minilm` or `minilm.attention`."""
    version: str
    output: Arrays
    pooled: NDArray[Any] | None
    attention: Mapping[int, Arrays] | None
    """Layer → weights, always float32 (FP16 and UINT8 are converted back). The axes are [head, query, key];
    only the selected heads and queries are there, in the order of selection."""
    heads: tuple[int, ...] | None
    """The numbers of the heads in `attention`, in order."""
    queries: tuple[int, ...] | None
    """The positions of the queries in `attention`; None means all T."""
    tokens: list[str] | list[list[str]] | None
    """"" is padding."""
    lengths: int | NDArray[Any]
    timings: Timings
