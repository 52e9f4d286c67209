"""The strongest keys of each query. Shape letters: B batch, T tokens, H heads, L layers."""

from polyhead_proto.wants import OF_HEADS, Output, check_count

TOP_KEYS = Output(
    role="top_keys",
    keyword="top",
    read=check_count,
    field="top",
    part="keys",
    options=OF_HEADS,
    counted="Top",
)
"""[B, L, H, T, Top]: positions; -1 where a query has fewer keys."""

TOP_WEIGHTS = Output(
    role="top_weights", keyword="top", read=check_count, field="top", part="weights", counted="Top"
)
"""Their weights."""
