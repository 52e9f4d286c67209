"""Whether a reply is like the first one: names, datatypes, shapes and bytes, never the values.

A server that answers OK with something else is faster than one that computes, and its times mean nothing.

Shape letters: B batch, T tokens.
"""

import math
from collections.abc import Sequence

from polyhead_load.reply_head import Tensor
from polyhead_proto.datatypes import DTYPES
from polyhead_proto.names import TOKENS

_LENGTH_BYTES = 4
"""What each element of BYTES has in front of it."""


class Likeness:
    """What the replies to one pool of requests are like.

    The first reply that is looked at says it: all others have its outputs, in its datatypes and shapes, but
    for T where requests differ in that. The same request has the same shapes and as many bytes each time.
    """

    def __init__(self) -> None:
        self._first: tuple[Tensor, ...] | None = None
        self._first_tokens: int | None = None
        self._seen: dict[int, tuple[Tensor, ...]] = {}

    def fault(self, number: int, tokens: int | None, reply: Sequence[Tensor]) -> str | None:
        """Say in what a reply is unlike the others, or None.

        Args:
            number: Of the request, within the pool.
            tokens: T of the request; None for texts, of which only the server knows it.
            reply: The reply's outputs.
        """
        tensors = tuple(reply)
        if (known := self._seen.get(number)) is not None:
            return None if tensors == known else f"must be {_spelled(known)}, was {_spelled(tensors)}"
        if tokens is None:
            tokens = next((each.shape[-1] for each in tensors if each.name == TOKENS and each.shape), None)
        fault = next(filter(None, map(_contents_fault, tensors)), None) or self._unlike(tokens, tensors)
        if fault is None:
            self._seen[number] = tensors
            if self._first is None:
                self._first, self._first_tokens = tensors, tokens
        return fault

    def _unlike(self, tokens: int | None, tensors: tuple[Tensor, ...]) -> str | None:
        if not tensors:
            return "must have outputs, has none"
        if self._first is None:
            return None
        like = len(tensors) == len(self._first) and all(
            (one.name, one.datatype, len(one.shape)) == (first.name, first.datatype, len(first.shape))
            for one, first in zip(tensors, self._first, strict=True)
        )
        if like and tokens != self._first_tokens:
            # An extent that was T is T again; or it was only as large by chance, which all of them cannot be.
            like = any(tokens in tensor.shape for tensor in tensors)
        like = like and all(
            extent == known or (known == self._first_tokens and extent == tokens)
            for one, first in zip(tensors, self._first, strict=True)
            for extent, known in zip(one.shape, first.shape, strict=True)
        )
        return None if like else f"must be like {_spelled(self._first)}, was {_spelled(tensors)}"


def _contents_fault(tensor: Tensor) -> str | None:
    count = math.prod(tensor.shape)
    if min(tensor.shape, default=0) < 0:
        return f"{tensor.name} must have a shape, was {list(tensor.shape)}"
    if tensor.datatype == "BYTES":
        fits = tensor.size >= _LENGTH_BYTES * count
    elif tensor.datatype in DTYPES:
        fits = tensor.size == DTYPES[tensor.datatype].itemsize * count
    else:
        return f"{tensor.name} has the unknown datatype {tensor.datatype!r}"
    return None if fits else f"{_spelled([tensor])} does not fit its shape"


def _spelled(tensors: Sequence[Tensor]) -> str:
    return (
        ", ".join(
            f"{each.name} {each.datatype} {list(each.shape)} ({each.size} bytes)"
            if each.size >= 0
            else f"{each.name} without contents"
            for each in tensors
        )
        or "nothing"
    )
