"""The similarities of a query's tokens with those of documents. S are the query's tokens, T a document's."""

from polyhead_proto.names import QUERY_VECTORS
from polyhead_proto.wants import Output, read_given

_SOURCE = "polyhead export --graphs maxsim adds one, for checkpoints of late interaction"

MAX_SIMILARITIES = Output(
    role="max_similarities",
    keyword=QUERY_VECTORS,
    read=read_given,
    options=frozenset({"similarities"}),
    source=_SOURCE,
)
"""[B, S]: the largest of each token of the query."""

SIMILARITIES = Output(role="similarities", source=_SOURCE)
"""[B, S, T]: cosines."""
