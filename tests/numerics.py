"""How far apart two fp32 computations of the same numbers may be, on any processor."""

from typing import Any

import numpy as np

EPS = 2.0**-23

SMALL = 64
"""The roundings of an encoder of up to 3 layers and 64 columns."""

TRAINED = 256
"""Those of one of 6 to 12 layers and 384 to 768 columns."""


def close(
    actual: Any, expected: Any, *, roundings: float = SMALL, scale: float | None = None, extra: float = 0
) -> None:
    """Assert that `actual` is `expected` but for rounding: within `roundings` · 2⁻²³ · `scale` everywhere.

    In which order the products of a sum are added, and whether each is rounded before, depends on the
    processor's widest registers, on the number of threads and on the sizes; PyTorch and onnxruntime differ
    there, too. So no two computations need to be equal bit by bit. But a rounding is at most 2⁻²⁴ of what is
    being added up, and n of them in a row come to some √n · 2⁻²⁴ of it, as they go up and down. In the small
    encoders of the tests n is below 1,000 (a layer adds D, K, T, D, D and F terms after each other), which
    makes 16 · 2⁻²³; 23 is the most that was measured, without SIMD, with AVX2 and with AVX-512. 64 leaves the
    rest to what amplifies: a norm that divides by a small deviation, exp of a large score. Trained encoders
    add some 15,000 terms in a row: √15 times as much.

    What is added up is as large as the largest number of `expected`, unless `scale` says it: next to it, a
    number near zero is what is left of large terms. Give 1 for attention weights, which are the scores' error
    times a share of 1, and give `extra` for what fewer bits may take off.

    64 · 2⁻²³ is 8e-6. Mistakes in the encoders of `tests/model/test_pruning.py` are far from it: another head
    makes 4,000,000 roundings, a mask that ends a token early 1,000,000, a scale of √(K + 1) 300,000, a norm
    without its epsilon of 1e-3 4,000. An epsilon of 1e-5 makes 40: test epsilons with 1e-3.
    """
    actual, expected = (np.asarray(_plain(each), np.float64) for each in (actual, expected))
    if scale is None:
        scale = float(np.abs(expected[np.isfinite(expected)]).max(initial=0))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=roundings * EPS * scale + extra, strict=True)


def _plain(values: Any) -> Any:
    """The numbers of a tensor that may need gradients."""
    return values.detach().cpu().numpy() if hasattr(values, "detach") else values
