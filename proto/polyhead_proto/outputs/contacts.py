"""The probability of a contact of each pair of residues of a protein."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyhead_proto.names import DTYPE
from polyhead_proto.wants import Output, check_count

CONTACTS = Output(
    role="contacts",
    options=frozenset({DTYPE}),
    source="polyhead export --graphs contacts adds one, if the checkpoint predicts them",
    is_map=True,
    fractions=True,
)
"""[B, T, T]."""


class Contact(NamedTuple):
    """Two residues, by the positions of their tokens. Behind a first token they are residue 1, 2, …."""

    i: int
    j: int
    """Greater than i."""
    probability: float


def strongest_contacts(
    contacts: NDArray[Any], *, top: int | None = None, separation: int = 6
) -> list[Contact]:
    """Return the most probable contacts, those first; ties go to the earlier i and j.

    Args:
        contacts: [T, T], as `Encoding.contacts` of one sequence.
        top: How many; None means all. Predictions are usually judged by the first L, L / 2 or L / 5 of a
            protein of L residues.
        separation: The least j − i. Residues that are closer along the chain touch anyway: 6 is usual, and
            24 for long-range contacts (Rao et al. 2020, doi 10.1101/2020.12.15.422761).

    Returns:
        At most `top` contacts. Those of probability 0, of the first token and the end, are left out.

    Raises:
        ValueError: `contacts` are not numbers [T, T], or `top` or `separation` is not 1 or more.
    """
    contacts, count = np.asarray(contacts), check_count("top", top)
    least = check_count("separation", separation) or 1
    if contacts.ndim != 2 or contacts.shape[0] != contacts.shape[1] or contacts.dtype.kind not in "fiu":
        raise ValueError(f"contacts must be numbers [T, T], was {contacts.dtype} {list(contacts.shape)}")
    firsts, seconds = np.triu_indices(len(contacts), least)
    found = contacts[firsts, seconds]
    order = np.argsort(-found.astype(np.float64), kind="stable")
    order = order[found[order] > 0][:count]
    return [Contact(int(firsts[at]), int(seconds[at]), float(found[at])) for at in order.tolist()]
