"""Makes a client's method look like the operation it drives."""

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def as_method(operation: Callable[..., Any]) -> Callable[[F], F]:
    """Gives a function the name, documentation and arguments of `operation`, and the type it returns.

    An operation is a generator; what interests a caller is what it returns, the last of its three types.
    """
    signature = inspect.signature(operation)
    returned = typing.get_args(signature.return_annotation)[2]

    def decorate(function: F) -> F:
        functools.update_wrapper(function, operation, assigned=("__name__", "__doc__"))
        del function.__wrapped__  # type: ignore[attr-defined]
        function.__signature__ = signature.replace(return_annotation=returned)  # type: ignore[attr-defined]
        return function

    return decorate
