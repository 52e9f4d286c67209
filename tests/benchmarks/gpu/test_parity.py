"""How far two arrays are apart."""

import numpy as np
import pytest
from numpy.typing import NDArray

from gpu.parity import difference


def floats(values: object) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def test_differences_are_absolute_below_one_and_relative_above() -> None:
    assert difference(floats([0.5, 100.0]), floats([0.4, 101.0])) == pytest.approx(0.1)
    assert difference(floats([90.0]), floats([100.0])) == pytest.approx(0.1)


def test_what_is_no_number_is_no_agreement() -> None:
    assert np.isnan(difference(floats([1.0, np.nan]), floats([1.0, 2.0])))
    with pytest.raises(ValueError, match=r"shape \(1,\) must be \(2,\)"):
        difference(floats([1.0]), floats([1.0, 2.0]))
