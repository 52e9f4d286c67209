"""What the commands that call a server have in common. Light, as every command module."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cyclopts import Parameter

from polyhead_client.defaults import DEFAULT_TARGET, DEFAULT_TIMEOUT_S
from polyhead_client.errors import InvalidRequest

BOUNDARY_TOKENS = frozenset(
    {"[CLS]", "[SEP]", "[PAD]", "<s>", "</s>", "<pad>", "<cls>", "<sep>", "<bos>", "<eos>", "<|endoftext|>"}
)
"""Tokens that a tokeniser puts around a text. Heads look there when they have nothing to look at."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Connection:
    """Which server, and which of its models."""

    address: str = DEFAULT_TARGET
    """The server: host:port, or unix:/path."""
    model: str | None = None
    """The family. Default: the only one that is served."""
    timeout: float = DEFAULT_TIMEOUT_S
    """Seconds to wait for the answer."""


DEFAULT_CONNECTION = Connection()


def parse_indices(flag: str, spelled: str) -> list[int]:
    """Reads `5`, `0,3` or `0:4` (the end excluded), and mixtures of them.

    Raises:
        InvalidRequest: it is anything else.
    """
    indices: list[int] = []
    for part in spelled.split(","):
        first, colon, end = part.partition(":")
        try:
            indices += range(int(first or 0), int(end)) if colon else [int(first)]
        except ValueError:
            raise InvalidRequest(f"{flag} must be indices such as 5, 0,3 or 0:4, was {spelled!r}") from None
    return indices


def boundaries(tokens: Sequence[str]) -> Collection[int]:
    """The positions of the tokens that are not of the text itself."""
    return {position for position, token in enumerate(tokens) if token in BOUNDARY_TOKENS}
