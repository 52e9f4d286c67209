"""The arrays of a run of (B, T), as the manifest declares them."""

from polyhead_server.repository import Tensor


def shape_of(tensor: Tensor, batch: int, tokens: int) -> tuple[int, ...]:
    """A tensor's shape at (B, T): of the sizes that vary, the first is B and the others are T."""
    open_sizes = iter([batch, tokens, tokens])
    return tuple(next(open_sizes) if size == -1 else size for size in tensor.shape)
