"""Run a PyTorch computation with other rounding: in wider numbers, or with sums in another order."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

_LOOKUPS = (F.embedding, Tensor.__getitem__)
"""They change no number, and read little of large tables."""
_PRODUCTS = (torch.matmul, Tensor.matmul, Tensor.__matmul__)


class Widened(TorchFunctionMode):
    """Compute in `dtype` what is written for narrower floats.

    Parameters and inputs are converted where they are used, so that there is no second copy of all weights.
    Constants, such as 1/√K, are rounded to fp32, as graphs have them: float64 then differs from a graph in
    float64 by what the graph computes, not by a constant's last digit, which large scores would multiply.

    Args:
        dtype: float32 or float64.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch with wide arguments, and widen what it returns."""
        if func is Tensor.float:
            return args[0].to(self._dtype)
        if getattr(func, "__name__", "") == "__get__":  # an attribute such as `shape`
            return func(*args, **(kwargs or {}))
        if func in _LOOKUPS:
            return self._widened(func(*args, **(kwargs or {})))
        wide = {name: self._widened(value) for name, value in (kwargs or {}).items()}
        return self._widened(func(*map(self._widened, args), **wide))

    def _widened(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(self._dtype) if self._is_narrow(value.dtype) else value
        if type(value) in {list, tuple}:
            return type(value)(map(self._widened, value))
        if isinstance(value, float):
            return _in_fp32(value)
        return self._dtype if self._is_narrow(value) else value

    def _is_narrow(self, value: Any) -> bool:
        return (
            isinstance(value, torch.dtype)
            and value.is_floating_point
            and value.itemsize < self._dtype.itemsize
        )


def _in_fp32(number: float) -> float:
    with np.errstate(over="ignore"):  # the lowest number of float64, which stands for −∞
        return float(np.float32(number))


class Reordered(TorchFunctionMode):
    """Add up the terms of every matrix product in a random order.

    The computation stays the same but for its rounding: another sample of what fp32 does.

    Args:
        seed: Of the orders.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = torch.Generator().manual_seed(seed)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch; a matrix product with its terms in another order."""
        if func is F.linear or func in _PRODUCTS:
            left, right, *others = args
            order = torch.randperm(left.shape[-1], generator=self._random)
            terms = -1 if func is F.linear or right.ndim == 1 else -2
            args = (left[..., order], right.index_select(terms, order), *others)
        return func(*args, **(kwargs or {}))
