"""The attention of all heads, summed with weights of the request.

Shape letters: B batch, T tokens, H heads, L layers.
"""

from polyhead_proto.names import HEAD_MIX
from polyhead_proto.wants import Output, read_given

MIXED = Output(role="mixed", keyword=HEAD_MIX, read=read_given, is_map=True)
"""[B, T, T]; the input `head_mix` [B, L, H] has the weights."""
