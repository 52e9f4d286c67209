"""Logits become probabilities as SciPy computes them, without overflow."""

import numpy as np
from scipy.special import expit, softmax

from polyhead_proto.outputs.probabilities import probabilities

EXTREME = 200.0


def test_one_logit_gives_its_sigmoid() -> None:
    logits = np.array([[-EXTREME], [-1.5], [0.0], [3.0], [EXTREME]], np.float32)

    found = probabilities(logits)

    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expit(logits.astype(np.float64)), rtol=1e-5, atol=1e-30)


def test_several_logits_give_their_softmax() -> None:
    logits = np.array(
        [[EXTREME, 0.0, -EXTREME], [0.5, 1.0, -2.0], [-EXTREME, -EXTREME, -EXTREME]], np.float32
    )

    found = probabilities(logits)

    assert found.dtype == np.float32
    np.testing.assert_allclose(found, softmax(logits.astype(np.float64), axis=1), rtol=1e-5, atol=1e-30)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-6)
