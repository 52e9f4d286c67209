"""Whether two results are the same, whoever computed them in how many requests."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np


def assert_same(one: Any, other: Any, *, atol: float = 0.0, where: str = "") -> None:
    """Two encodings, or parts of them, of the same form, with the same numbers; their timings may differ."""
    if isinstance(one, Mapping):
        assert list(one) == list(other), where
        for key, value in one.items():
            assert_same(value, other[key], atol=atol, where=f"{where}[{key}]")
        return
    assert type(one) is type(other), where
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype, where
        np.testing.assert_allclose(one, other, rtol=0, atol=atol, err_msg=where)
    elif isinstance(one, list):
        assert len(one) == len(other), where
        for index, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            assert_same(mine, theirs, atol=atol, where=f"{where}[{index}]")
    elif dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            if field.name != "timings":
                mine, theirs = getattr(one, field.name), getattr(other, field.name)
                assert_same(mine, theirs, atol=atol, where=f"{where}.{field.name}")
    else:
        assert one == other, where
