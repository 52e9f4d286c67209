"""The words of the vocabulary that say most of a text (SPLADE)."""

from polyhead_proto.wants import Output, read_flag_or_count

_SOURCE = "polyhead export --graphs sparse adds one, if the checkpoint is SPLADE's"

SPARSE_INDICES = Output(
    role="sparse_indices",
    keyword="sparse",
    read=read_flag_or_count,
    field="sparse",
    part="indices",
    source=_SOURCE,
    counted="TopWords",
)
"""[B, TopWords]: token ids; -1 where there are fewer."""

SPARSE_VALUES = Output(
    role="sparse_values",
    keyword="sparse",
    read=read_flag_or_count,
    field="sparse",
    part="values",
    source=_SOURCE,
    counted="TopWords",
)
"""Their weights."""
