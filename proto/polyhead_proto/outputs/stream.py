"""What was read of the residual stream and of what heads give, and edits of both.

Shape letters: B batch, D d_model, K head width.
"""

from polyhead_proto.names import EDIT_VECTORS
from polyhead_proto.wants import Output, read_given

_SOURCE = "polyhead export --graphs stream adds one"

STREAM = Output(role="stream", keyword="read", read=read_given, source=_SOURCE)
"""[B, Reads, D]."""

HEAD_OUTPUTS = Output(role="head_outputs", keyword="read", read=read_given, source=_SOURCE)
"""[B, HeadReads, K]."""

EDITS = Output(role=EDIT_VECTORS, keyword="edits", field="", read=read_given, source=_SOURCE, is_input=True)
"""The input of the vectors of edits, [B, Edits, D]."""
