"""What hides keys from queries, as metadata says."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.client.conftest import Connect, FakeServer
from tests.client.test_reply import BATCH, REQUESTED, reply

from polyhead_client.batch import InputForm
from polyhead_client.models import ModelInfo
from polyhead_client.reply import read_message
from polyhead_client.visibility import Visibility
from polyhead_model import masks


def info(**properties: str) -> ModelInfo:
    return ModelInfo(
        name="a",
        versions=("1",),
        platform="",
        inputs={},
        outputs={},
        properties={"layers": "4", **properties},
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("every", "first"), [(None, 0), (3, 0), (3, 2)])
@pytest.mark.parametrize("queries", [None, (4, 0, -1)])
def test_layers_are_masked_as_the_encoder_masks_them(
    causal: bool, every: int | None, first: int, queries: Any
) -> None:
    visibility = Visibility(causal=causal, local_window=3, global_every=every, first_global=first)
    tokens, rows = 6, 6 if queries is None else 3
    weights = {layer: np.zeros((2, rows, tokens)) for layer in range(4)}

    found = visibility.of_layers(weights, queries)

    window, ahead = masks.window(tokens, 3)[0], masks.causal(tokens)[0]
    for layer, visible in found.items():
        expected = torch.ones(tokens, tokens, dtype=torch.bool)
        if every is None or layer % every != first:
            expected &= window
        if causal:
            expected &= ahead
        chosen = expected.numpy() if queries is None else expected.numpy()[list(queries)]
        np.testing.assert_array_equal(visible, np.broadcast_to(chosen, visible.shape))


def test_a_list_has_masks_of_each_length() -> None:
    weights: Any = {0: [np.zeros((1, 2, 2)), np.zeros((1, 3, 3))]}

    two, three = Visibility(causal=True).of_layers(weights, None)[0]

    np.testing.assert_array_equal(two[0], np.tri(2))
    np.testing.assert_array_equal(three[0], np.tri(3))


def test_metadata_says_what_is_hidden() -> None:
    assert info(causal="false", local_window="").visibility is None
    assert info(causal="true").visibility == Visibility(causal=True)
    assert info(causal="false", local_window="128", global_every="3").visibility == Visibility(
        local_window=128, global_every=3
    )
    assert info(local_window="128", global_every="3", first_global="2").visibility == Visibility(
        local_window=128, global_every=3, first_global=2
    )


@pytest.mark.parametrize("visibility", [None, Visibility(causal=True)])
def test_a_reply_knows_what_its_family_hides(visibility: Visibility | None) -> None:
    outputs = tuple(
        replace(each, layers=(0,)) if each.name == "attention.0" else each for each in REQUESTED.outputs
    )
    requested = replace(REQUESTED, outputs=outputs, visibility=visibility)
    data = reply(["output", "pooled", "attention.0"]).SerializeToString()

    encoding = read_message(data, BATCH, requested).encoding(requested, InputForm.ARRAY, 1)

    if visibility is None:
        assert encoding.visible is None
    else:
        np.testing.assert_array_equal((encoding.visible or {})[0], np.broadcast_to(np.tri(3), (1, 2, 3, 3)))


def test_rows_of_a_causal_family_know_what_it_hides(connect: Connect, fake: FakeServer) -> None:
    """They come from a graph of their own, under another role than the weights of all queries."""
    fake.graphs = ["", "attention", "rows"]
    fake.properties = {"causal": "true"}

    encoding = connect(fake.target).encode("a b c", model="words", attention=[0], queries=[1])

    assert encoding.model == "words.rows"
    tokens = encoding.attention[0].shape[-1]
    np.testing.assert_array_equal((encoding.visible or {})[0][0], [np.arange(tokens) <= 1])
