"""What the server says of the tokens of texts and token ids."""

from polyhead_proto.names import LENGTHS, SPANS, TOKENS
from polyhead_proto.tensors import TensorSpec
from polyhead_proto.wants import Output, read_choice

_ABSENT = "has no tokeniser"

TOKEN_STRINGS = Output(
    role=TOKENS,
    field="",
    read=read_choice,
    default="texts",
    absent=_ABSENT,
    made=TensorSpec(name=TOKENS, datatype="BYTES", axes=("B", "T"), shape=(-1, -1)),
)
"""[B, T]; empty in padding."""

TOKEN_SPANS = Output(
    role=SPANS,
    absent=_ABSENT,
    made=TensorSpec(
        name=SPANS,
        datatype="INT32",
        axes=("B", "T", "Span"),
        shape=(-1, -1, 3),
        role=SPANS,
        labels=("start", "end", "word"),
    ),
    only_named=True,
)
"""[B, T, 3]: where each token starts and ends in its text, in characters, and its word's number; or -1."""

TOKEN_COUNTS = Output(
    role=LENGTHS,
    keyword="",
    field="",
    default="texts",
    absent="has no such output",
    made=TensorSpec(name=LENGTHS, datatype="INT32", axes=("B",), shape=(-1,)),
)
"""[B]: the number of tokens in each sequence."""
