"""Pooled vectors of fewer dimensions, for server and client."""

from collections.abc import Sequence


def doubt(model: str, dimensions: int, width: int | None, trained: Sequence[int] | None) -> str | None:
    """Return why vectors may lose more by a cut than numbers, in words; None if they were trained for it.

    Args:
        model: The model that gives them.
        dimensions: How many of their numbers are kept.
        width: How many they have, if that is known.
        trained: The numbers of dimensions to which they were trained to be cut; empty: to any; None: to none.
    """
    if dimensions == width or (trained is not None and (not trained or dimensions in trained)):
        return None
    known = (
        "does not say that it was" if trained is None else f"was, to {', '.join(map(str, trained))} alone,"
    )
    return (
        f"{model} {known} trained to have its vectors cut (Matryoshka): {dimensions} dimensions may compare "
        "much worse"
    )
