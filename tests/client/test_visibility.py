"""What hides keys from queries, as metadata and the request say."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.client.conftest import Connect, D, FakeServer
from tests.client.test_reply import BATCH, REQUESTED, reply

from polyhead_client.batch import numeric
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


def test_a_mask_of_the_request_hides_too() -> None:
    drawn = np.random.default_rng(0)
    mask = drawn.random((2, 4, 4)) < 0.5
    seen = mask & np.tri(4, dtype=bool)
    causal, queries = Visibility(causal=True), [3, -3]

    batch = causal.of_layers({2: np.zeros((2, 3, 4, 4))}, None, mask)[2]
    np.testing.assert_array_equal(batch, np.broadcast_to(seen[:, None], batch.shape))
    rows = causal.of_layers({2: np.zeros((2, 3, 2, 4))}, queries, mask)[2]
    np.testing.assert_array_equal(rows, np.broadcast_to(seen[:, None, [3, 1]], rows.shape))
    one = causal.of_layers({2: np.zeros((3, 4, 4))}, None, mask[:1])[2]
    np.testing.assert_array_equal(one, np.broadcast_to(seen[0], one.shape))
    ragged: Any = {2: [np.zeros((1, 4, 4)), np.zeros((1, 2, 2))]}
    four, two = causal.of_layers(ragged, None, [mask[0], mask[1, :2, :2]])[2]
    np.testing.assert_array_equal(four[0], seen[0])
    np.testing.assert_array_equal(two[0], seen[1, :2, :2])


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
@pytest.mark.parametrize("masked", [False, True])
def test_a_reply_knows_what_its_family_and_its_request_hide(
    visibility: Visibility | None, masked: bool
) -> None:
    outputs = tuple(
        replace(each, layers=(0,)) if each.name == "attention.0" else each for each in REQUESTED.outputs
    )
    requested = replace(REQUESTED, outputs=outputs, visibility=visibility)
    data = reply(["output", "pooled", "attention.0"]).SerializeToString()

    mask = np.array([[[True, False, True]] * 3])
    batch = BATCH.with_fields(numeric("mask", "BOOL", mask)) if masked else BATCH

    encoding = read_message(data, batch, requested).encoding(requested, batch, 1)

    if visibility is None and not masked:
        assert encoding.visible is None
    else:
        expected = (np.tri(3, dtype=bool) if visibility else True) & (mask[0] if masked else True)
        np.testing.assert_array_equal((encoding.visible or {})[0], np.broadcast_to(expected, (1, 2, 3, 3)))


def test_rows_of_a_causal_family_know_what_it_hides(connect: Connect, fake: FakeServer) -> None:
    """They come from a graph of their own, under another role than the weights of all queries."""
    fake.graphs = ["", "attention", "rows"]
    fake.properties = {"causal": "true"}

    encoding = connect(fake.target).encode("a b c", model="words", attention=[0], queries=[1])

    assert encoding.model == "words.rows"
    tokens = encoding.attention[0].shape[-1]
    np.testing.assert_array_equal((encoding.visible or {})[0][0], [np.arange(tokens) <= 1])


def test_a_batch_of_several_lengths_knows_its_masks(connect: Connect, fake: FakeServer) -> None:
    masks = [np.tri(length, dtype=bool) for length in (3, 5)]
    inputs = [np.zeros((length, D), np.float32) for length in (3, 5)]

    encoding = connect(fake.target).encode(inputs, model="vectors", mask=masks, attention=[0])

    for each, mask in zip((encoding.visible or {})[0], masks, strict=True):
        np.testing.assert_array_equal(each, np.broadcast_to(mask, each.shape))
    np.testing.assert_array_equal((encoding.sequence(1).visible or {})[0][0], masks[1])
