"""Turn the arguments of `encode` into requested outputs and their parameters.

Shape letters: B batch, T tokens, H heads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, TypeAlias, get_args

from polyhead_client.errors import InvalidRequest
from polyhead_client.models import ModelInfo
from polyhead_proto.datatypes import Precision
from polyhead_proto.names import DTYPE, HEADS, LENGTHS, OUTPUT, POOLED, QUERIES, TOKENS

Indices: TypeAlias = int | slice | range | Sequence[int]
"""Positions on an axis: 3, [0, 3], range(4) or slice(0, 4)."""


@dataclass(frozen=True, kw_only=True)
class RequestedOutputs:
    """The outputs that a request asks for."""

    outputs: tuple[str, ...]
    """The names of all outputs but those of attention."""
    layers: Mapping[int, str] = field(default_factory=dict)
    """The requested layers of attention, each with the name of its output."""
    heads: tuple[int, ...] | None = None
    """None means all."""
    queries: tuple[int, ...] | None = None
    """None means all."""
    dtype: Precision | None = None

    @property
    def parameters(self) -> Mapping[str, str]:
        """The parameters of every attention output."""
        chosen = {HEADS: _spell(self.heads), QUERIES: _spell(self.queries), DTYPE: self.dtype}
        return {name: value for name, value in chosen.items() if value is not None}


def select(
    info: ModelInfo,
    *,
    text: bool,
    output: bool,
    pooled: bool | None,
    tokens: bool | None,
    attention: bool | int | Sequence[int] | None,
    heads: Indices | None,
    queries: Indices | None,
    dtype: Precision | None,
) -> RequestedOutputs:
    """Turn the arguments of `Client.encode` into outputs of a model.

    Raises:
        InvalidRequest: An argument is not valid, or the model does not have such an output.
    """
    layers = _layers(info, attention)
    if not layers:
        for name, value in {"heads": heads, "queries": queries, "dtype": dtype}.items():
            if value is not None:
                raise InvalidRequest(
                    f"{name} selects from attention, which was not asked for (attention=True or layers)"
                )
    if dtype is not None and dtype not in get_args(Precision):
        raise InvalidRequest(f"dtype must be one of {', '.join(get_args(Precision))}, was {dtype!r}")
    if pooled is None:
        pooled = POOLED in info.outputs
    if pooled and POOLED not in info.outputs:
        raise InvalidRequest(f"pooled cannot be had: {info.name} does not pool")
    if tokens is None:
        tokens = text
    if tokens and TOKENS not in info.outputs:
        raise InvalidRequest(f"tokens cannot be had: {info.name} has no tokeniser")
    # The client needs the lengths of texts to remove their padding.
    wanted = {OUTPUT: output, POOLED: pooled, TOKENS: tokens, LENGTHS: text}
    if not (output or pooled or tokens or layers):
        raise InvalidRequest("nothing was asked for: output, pooled, tokens and attention are all off")
    return RequestedOutputs(
        outputs=tuple(name for name, is_wanted in wanted.items() if is_wanted),
        layers=layers,
        heads=_indices("heads", heads),
        queries=_indices("queries", queries),
        dtype=dtype,
    )


def _layers(info: ModelInfo, attention: bool | int | Sequence[int] | None) -> Mapping[int, str]:
    if attention is None or attention is False:
        return {}
    served = info.attention_layers
    if not served:
        raise InvalidRequest(f"attention cannot be had: {info.name} has no attention outputs")
    if attention is True:
        return info.attention
    asked: Any = [attention] if isinstance(attention, Integral) else attention
    if isinstance(asked, str | bytes) or not _all_integers(asked):
        raise InvalidRequest(f"attention must be True or layer numbers, was {attention!r}")
    if not len(asked):
        raise InvalidRequest("attention must name at least one layer, was empty")
    layers: dict[int, str] = {}
    for layer in asked:
        index = int(layer) + len(served) if layer < 0 else int(layer)
        if index not in served:
            raise InvalidRequest(
                f"attention must be layers between 0 and {served[-1]} of {info.name} "
                f"(or -1 for the last, and so on), was {layer}"
            )
        if index in layers:
            raise InvalidRequest(f"attention must name each layer once, was {attention!r}")
        layers[index] = info.attention[index]
    return layers


def _indices(name: str, value: Indices | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    if isinstance(value, slice):
        if value.stop is None:
            raise InvalidRequest(f"{name} must be a slice with an end, was {value}")
        value = range(value.start or 0, value.stop, value.step or 1)
    items: Any = [value] if isinstance(value, Integral) else value
    if isinstance(items, str | bytes) or not _all_integers(items) or not len(items):
        raise InvalidRequest(f"{name} must be one or more indices, was {value!r}")
    indices = tuple(int(item) for item in items)
    if min(indices) < 0:
        raise InvalidRequest(f"{name} must be 0 or more, was {min(indices)}")
    if len(set(indices)) < len(indices):
        raise InvalidRequest(f"{name} must be given once each, was {value!r}")
    return indices


def _all_integers(items: Any) -> bool:
    try:
        return all(isinstance(item, Integral) and not isinstance(item, bool) for item in items)
    except TypeError:
        return False


def _spell(indices: tuple[int, ...] | None) -> str | None:
    """Write indices as the wire has them: `0:8` for a range, `0,3` otherwise."""
    if indices is None:
        return None
    first, last = indices[0], indices[-1]
    if len(indices) > 1 and indices == tuple(range(first, last + 1)):
        return f"{first}:{last + 1}"
    return ",".join(map(str, indices))
