"""What callers get of outputs, which are declared in `polyhead_proto.outputs`."""

from polyhead_proto.outputs.contacts import Contact, strongest_contacts
from polyhead_proto.outputs.evidence import EvidencePair, TextToken
from polyhead_proto.outputs.head_scores import HeadScores
from polyhead_proto.outputs.sparse import SparseVectors
from polyhead_proto.outputs.top_keys import TopKeys
from polyhead_proto.outputs.value_norms import norm_weighted

__all__ = [
    "Contact",
    "EvidencePair",
    "HeadScores",
    "SparseVectors",
    "TextToken",
    "TopKeys",
    "norm_weighted",
    "strongest_contacts",
]
