"""Watch a module of PyTorch attend: the one module of this package that needs PyTorch.

Attention is a softmax over the product of queries and keys, however a module spells it: as matrix products,
as einsum, or as one of PyTorch's fused functions. PyTorch hands every function that is called to a
`TorchFunctionMode`, so that no module has to cooperate, and none is changed.

Shape letters: B batch, T tokens, S keys, H heads, K head width.
"""

import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_BLOCKED_BELOW = -1_000.0
"""Scores up to this are masked: whatever the others are, their exponential is 0. Masks add −10,000 … −inf."""

_PRODUCTS = {"matmul", "__matmul__", "__rmatmul__", "bmm", "baddbmm", "einsum"}

_FUSED = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
"""The arguments of `scaled_dot_product_attention` that may have no name."""

_TAG = "_polyhead_watch"
"""What a tensor is known to be, in its `__dict__`, so that it is forgotten with the tensor."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """The attention that was computed once."""

    module: str
    """The name of the module that computed it."""
    caller: int
    """The call in which that module was called."""
    source: Any
    """The first tensor that the module got."""
    weights: NDArray[np.float32]
    """[B, H, T, S], zero where nothing is visible."""
    visible: NDArray[np.bool_]
    """[B, H, T, S], whether the mask lets the query see the key."""
    queries: NDArray[np.float32]
    """[B, H, T, K], times what scores are multiplied by: queries · keys are the scores, without a bias."""
    keys: NDArray[np.float32]
    """[B, H, S, K]."""


class _Scores(NamedTuple):
    """A tag: products of queries [..., T, K], times a factor, and keys [..., S, K]."""

    queries: Tensor
    keys: Tensor
    factor: Any = 1.0


_WEIGHTS = "weights"
"""A tag: attention weights, whose product with values is no score."""


class _Call(NamedTuple):
    """A running call of a module."""

    name: str
    number: int
    source: Any
    """Its first tensor."""


def is_module(value: Any) -> bool:
    """Return whether it is a module."""
    return isinstance(value, nn.Module)


def watch(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, modules: str) -> list[Seen]:
    """Run a module, and return all attention that it computes, in order.

    The module runs in evaluation mode and without gradients, and is left as it was.

    Args:
        module: The module.
        args: The arguments of its `forward`.
        kwargs: Those by name.
        modules: A pattern of the names of the modules whose attention counts.
    """
    parameters = {each.untyped_storage().data_ptr() for each in module.parameters()}
    watching = _Watch(_batch_of((*args, *kwargs.values())), modules, parameters)
    training = {each: each.training for each in module.modules()}
    with ExitStack() as undo:
        for name, each in module.named_modules():
            undo.callback(each.register_forward_pre_hook(watching.entering(name), with_kwargs=True).remove)
            undo.callback(each.register_forward_hook(watching.leaving, always_call=True).remove)
        try:
            module.eval()
            if "torch._dynamo" in sys.modules:  # whoever compiled a part has imported it; it takes seconds
                undo.enter_context(torch.compiler.set_stance("force_eager"))
            with torch.no_grad(), watching:
                module(*args, **kwargs)
        finally:
            for each, was in training.items():
                each.training = was
    return _with_heads_joined(watching.seen)


class _Watch(TorchFunctionMode):
    def __init__(self, batch: int, modules: str, parameters: Set[int]) -> None:
        super().__init__()
        self.seen: list[Seen] = []
        self._batch, self._modules, self._parameters = batch, modules, parameters
        self._calls: list[_Call] = []
        self._count = 0

    def entering(self, name: str) -> Callable[..., None]:
        """Return a hook that runs before each call of a module."""

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._count += 1
            source = next((each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)), None)
            self._calls.append(_Call(name or type(module).__name__, self._count, source))

        return hook

    def leaving(self, *_: object) -> None:
        """Run after each call of a module."""
        self._calls.pop()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if func is F.multi_head_attention_forward:
            return self._of_module(func, args, given)
        result = func(*args, **given)
        if func is F.scaled_dot_product_attention:
            self._of_fused(args, given)
        elif isinstance(result, Tensor):
            self._of_operation(getattr(func, "__name__", ""), result, args, given)
        return result

    def _of_operation(
        self, name: str, result: Tensor, args: tuple[Any, ...], given: Mapping[str, Any]
    ) -> None:
        operands = [
            each for each in (*_flat(args[-1:]), *args[:-1], *given.values()) if isinstance(each, Tensor)
        ]
        tagged = [(each, vars(each)[_TAG]) for each in operands if _TAG in vars(each)]
        if name in _PRODUCTS:
            if not any(tag is _WEIGHTS for _, tag in tagged):
                self._of_product(name, result, args, given)
        elif name == "softmax":
            if tagged and isinstance(tag := tagged[0][1], _Scores):
                scores = tagged[0][0]
                dim = given["dim"] if "dim" in given else next(iter(args[1:]), None)
                if dim in {-1, scores.ndim - 1}:
                    hidden = scores <= _BLOCKED_BELOW
                    self._add(result.masked_fill(hidden, 0), ~hidden, tag.queries * tag.factor, tag.keys)
                    vars(result)[_TAG] = _WEIGHTS
        elif name != "linear":
            # Scaled, biased, masked, converted or with heads as an axis of their own, scores stay scores.
            for operand, tag in tagged:
                if operand.numel() == result.numel() and operand.shape[-2:] == result.shape[-2:]:
                    vars(result)[_TAG] = (
                        _scaled(tag, name, (*args, *given.values())) if isinstance(tag, _Scores) else tag
                    )
                    break

    def _of_product(self, name: str, result: Tensor, args: tuple[Any, ...], given: Mapping[str, Any]) -> None:
        """Take the operands of a product for queries and keys, which a softmax may confirm."""
        if name == "einsum":
            equation, *given_operands = args
            operands = _of_einsum(equation, *_flat(given_operands))
        else:
            *_, left, right = (each for each in (*args, *given.values()) if isinstance(each, Tensor))
            operands = (left, right.mT) if left.ndim > 1 and right.ndim > 1 else None
        if operands is None or any(
            each.untyped_storage().data_ptr() in self._parameters for each in operands
        ):
            return
        queries, keys = (each.expand(*result.shape[:-2], *each.shape[-2:]) for each in operands)
        vars(result)[_TAG] = _Scores(queries, keys, given.get("alpha", 1.0))

    def _of_fused(self, args: tuple[Any, ...], given: Mapping[str, Any]) -> None:
        """Compute the weights of `scaled_dot_product_attention`, whose arguments these are."""
        asked = {**dict(zip(_FUSED, args, strict=False)), **given}
        query, key, attn_mask, scale = (
            asked["query"],
            asked["key"],
            asked.get("attn_mask"),
            asked.get("scale"),
        )
        if asked.get("enable_gqa"):
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        query, key = query.float() * (query.shape[-1] ** -0.5 if scale is None else scale), key.float()
        scores = query @ key.mT
        if asked.get("is_causal"):
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        hidden = scores <= _BLOCKED_BELOW
        self._add(scores.softmax(-1).masked_fill(hidden, 0), ~hidden, query, key)

    def _of_module(self, func: Callable[..., Any], args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:
        """Run what `nn.MultiheadAttention` computes, so that it gives the weights of each head."""
        bound = inspect.signature(func).bind(*args, **given)
        bound.apply_defaults()
        asked = bound.arguments
        needed, averaged = asked["need_weights"], asked["average_attn_weights"]
        asked |= {"need_weights": True, "average_attn_weights": False}
        output, weights = func(*bound.args, **bound.kwargs)
        by_head = weights if weights.ndim == 4 else weights[None]
        queries, keys = _projected(asked)
        added = by_head.shape[-1] - keys.shape[-2]  # keys that the module adds, which no mask hides
        hidden = F.pad(_hidden(asked, by_head.shape, keys.shape[-2]), (0, added))
        self._add(by_head.masked_fill(hidden, 0), ~hidden, queries, F.pad(keys, (0, 0, 0, added)))
        if not needed:
            return output, None
        return output, weights.mean(-3) if averaged else weights

    def _add(self, weights: Tensor, visible: Tensor, queries: Tensor, keys: Tensor) -> None:
        if not any(fnmatchcase(call.name, self._modules) for call in self._calls):
            return
        *lead, rows, columns = weights.shape
        # Where heads have no axis of their own, they are along that of the batch, or there is one.
        batch = lead[0] if len(lead) > 1 else self._batch if lead and lead[0] % self._batch == 0 else 1
        heads = math.prod(lead) // batch
        *_, parent, call = (_Call("", 0, None), *self._calls)
        self.seen.append(
            Seen(
                module=call.name,
                caller=parent.number,
                source=call.source,
                weights=_array(weights.reshape(batch, heads, rows, columns)),
                visible=visible.reshape(batch, heads, rows, columns).cpu().numpy(),
                queries=_array(queries.reshape(batch, heads, rows, queries.shape[-1])),
                keys=_array(keys.reshape(batch, heads, columns, keys.shape[-1])),
            )
        )


def _batch_of(inputs: Iterable[Any]) -> int:
    """Return B of token ids [B, T] or vectors [B, T, D]; 1 of a sequence without an axis of a batch."""
    first = next((each for each in inputs if isinstance(each, Tensor)), None)
    if first is None or first.ndim < 2 + first.is_floating_point():
        return 1
    return max(len(first), 1)


def _scaled(scores: _Scores, name: str, args: tuple[Any, ...]) -> _Scores:
    """Return the tag of scores after an operation that may have scaled them."""
    number = next((each for each in args if not isinstance(each, Tensor) or each.numel() == 1), None)
    if number is None:
        return scores
    if isinstance(number, Tensor):
        number = number.reshape(())
    if "mul" in name:
        return scores._replace(factor=scores.factor * number)
    return scores._replace(factor=scores.factor / number) if "div" in name else scores


def _of_einsum(equation: str, *operands: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the queries [..., T, K] and keys [..., S, K] of an einsum that may give scores [..., T, S]."""
    inputs, _, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(terms) != 2 or len(operands) != 2 or "." in equation or len(output) < 2:
        return None
    summed = set(terms[0]) & set(terms[1]) - set(output)
    lead, row, column = output[:-2], output[-2], output[-1]
    if (
        len(summed) != 1
        or (row in terms[0]) == (row in terms[1])
        or (column in terms[0]) == (column in terms[1])
    ):
        return None
    first = int(row in terms[1])
    if column in terms[first]:
        return None
    found = []
    for at, side in ((first, row), (1 - first, column)):
        own = [axis for axis in lead if axis in terms[at]]
        axes = torch.einsum(f"{terms[at]}->{''.join((*own, side, *summed))}", operands[at])
        for place, axis in enumerate(lead):
            axes = axes if axis in own else axes.unsqueeze(place)
        found.append(axes)
    return found[0], found[1]


def _flat(operands: Sequence[Any]) -> Sequence[Any]:
    """Return operands that may be given one by one or as a list."""
    return operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands


def _projected(asked: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the queries [B, H, T, K], scaled, and the keys [B, H, S, K] of `nn.MultiheadAttention`."""
    if asked["use_separate_proj_weight"]:
        weights = (asked["q_proj_weight"], asked["k_proj_weight"])
    else:
        weights = asked["in_proj_weight"].chunk(3)[:2]
    bias = asked["in_proj_bias"]
    biases = (None, None) if bias is None else bias.chunk(3)[:2]
    found, heads = [], asked["num_heads"]
    for x, weight, one in zip((asked["query"], asked["key"]), weights, biases, strict=True):
        projected = F.linear(x if x.ndim == 3 else x[:, None], weight, one)  # [T, B, H·K]
        found.append(projected.reshape(*projected.shape[:2], heads, len(weight) // heads).permute(1, 2, 0, 3))
    return found[0] * found[0].shape[-1] ** -0.5, found[1]


def _hidden(asked: Mapping[str, Any], shape: Sequence[int], keys: int) -> Tensor:
    """Return what the masks of `nn.MultiheadAttention` hide: Boolean [B, H, T, S]."""
    batch, heads, queries, _ = shape
    hidden = torch.zeros(batch, heads, queries, keys, dtype=torch.bool, device=asked["query"].device)
    if (mask := asked["attn_mask"]) is not None:
        blocked = mask if mask.dtype == torch.bool else mask <= _BLOCKED_BELOW
        hidden |= blocked if blocked.ndim == 2 else blocked.reshape(hidden.shape)
    if (padding := asked["key_padding_mask"]) is not None:
        blocked = padding if padding.dtype == torch.bool else padding <= _BLOCKED_BELOW
        hidden |= blocked.reshape(-1, 1, 1, keys)
    return hidden


def _with_heads_joined(seen: Sequence[Seen]) -> list[Seen]:
    """Join single heads that one call computed one after another from the same input: those of a layer."""
    joined: list[Seen] = []
    for each in seen:
        before = joined[-1] if joined else None
        if (
            before is not None
            and each.weights.shape[1] == 1
            and (each.caller, each.weights.shape[2:]) == (before.caller, before.weights.shape[2:])
            and each.source is before.source
        ):
            parts: dict[str, Any] = {
                name: np.concatenate([getattr(before, name), getattr(each, name)], 1)
                for name in ("weights", "visible", "queries", "keys")
            }
            joined[-1] = replace(before, **parts)
        else:
            joined.append(each)
    return joined


def _array(values: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = values.float().cpu().numpy()
    return array
