"""What the dataclasses of a configuration check of a field, and read from JSON, by its type alone."""

import inspect
import reprlib
from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

_INTEGERS_END = 2**63
"""No tensor has a larger axis, nor a graph larger integers; below it, costs remain in the range of floats."""

_SMALLEST, _LARGEST = 2.0**-126, 2.0**128 - 2.0**104
"""The normal numbers of fp32."""

_repr = reprlib.Repr()
_repr.maxlist = _repr.maxtuple = _repr.maxdict = 8
_repr.maxstring = _repr.maxother = 100


def _natural(name: str, value: int) -> int:
    if value < 0:
        raise ValueError(f"{name} must be at least 0, was {value}")
    return value


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, was {value}")
    return value


def _epsilon(name: str, value: float) -> float:
    if not _SMALLEST <= value < 1.0:
        raise ValueError(
            f"{name} must be at least {_SMALLEST:.2g}, the smallest that fp32 divides by, and below 1, "
            f"was {value}"
        )
    return value


def _ascending(_name: str, value: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(set(value)))


Natural = Annotated[int, _natural]
"""An integer from 0 on."""

Positive = Annotated[int, _positive]
"""An integer from 1 on."""

Epsilon = Annotated[float, _epsilon]
"""What is added to a variance."""

Ids = Annotated[tuple[int, ...], _ascending]
"""Token ids, which become ascending, each once."""


def check_fields(config: Any) -> None:
    """Check each field of a frozen dataclass by its type, and turn what JSON has of it into that type.

    A list becomes a tuple, and an object a dataclass.

    Raises:
        ValueError: A field is out of range.
        TypeError: A field has the wrong type.
    """
    for name, kind in get_type_hints(type(config), include_extras=True).items():
        object.__setattr__(config, name, _read(name, kind, getattr(config, name)))


def _read(name: str, kind: Any, value: Any) -> Any:
    """Return a value as one of a type, such as `Positive | None`, a `Literal` or `tuple[Dense, ...]`."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return None if value is None else _read(name, parts[0], value)
    if origin is Annotated:
        return parts[1](name, _read(name, parts[0], value))
    if origin is Literal:
        if value not in parts:
            raise ValueError(f"{name} must be one of {', '.join(parts)}, was {shown(value)}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise TypeError(f"{name} must be a list, was {shown(value)}")
        return tuple(_read(f"{name}[{number}]", parts[0], each) for number, each in enumerate(value))
    if kind in _SCALARS:
        return _read_scalar(name, kind, value)
    return value if isinstance(value, kind) else _read_object(name, kind, value)


_SCALARS: dict[Any, tuple[Any, str]] = {
    bool: (bool, "true or false"),
    int: (int, "an integer"),
    float: (int | float, "a number"),
    str: (str, "a string"),
}
"""What values are of a type of JSON, and what it is called."""


def _read_scalar(name: str, kind: type, value: Any) -> Any:
    its, called = _SCALARS[kind]
    if not isinstance(value, its) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{name} must be {called}, was {shown(value)}")
    if kind is int and not -_INTEGERS_END <= value < _INTEGERS_END:
        raise ValueError(f"{name} must fit into 64 bits, was {shown(value)}")
    if kind is float and not abs(value) <= _LARGEST:
        raise ValueError(f"{name} must be finite in fp32, was {shown(value)}")
    return value


def _read_object(name: str, kind: type, value: object) -> object:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be an object, was {shown(value)}")
    known = inspect.signature(kind).parameters
    for field in value:
        if field not in known:
            raise TypeError(f"{name}: there is no field {shown(field)}, only {', '.join(known)}")
    if missing := [field for field, its in known.items() if its.default is its.empty and field not in value]:
        raise TypeError(f"{name}: {', '.join(missing)} must be given")
    try:
        return kind(**value)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{name}: {error}") from error


def shown(value: object) -> str:
    """Show a value, however large it is; Python does not write integers of thousands of digits."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}" if value.bit_length() <= 64 else f"an integer of {value.bit_length()} bits"
    return _repr.repr(value)
