"""The probability of a contact of each pair of residues of a protein."""

from polyhead_proto.names import DTYPE
from polyhead_proto.wants import Output

CONTACTS = Output(
    role="contacts",
    keyword="contacts",
    field="contacts",
    options=frozenset({DTYPE}),
    source="polyhead export --graphs contacts adds one, if the checkpoint predicts them",
    is_map=True,
    fractions=True,
)
"""[B, T, T]."""
