"""Results as tables of pandas and labelled arrays of xarray."""

import numpy as np
import pytest
from tests.client.conftest import ALL_INSIGHT, TEXTS

from polyhead_client import Client, Encoding

pytestmark = pytest.mark.usefixtures("all_graphs")


def test_weights_go_into_a_frame_with_their_tokens(client: Client, sentence: Encoding) -> None:
    frame = sentence.to_frame()

    assert frame.index.names == ["layer", "head", "query", "key"]
    assert len(frame) == 3 * 5 * 5
    row = frame.loc[1, 2, 3, 4]
    assert (row["query_token"], row["key_token"]) == ("sat", "[SEP]")
    assert row["weight"] == sentence.attention[1][2, 3, 4]
    some = client.encode(TEXTS[0], model="words", attention=[0], heads=[2, 1], queries=[3]).to_frame()
    assert set(some["query_token"]) == {"sat"}
    assert some.index.get_level_values("head").unique().tolist() == [2, 1]


def test_weights_and_scores_go_into_labelled_arrays(client: Client, sentence: Encoding) -> None:
    dataset = sentence.to_xarray()

    by_token = dataset.attention.sel(layer=1, head=2).swap_dims(query="query_token", key="key_token")
    assert by_token.sel(query_token="sat", key_token="the") == sentence.attention[1][2, 3, 1]
    assert dataset.attrs == {"model": "words.attention", "version": "1"}
    insight = client.encode(TEXTS[0], model="words", **ALL_INSIGHT)
    dataset = insight.to_xarray()
    assert set(dataset) == {"scores", "weighted_scores", "rollout", "mixed"}
    assert dataset.scores.sel(layer=1, head=0, score="entropy") == insight.scores["entropy"][1, 0]  # type: ignore[index]
    assert dataset.rollout.dims == ("query", "key")
    assert client.encode(TEXTS, model="words", scores=True).scores.to_xarray().dims == (  # type: ignore[union-attr]
        "sequence",
        "layer",
        "head",
        "score",
    )


def test_a_batch_goes_into_a_frame_with_the_sequence_as_first_level(client: Client) -> None:
    batch = client.encode(TEXTS, model="words", attention=[0, 1], heads=[2, 0])

    frame = batch.to_frame()

    assert frame.index.names == ["sequence", "layer", "head", "query", "key"]
    assert len(frame) == 2 * 2 * (5 * 5 + 3 * 3)
    for at in range(2):
        assert frame.loc[at].equals(batch.sequence(at).to_frame())


@pytest.mark.parametrize("queries", [None, [2, 0]])
def test_a_batch_goes_into_labelled_arrays_without_padding(client: Client, queries: list[int] | None) -> None:
    batch = client.encode(TEXTS, model="words", attention=[0, 1], queries=queries)

    dataset = batch.to_xarray().assign_coords(text=("sequence", TEXTS))

    assert dataset.lengths.values.tolist() == [5, 3]
    assert dataset.sizes["edge"] == (5 * 5 + 3 * 3 if queries is None else 2 * 5 + 2 * 3)
    assert np.isfinite(dataset.attention.values).all()
    for at in range(2):
        alone = batch.sequence(at).to_xarray()
        of_text = dataset.isel(edge=np.flatnonzero(dataset.edge_sequence == at))
        table = of_text.attention.sel(layer=1, head=2).to_dataframe().set_index(["query", "key"])
        whole = alone.attention.sel(layer=1, head=2).to_dataframe()
        assert table["attention"].to_dict() == whole["attention"].to_dict()
        assert table["key_token"].to_dict() == whole["key_token"].to_dict()
        assert table["query_token"].to_dict() == whole["query_token"].to_dict()
    padded = dataset.attention.drop_vars(["query_token", "key_token"])
    padded = padded.set_index(edge=["edge_sequence", "query", "key"]).unstack("edge")
    assert padded.sizes["edge_sequence"] == 2
    assert np.isnan(padded.sel(edge_sequence=1, key=4)).all()


def test_maps_and_scores_of_a_batch_stand_beside_each_other(client: Client) -> None:
    batch = client.encode(TEXTS, model="words", **ALL_INSIGHT)

    dataset = batch.to_xarray()

    assert dataset.rollout.dims == dataset.mixed.dims == ("edge",)
    np.testing.assert_array_equal(dataset.rollout[dataset.edge_sequence == 1], batch.rollout[1].ravel())  # type: ignore[index]
    assert dataset.weighted_scores.dims == ("sequence", "layer", "head", "score")
    assert dataset.weighted_scores.sizes["sequence"] == dataset.lengths.size == 2
