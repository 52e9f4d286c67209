"""Record the attention of a module of PyTorch, in process.

Shape letters: B batch, T tokens, S keys, H heads, K head width.
"""

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polyhead_client import Encoding, Timings
from polyhead_view.drawable import as_array

if TYPE_CHECKING:
    from polyhead_view.watch import Seen


def _unblocked(mask: NDArray[Any]) -> NDArray[Any]:
    return ~mask if mask.dtype == bool else mask == 0


_PADDING: Mapping[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "attention_mask": lambda mask: mask > 0,
    "key_padding_mask": _unblocked,
    "src_key_padding_mask": _unblocked,
}
"""Masks that say which tokens are none of padding, as transformers and PyTorch name them; and how."""


def attention_of(
    module: Any,
    inputs: Any,
    *,
    tokens: Sequence[str] | Sequence[Sequence[str]] | None = None,
    modules: str = "*",
) -> Encoding:
    """Run a module of PyTorch once, and return the attention of all its layers, without a server.

    The module may be any that computes softmax(Q Kᵀ), itself or deep inside: `torch.nn.MultiheadAttention`,
    `torch.nn.TransformerEncoder`, an encoder of `polyhead_model` or of transformers, or one of your own. It
    runs in evaluation mode and without gradients, and is left as it was.

    ```
    attention = torch.nn.MultiheadAttention(64, 4, batch_first=True)
    x = torch.randn(1, 3, 64)
    draw_heads(attention_of(attention, (x, x, x), tokens=["the", "cat", "sat"]))
    ```

    Layers are counted in the order in which they are computed. Heads that a module computes one by one from
    the same input are those of one layer. Padding is left out where an argument of `forward` names it:
    `attention_mask` [B, T], `key_padding_mask`, `src_key_padding_mask` or `lengths`.

    Args:
        module: The module.
        inputs: What its `forward` takes: a tensor, a tuple, or a mapping such as a tokenizer's result.
        tokens: The labels of the T tokens of one sequence, or those of each sequence of a batch, padding left
            out; None means the tokens of a tokenizer's result, or none.
        modules: A pattern of the names of the modules whose attention is recorded, such as `decoder.*` or
            `*.self_attn`, for a module whose layers attend to several sequences.

    Returns:
        An encoding with `attention`, and `visible`, `query_vectors` and `key_vectors` of each layer; of a
        single sequence where B is 1, otherwise in the form of a list.

    Raises:
        TypeError: It is no module.
        ValueError: It computes no attention, its layers attend to several sequences, or labels do not fit.
        ImportError: PyTorch is not installed.
    """
    try:
        from polyhead_view.watch import is_module, watch
    except ModuleNotFoundError as error:
        raise ImportError("attention_of needs PyTorch: pip install torch") from error
    if not is_module(module):
        raise TypeError(f"module must be a torch.nn.Module, was {type(module).__name__}")
    args, kwargs = _arguments(inputs)
    start = time.perf_counter_ns()
    layers = watch(module, args, kwargs, modules=modules)
    duration = time.perf_counter_ns() - start
    if not layers:
        raise ValueError(
            f"module must compute a softmax of queries times keys, in modules named {modules!r}; "
            f"{type(module).__name__} did not. Kernels like FlashAttention hide it: load a model of "
            "transformers with attn_implementation='sdpa'"
        )
    _check_alike(layers)
    batch, _, _, keys = layers[0].weights.shape
    found = _tokens(inputs, batch) if tokens is None else tokens
    valid = _valid(module, args, kwargs, (batch, keys))
    return _encoding(type(module).__name__, layers, found, valid, duration)


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), {str(name): value for name, value in inputs.items()}
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


def _check_alike(layers: Sequence["Seen"]) -> None:
    """Reject layers of different shapes, which are of several sequences, or have several numbers of heads."""
    shapes = {each.weights.shape: each.module for each in reversed(layers)}
    if len(shapes) > 1:
        spelled = ", ".join(f"{list(shape)} of {name}" for shape, name in reversed(shapes.items()))
        raise ValueError(
            f"all layers must have weights of one shape [B, H, T, S], were {spelled}: choose with modules=, "
            "such as 'encoder.*' or '*.self_attn'"
        )


def _tokens(inputs: Any, batch: int) -> list[list[str]] | None:
    """Return the tokens, padding included, that a tokenizer's result knows."""
    if not getattr(inputs, "is_fast", False):
        return None
    return [list(map(str, inputs.tokens(row))) for row in range(batch)]


def _valid(
    module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], shape: tuple[int, int]
) -> NDArray[np.bool_]:
    """Return which tokens [B, T] are none of padding, by the arguments that say so."""
    names = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    given = {**names, **names.get("kwargs", {})}
    valid = np.ones(shape, bool)
    for name, is_token in _PADDING.items():
        if given.get(name) is not None and (array := as_array(given[name])).shape in {shape, shape[1:]}:
            valid &= is_token(array)
    if given.get("lengths") is not None:
        valid &= np.arange(shape[1]) < as_array(given["lengths"]).reshape(-1, 1)
    return valid


def _encoding(
    name: str,
    layers: Sequence["Seen"],
    tokens: Sequence[Any] | None,
    valid: NDArray[np.bool_],
    total_ns: int,
) -> Encoding:
    batch, heads, rows, columns = layers[0].weights.shape
    columns_of = [np.flatnonzero(row) for row in valid]
    rows_of = columns_of if rows == columns else [np.arange(rows)] * batch

    def parts(name: str, *kept: Sequence[NDArray[Any]]) -> dict[int, list[NDArray[Any]]]:
        """Return layer → what each sequence has, without padding."""
        return {
            number: [
                array[:, *np.ix_(*ats)] if len(ats) == 2 else array[:, ats[0]]
                for array, *ats in zip(getattr(layer, name), *kept, strict=True)
            ]
            for number, layer in enumerate(layers)
        }

    encoding = Encoding(
        model=name,
        version="",
        output=None,
        pooled=None,
        attention=parts("weights", rows_of, columns_of),
        visible=parts("visible", rows_of, columns_of),
        query_vectors=parts("queries", rows_of),
        key_vectors=parts("keys", columns_of),
        heads=tuple(range(heads)),
        queries=None,
        tokens=_labels(tokens, rows_of, rows),
        lengths=np.array([len(row) for row in rows_of]),
        timings=Timings(total_ns=total_ns),
    )
    return encoding.sequence(0) if batch == 1 else encoding


def _labels(
    tokens: Sequence[Any] | None, rows_of: Sequence[NDArray[Any]], rows: int
) -> list[list[str]] | None:
    """Return the tokens of each sequence, without padding."""
    if tokens is None:
        return None
    if len(rows_of) == 1 and all(isinstance(token, str) for token in tokens):
        tokens = [tokens]
    if len(tokens) != len(rows_of) or any(isinstance(each, str) for each in tokens):
        raise ValueError(f"tokens must be a list for each of {len(rows_of)} sequences, was of {len(tokens)}")
    found = []
    for number, (each, kept) in enumerate(zip(tokens, rows_of, strict=True)):
        if len(each) not in {rows, len(kept)}:
            raise ValueError(f"tokens of sequence {number} must be {len(kept)}, were {len(each)}")
        found.append([str(each[at]) for at in kept] if len(each) == rows else list(map(str, each)))
    return found
