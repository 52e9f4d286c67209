"""What heads do, by stated rules."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True)
class Role:
    """A head has a role if the mean of a score over the texts is at least this high."""

    name: str
    score: str
    least: float
    meaning: str


BROAD = Role(
    "broad",
    "normalised_entropy",
    0.85,
    "the entropy is at least 0.85 of that of attending to all tokens alike",
)

PRUNED = "pruned"
"""What is said of a head that is gone, in place of roles."""

ROLES = (
    Role("previous token", "previous", 0.5, "at least half of the attention goes to the token before"),
    Role("next token", "next", 0.5, "at least half of the attention goes to the token after"),
    Role("current token", "current", 0.5, "at least half of the attention stays where it is"),
    Role("first token", "first", 0.5, "at least half of the attention goes to the first token"),
    Role("separator", "separator", 0.5, "at least half of the attention goes to separators such as [SEP]"),
    Role("punctuation", "punctuation", 0.5, "at least half of the attention goes to punctuation"),
    Role(
        "duplicate token",
        "duplicate",
        0.5,
        "where a token occurred before, at least half of the attention goes there",
    ),
    Role(
        "induction",
        "induction",
        0.5,
        "where a token occurred before, at least half of the attention goes to the token that followed it",
    ),
    BROAD,
)


def roles_of(scores: Sequence[str], means: NDArray[Any]) -> list[Role]:
    """Return the roles of one head, in the order of `ROLES`.

    Args:
        scores: The names of the S scores.
        means: [S], the head's mean of each; NaN gives no role.
    """
    by_name = dict(zip(scores, means.tolist(), strict=True))
    return [role for role in ROLES if role.score in by_name and by_name[role.score] >= role.least]


def role_counts(scores: Sequence[str], means: NDArray[Any]) -> dict[Role, int]:
    """Return how many heads have each role, of those that the scores can show.

    Args:
        scores: The names of the S scores.
        means: [L, H, S].
    """
    found = Counter(role for head in means.reshape(-1, len(scores)) for role in roles_of(scores, head))
    return {role: found[role] for role in ROLES if role.score in scores}


def nearest_role(scores: Sequence[str], means: NDArray[Any]) -> Role | None:
    """Return the role about attention to some token that a head comes closest to.

    None if less than half of its threshold is reached.
    """
    by_name = dict(zip(scores, means.tolist(), strict=True))
    reached = {role: by_name.get(role.score, 0.0) / role.least for role in ROLES if role is not BROAD}
    close = {role: share for role, share in reached.items() if share >= 0.5}  # NaN is not
    return max(close, key=close.__getitem__, default=None)
