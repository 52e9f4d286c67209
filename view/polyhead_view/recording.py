"""Record the attention of a module of PyTorch, in process.

Shape letters: B batch, T tokens, S keys, H heads, K head width.
"""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polyhead_client import Encoding, Timings

if TYPE_CHECKING:
    from polyhead_view.watch import Seen


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
    the same input are those of one layer. Keys that no query of any layer sees are padding, and left out.

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
            f"module must compute a softmax of queries times keys in modules named {modules!r}: no call of "
            f"{type(module).__name__} did. A compiled module, and kernels such as FlashAttention, hide theirs: "
            "give the module before torch.compile, or load it with attn_implementation='sdpa'"
        )
    _check_alike(layers)
    found = _tokens(inputs, len(layers[0].weights)) if tokens is None else tokens
    return _encoding(type(module).__name__, layers, found, duration)


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


def _encoding(
    name: str, layers: Sequence["Seen"], tokens: Sequence[Any] | None, total_ns: int
) -> Encoding:
    visible = np.stack([each.visible for each in layers])  # [L, B, H, T, S]
    batch, heads, rows, columns = layers[0].weights.shape
    keys = visible.any((0, 2, 3))  # [B, S], without padding
    queries = keys if rows == columns else np.ones((batch, rows), bool)
    rows_of = [np.flatnonzero(row) for row in queries]
    columns_of = [np.flatnonzero(row) for row in keys]

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
