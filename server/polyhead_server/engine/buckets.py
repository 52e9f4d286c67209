"""The sizes that a device computes: a run's (B, T) is rounded up to one of few.

Attention kernels want T as a multiple of 8; and what is chosen or prepared for a size (matrix kernels,
attention plans, CUDA graphs) is used again only at the same size.
"""

Size = tuple[int, int]
"""(B, T) of a run."""

_TOKENS_STEP = 8
_EXACT_ROWS = 8


def bucket(batch: int, tokens: int, max_tokens: int | None = None) -> Size:
    """The size that is computed for (B, T); see `bucket_rows` and `bucket_tokens`."""
    return bucket_rows(batch), bucket_tokens(tokens, max_tokens)


def bucket_tokens(tokens: int, max_tokens: int | None = None) -> int:
    """T rounded up to a multiple of 8, but not past the graph's own limit.

    Args:
        tokens: T, at least 1.
        max_tokens: The largest T that the graph can take; None is any.
    """
    rounded = -(-tokens // _TOKENS_STEP) * _TOKENS_STEP
    return rounded if max_tokens is None else max(tokens, min(rounded, max_tokens))


def bucket_rows(batch: int) -> int:
    """B rounded up to 1 … 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, …: four steps to the next power of two.

    At most a fifth of the rows are padding. For B up to 256 there are 28 sizes.
    """
    if batch <= _EXACT_ROWS:
        return batch
    step = 1 << ((batch - 1).bit_length() - 3)
    return -(-batch // step) * step
