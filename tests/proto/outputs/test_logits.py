"""Logits become scores as SciPy computes them, without overflow."""

import numpy as np
import pytest
from scipy.special import expit, softmax

from polyhead_proto.outputs.logits import best_first, scores_of

EXTREME = 200.0
SEVERAL = np.array([[EXTREME, 0.0, -EXTREME], [0.5, 1.0, -2.0], [-EXTREME, -EXTREME, -EXTREME]], np.float32)


@pytest.mark.parametrize("activation", [None, "sigmoid"])
def test_one_logit_gives_its_sigmoid(activation: str | None) -> None:
    logits = np.array([[-EXTREME], [-1.5], [0.0], [3.0], [EXTREME]], np.float32)

    found = scores_of(logits, activation)

    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expit(logits.astype(np.float64)), rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("activation", [None, "softmax"])
def test_several_logits_give_their_softmax(activation: str | None) -> None:
    found = scores_of(SEVERAL, activation)

    assert found.dtype == np.float32
    np.testing.assert_allclose(found, softmax(SEVERAL.astype(np.float64), axis=1), rtol=1e-5, atol=1e-30)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-6)


def test_a_checkpoint_may_say_otherwise() -> None:
    np.testing.assert_array_equal(scores_of(SEVERAL, "identity"), SEVERAL)
    np.testing.assert_allclose(scores_of(SEVERAL, "sigmoid"), expit(SEVERAL), rtol=1e-6, atol=1e-30)
    with pytest.raises(ValueError, match="must be one of softmax, sigmoid, identity, was 'tanh'"):
        scores_of(SEVERAL, "tanh")


def test_the_order_is_that_of_logits_whose_scores_are_the_same() -> None:
    logits = np.array([17.5, 30.0, 18.0, 18.0], np.float32)
    assert set(scores_of(logits[:, None])[:, 0]) == {1.0}

    assert best_first(logits).tolist() == [1, 2, 3, 0]
