"""Scores, rollout, strongest keys and pictures; rows of few queries; head masks: what crosses the wire."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.client.conftest import SIDE, TOP, D, FakeServer, H, L, parameters_of, reduced, vectors, weights
from tests.metadata import SCORES

from polyhead_client import Client, Encoding, HeadScores, InvalidRequest, NotFound, norm_weighted

RANDOM = np.random.default_rng(16)
LENGTHS = (5, 1, 3)
TEXTS = [" ".join(["cat"] * (length - 2)) for length in (6, 3, 5)]


@pytest.fixture(autouse=True)
def all_graphs(fake: FakeServer) -> None:
    fake.graphs = ["", "attention", "rows", "insight"]


def expected(*lengths: int, **inputs: Any) -> dict[str, NDArray[Any]]:
    """What the fake server computes for sequences of these lengths, padded to the longest."""
    visible = np.arange(max(lengths)) < np.array(lengths)[:, None]
    attention = np.stack([weights(layer, visible) for layer in range(L)], 1)
    return {"attention": attention, **reduced(attention, visible, inputs)}


ALL: dict[str, Any] = {"scores": True, "rollout": True, "top": TOP, "thumbnails": True, "value_norms": True}
OUTPUTS: dict[str, tuple[Callable[[Encoding], Any], tuple[int, ...]]] = {
    "head_scores": (lambda encoding: encoding.scores and encoding.scores.values, ()),
    "weighted_scores": (lambda encoding: encoding.scores.weighted.values, ()),  # type: ignore[union-attr]
    "rollout": (lambda encoding: encoding.rollout, (0, 1)),
    "mixed": (lambda encoding: encoding.mixed, (0, 1)),
    "top_keys": (lambda encoding: encoding.top and encoding.top.keys, (2,)),
    "top_weights": (lambda encoding: encoding.top and encoding.top.weights, (2,)),
    "thumbnails": (lambda encoding: encoding.thumbnails, ()),
}
"""How to get at an output, and its axes of tokens, counted without B."""


def assert_equal(got: Any, whole: NDArray[Any], axes: tuple[int, ...], form: str) -> None:
    """An output has the form of its inputs, and the numbers that the server computed."""
    if form == "array":
        np.testing.assert_array_equal(got, whole)
    elif form == "single":
        np.testing.assert_array_equal(got, whole[0])
    elif not axes:
        np.testing.assert_array_equal(got, whole)
    else:
        assert isinstance(got, list)
        for item, row, length in zip(got, whole, LENGTHS, strict=True):
            index = tuple(slice(length) if axis in axes else slice(None) for axis in range(row.ndim))
            np.testing.assert_array_equal(item, row[index])


@pytest.mark.parametrize("form", ["single", "list", "array"])
def test_all_of_a_graph_comes_in_the_form_of_the_inputs(client: Client, fake: FakeServer, form: str) -> None:
    inputs: Any = {
        "single": vectors(5, D),
        "list": [vectors(length, D) for length in LENGTHS],
        "array": vectors(3, 5, D),
    }[form]
    lengths = {"single": (5,), "list": LENGTHS, "array": (5, 5, 5)}[form]
    mix = RANDOM.random((L, H)).astype(np.float32)

    encoding: Any = client.encode(inputs, model="vectors", head_mix=mix, **ALL)

    assert encoding.model == "vectors.insight"
    assert fake.count("ModelInfer") == 1
    whole = expected(*lengths, head_mix=np.broadcast_to(mix, (len(lengths), L, H)))
    for name, (get, axes) in OUTPUTS.items():
        assert_equal(get(encoding), whole[name], axes, form)
    for layer in range(L):
        assert_equal(encoding.value_norms[layer], whole["value_norms"][:, layer], (1,), form)
    assert not encoding.attention
    assert encoding.heads == tuple(range(H))


def test_layers_heads_and_keys_are_cut_down_on_the_server(client: Client, fake: FakeServer) -> None:
    x = vectors(2, 5, D)

    encoding: Any = client.encode(
        x, model="vectors", scores=True, top=2, thumbnails=True, value_norms=True, layers=1, heads=[2, 0]
    )

    whole = expected(5, 5)
    assert (encoding.scores.layers, encoding.scores.heads) == ((1,), (2, 0))
    np.testing.assert_array_equal(encoding.scores.values, whole["head_scores"][:, 1:][:, :, [2, 0]])
    np.testing.assert_array_equal(encoding.top.keys, whole["top_keys"][:, 1:][:, :, [2, 0], :, :2])
    assert encoding.thumbnails.shape == (2, 1, 2, SIDE, SIDE)
    assert encoding.value_norms is not None
    assert list(encoding.value_norms) == [1]
    parameters = {output.name: parameters_of(output) for output in fake.last("ModelInfer").outputs}
    chosen = {"layers": "1", "heads": "2,0"}
    assert parameters["output"] == {}
    assert parameters["head_scores"] == parameters["weighted_scores"] == chosen
    assert parameters["top_keys"] == parameters["top_weights"] == {**chosen, "top": 2}


def test_scores_are_found_by_name(client: Client) -> None:
    scores: Any = client.encode(vectors(2, 5, D), model="vectors", scores=True).scores

    assert scores.names == SCORES
    np.testing.assert_array_equal(scores["entropy"], scores.values[..., 1])
    assert np.shares_memory(scores["entropy"], scores.values)
    np.testing.assert_array_equal(scores.weighted["previous"], -scores["previous"])
    with pytest.raises(
        InvalidRequest, match="score must be one of previous, entropy, confidence, was 'entropi'"
    ):
        scores["entropi"]
    with pytest.raises(TypeError):
        list(scores)


@pytest.mark.parametrize(("shape", "names"), [((5, D), []), ((2, 5, D), ["sequence"])])
def test_scores_go_into_a_frame(client: Client, shape: tuple[int, ...], names: list[str]) -> None:
    scores: Any = client.encode(vectors(*shape), model="vectors", scores=True, heads=[2, 0]).scores

    frame = scores.to_frame()
    assert list(frame.columns) == list(SCORES)
    assert frame.index.names == [*names, "layer", "head"]
    first = (0,) * len(names)
    assert frame.loc[(*first, 1, 0), "entropy"] == scores["entropy"][(*first, 1, 1)]
    assert len(frame) == scores["entropy"].size


def test_without_pandas_there_is_no_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    scores = HeadScores(values=np.zeros((1, 1, 1)), names=("entropy",), layers=(0,), heads=(0,))

    with pytest.raises(ImportError, match="to_frame needs pandas: pip install pandas"):
        scores.to_frame()


def test_weighted_attention_is_that_times_the_norms(client: Client, fake: FakeServer) -> None:
    for inputs in (vectors(5, D), [vectors(5, D), vectors(2, D)], vectors(2, 5, D)):
        for options in ({}, {"dtype": "FP16"}, {"heads": [2, 0], "queries": [1, 0]}):
            arguments: dict[str, Any] = {"model": "vectors", "attention": [1], **options}
            raw: Any = client.encode(inputs, value_norms=True, **(arguments | {"queries": None}))
            weighted: Any = client.encode(inputs, weighted=True, **arguments)

            assert weighted.model == "vectors.attention"
            assert fake.last("ModelInfer").outputs[-1].parameters["layers"].string_param == "1"
            many = isinstance(inputs, list)
            for map_, norms, got in zip(
                *(
                    each[1] if many else [each[1]]
                    for each in (raw.attention, raw.value_norms, weighted.attention)
                ),
                strict=True,
            ):
                chosen = map_[..., [1, 0], :] if "queries" in options else map_
                np.testing.assert_allclose(got, norm_weighted(chosen, norms), rtol=1e-6)


def test_few_queries_are_rows(client: Client, fake: FakeServer) -> None:
    """The result is that of the attention graph."""
    for inputs, name in (
        (vectors(5, D), "vectors"),
        ([vectors(5, D), vectors(2, D)], "vectors"),
        (vectors(2, 5, D), "vectors"),
        (TEXTS, "words"),
        (TEXTS[0], "words"),
    ):
        for options in ({"attention": True}, {"attention": -1, "heads": [2, 0]}, {"attention": [1, 0]}):
            arguments: dict[str, Any] = {**options, "queries": [2, 0]}
            rows: Any = client.encode(inputs, model=name, **arguments)
            assert rows.model == f"{name}.rows"
            request = fake.last("ModelInfer")
            assert "queries" not in request.outputs[-1].parameters
            whole: Any = client.encode(inputs, model=f"{name}.attention", **arguments)
            assert whole.model == f"{name}.attention"

            assert (rows.queries, rows.heads) == (whole.queries, whole.heads) != (None, None)
            assert rows.rows is rows.attention
            assert list(rows.attention) == list(whole.attention)
            for layer, some in whole.attention.items():
                assert type(rows.attention[layer]) is type(some)
                for one, other in zip(rows.attention[layer], some, strict=True):
                    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("more", [{"queries": range(17)}, {"queries": [0], "weighted": True}])
def test_other_queries_are_selected_from_all(client: Client, fake: FakeServer, more: Any) -> None:
    assert client.encode(vectors(20, D), model="vectors", attention=0, **more).model == "vectors.attention"


def test_a_graph_that_is_not_loaded_is_done_without(client: Client, fake: FakeServer) -> None:
    usual = fake.answers["ModelMetadata"]

    def answer(request: Any, context: Any) -> Any:
        fake.graphs = ["", "attention"] if request.name == "vectors.rows" else ["", "attention", "rows"]
        return usual(request, context)

    fake.answers["ModelMetadata"] = answer
    x = vectors(5, D)
    assert client.encode(x, model="vectors", attention=0, queries=[0]).model == "vectors.attention"
    assert client.encode(x, model="vectors", attention=0).rows is None


def test_what_is_not_loaded_is_not_found(client: Client, fake: FakeServer) -> None:
    fake.graphs.remove("insight")
    fake.properties = {"models": "vectors,vectors.insight"}

    with pytest.raises(NotFound, match=re.escape("no model 'vectors.insight'")):
        client.encode(vectors(5, D), model="vectors", scores=True)


@pytest.mark.parametrize("form", ["single", "list", "array", "text"])
def test_heads_are_silenced(client: Client, fake: FakeServer, form: str) -> None:
    fake.head_mask = True
    inputs: Any = {
        "single": vectors(5, D),
        "list": [vectors(length, D) for length in LENGTHS],
        "array": vectors(3, 5, D),
        "text": TEXTS,
    }[form]
    model = "words" if form == "text" else "vectors"
    size = 1 if form == "single" else 3
    mask = np.ones((L, H))
    mask[0, 1] = 0

    whole = client.encode(inputs, model=model)
    for given in (mask, mask.astype(bool), mask.tolist(), np.broadcast_to(mask, (size, L, H))):
        silenced = client.encode(inputs, model=model, head_mask=given)
        outputs = zip(
            *([each.output] if form == "single" else each.output for each in (silenced, whole)), strict=True
        )
        for one, other in outputs:
            np.testing.assert_allclose(one, other * 5 / 6, rtol=1e-6)
    assert fake.last("ModelInfer").inputs[-1].shape == [size, L, H]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top": 0}, "top must be an integer, 1 or more, or None, was 0"),
        ({"top": True}, "was True"),
        ({"top": TOP + 1}, "top must be between 1 and 4, was 5"),
        ({"scores": 1}, "scores must be True or False, was 1"),
        ({"layers": 0}, "layers goes with scores or thumbnails or top or value_norms, which was not asked"),
        ({"scores": True, "layers": 2}, "layers must be layers that vectors.insight has (0, 1; "),
        ({"weighted": True}, "weighted goes with attention or cross_attention, which was not asked for"),
        (
            {"attention": True, "scores": True},
            "no graph of vectors gives all that was asked for: make several calls "
            "(attention by vectors.attention, scores by vectors.insight)",
        ),
        ({"attention": 0, "queries": [5]}, "queries must be below T (5), was 5"),
        (
            {"head_mix": np.ones((H, L))},
            "head_mix must be numbers [2, 3] (layers, heads), or [1, 2, 3], was float64 [3, 2]",
        ),
        ({"head_mix": [[1, 2, 3], [4, 5, np.inf]]}, "head_mix[1, 2] must be finite, was inf"),
        ({"head_mix": [[1, 2, 3], [4, 5, 1e300]]}, "head_mix must fit FP32, a value was too large"),
        (
            {"head_mask": np.ones((L, H))},
            "head_mask cannot be given: vectors has no such input, which polyhea",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(
    client: Client, fake: FakeServer, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        client.encode(vectors(5, D), model="vectors", **options)
    assert not fake.count("ModelInfer")


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (np.full((L, H), 1.5), "head_mask[0, 0] must be between 0 and 1, was 1.5"),
        (np.full((2, L, H), -0.1), "head_mask[0, 0, 0] must be between 0 and 1, was -0.1"),
        (np.full((L, H), np.nan), "head_mask[0, 0] must be between 0 and 1, was nan"),
        ([[1], [1, 2]], "head_mask cannot be read as an array"),
    ],
)
def test_a_head_mask_must_fit(client: Client, fake: FakeServer, mask: Any, message: str) -> None:
    fake.head_mask = True
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        client.encode(vectors(2, 5, D), model="vectors", head_mask=mask)
    assert not fake.count("ModelInfer")


@pytest.mark.parametrize("wish", ["scores", "rollout", "top", "thumbnails", "head_mix"])
def test_without_the_graph_the_export_is_named(client: Client, fake: FakeServer, wish: str) -> None:
    fake.graphs = ["", "attention"]
    given: dict[str, Any] = {"top": 1, "head_mix": np.ones((L, H))}
    with pytest.raises(
        InvalidRequest,
        match=re.escape(
            f"{wish} is not available: words has no graph that gives it (polyhead export --graphs insight"
        ),
    ):
        client.encode("a cat", model="words", **{wish: given.get(wish, True)})


def test_layers_that_a_family_has_are_named(client: Client, fake: FakeServer) -> None:
    fake.properties = {"tensors": '{"attention.1": {"role": "attention", "layer": 1}}'}
    fake.graphs = ["", "attention"]
    with pytest.raises(
        InvalidRequest,
        match=re.escape(
            "attention must be layers that vectors.attention has (1; in attention, -1 is the last), was 0"
        ),
    ):
        client.encode(vectors(5, D), model="vectors", attention=[1, 0])
    encoding = client.encode(vectors(5, D), model="vectors", attention=True)
    assert list(encoding.attention) == [1]
    assert list(client.encode(vectors(5, D), model="vectors", attention=-1).attention) == [1]


@pytest.mark.parametrize(
    "described", ["[", "[1]", '{"output": 3}', '{"output": {"range": [1]}}', '{"x": {"layers": 3}}']
)
def test_metadata_that_makes_no_sense_is_the_servers_fault(
    client: Client, fake: FakeServer, described: str
) -> None:
    fake.properties = {"tensors": described}
    with pytest.raises(Exception, match="malformed reply: what vectors says of its tensors"):
        client.encode(vectors(5, D), model="vectors")
