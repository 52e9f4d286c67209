"""`encode` against a made-up server."""

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.client.conftest import Connect, FakeServer, vectors

from polyhead_client import Client, InvalidRequest, TooLarge

D, H, L = 4, 3, 2


def test_an_array_comes_back_as_arrays(client: Client) -> None:
    x = vectors(2, 5, D)

    encoding: Any = client.encode(x, model="vectors", attention=True)

    np.testing.assert_array_equal(encoding.output, 2 * x)
    assert encoding.pooled is None
    assert encoding.tokens is None
    assert list(encoding.attention) == [0, 1]
    assert encoding.attention[1].shape == (2, H, 5, 5)
    assert encoding.heads == (0, 1, 2)
    assert encoding.queries is None
    np.testing.assert_array_equal(encoding.lengths, [5, 5])
    assert (encoding.model, encoding.version) == ("vectors.attention", "1")


def test_one_sequence_comes_back_without_the_batch(client: Client) -> None:
    x = vectors(5, D)

    encoding: Any = client.encode(x, model="vectors", attention=[1])

    np.testing.assert_array_equal(encoding.output, 2 * x)
    assert encoding.attention[1].shape == (H, 5, 5)
    assert encoding.lengths == 5


def test_a_list_comes_back_as_lists_of_each_length(client: Client) -> None:
    sequences = [vectors(length, D) for length in (3, 7, 0, 1)]

    encoding: Any = client.encode(sequences, model="vectors", attention=[0])

    assert isinstance(encoding.output, list)
    for sequence, output in zip(sequences, encoding.output, strict=True):
        np.testing.assert_array_equal(output, 2 * sequence)
    assert [weights.shape for weights in encoding.attention[0]] == [(H, n, n) for n in (3, 7, 0, 1)]
    np.testing.assert_array_equal(encoding.lengths, [3, 7, 0, 1])


def test_texts_come_back_with_their_tokens(client: Client, fake: FakeServer) -> None:
    encoding: Any = client.encode(["the cat sat", "naïve 猫"], model="words", attention=[1])

    assert encoding.tokens == [["[CLS]", "the", "cat", "sat", "[SEP]"], ["[CLS]", "naïve", "猫", "[SEP]"]]
    assert [output.shape for output in encoding.output] == [(5, D), (4, D)]
    assert encoding.pooled.shape == (2, D)
    assert [weights.shape for weights in encoding.attention[1]] == [(H, 5, 5), (H, 4, 4)]
    assert fake.last("ModelInfer").inputs[0].datatype == "BYTES"


def test_one_text_comes_back_without_the_batch(client: Client) -> None:
    encoding: Any = client.encode("the cat", model="words", attention=-1)

    assert encoding.tokens == ["[CLS]", "the", "cat", "[SEP]"]
    assert encoding.output.shape == (4, D)
    assert encoding.pooled.shape == (D,)
    assert encoding.attention[L - 1].shape == (H, 4, 4)
    assert encoding.lengths == 4


@pytest.mark.parametrize(
    ("ids", "shape"),
    [
        (np.array([[1, 2, 3], [4, 5, 6]], np.int32), (2, 3, D)),
        (np.array([1, 2, 3], np.uint8), (3, D)),
        ([1, 2, 3], (3, D)),
    ],
)
def test_token_ids_are_taken(client: Client, fake: FakeServer, ids: Any, shape: tuple[int, ...]) -> None:
    encoding = client.encode(ids, model="words")

    assert encoding.output.shape == shape
    assert fake.last("ModelInfer").inputs[0].datatype == "INT64"


def test_lists_of_token_ids_are_padded(client: Client) -> None:
    encoding = client.encode([[1, 2, 3], [], [4]], model="words", token_type_ids=[[0, 0, 1], [], [0]])

    np.testing.assert_array_equal(encoding.output[0][:, 0], [2, 4, 6])
    assert [len(output) for output in encoding.output] == [3, 0, 1]


def test_only_what_is_needed_is_requested(client: Client, fake: FakeServer) -> None:
    def requested(*args: Any, **kwargs: Any) -> tuple[str, list[str]]:
        client.encode(*args, **kwargs)
        request = fake.last("ModelInfer")
        return request.model_name, [output.name for output in request.outputs]

    x = np.zeros((1, 2, D), np.float32)
    assert requested(x, model="vectors") == ("vectors", ["output"])
    assert requested(x, model="vectors", output=False, attention=[1]) == (
        "vectors.attention",
        ["attention.1"],
    )
    assert requested("a", model="words") == ("words", ["output", "pooled", "tokens", "lengths"])
    assert requested("a", model="words", output=False, tokens=False) == ("words", ["pooled", "lengths"])
    assert requested([[1, 2]], model="words", pooled=False) == ("words", ["output"])
    assert requested("a", model="words.attention", attention=0)[0] == "words.attention"
    assert requested("a", model="words", attention=False)[0] == "words"


def test_without_vectors_of_tokens_it_is_the_graph_that_computes_none(
    client: Client, fake: FakeServer
) -> None:
    fake.graphs = ["", "attention", "pooled"]
    models: dict[str, Any] = {
        "words.pooled": {"output": False},
        "words": {},
        "words.attention": {"output": False, "attention": True},
    }
    for model, options in models.items():
        assert client.encode("a cat", model="words", **options).model == model


def test_right_padding_is_given_by_lengths_or_by_an_attention_mask(client: Client) -> None:
    x = vectors(2, 4, D)
    mask = np.array([[1, 1, 1, 0], [1, 1, 1, 1]])

    by_mask = client.encode(x, model="vectors", attention_mask=mask)
    by_lengths = client.encode(x, model="vectors", lengths=[3, 4])

    np.testing.assert_array_equal(by_mask.output, by_lengths.output)
    assert not by_mask.output[0, 3].any()
    np.testing.assert_array_equal(by_mask.lengths, [3, 4])


def test_masks_reach_the_server_for_every_sequence(client: Client, fake: FakeServer) -> None:
    causal = np.tril(np.ones((3, 3), np.bool_))

    client.encode(np.zeros((2, 3, D), np.float32), model="vectors", mask=causal)

    request = fake.last("ModelInfer")
    at = [tensor.name for tensor in request.inputs].index("mask")
    assert list(request.inputs[at].shape) == [2, 3, 3]
    assert request.raw_input_contents[at] == np.stack([causal, causal]).tobytes()


def test_half_precision_vectors_cross_the_wire_as_they_are(client: Client, fake: FakeServer) -> None:
    client.encode(np.ones((1, 2, D), np.float16), model="vectors")
    assert fake.last("ModelInfer").inputs[0].datatype == "FP16"

    client.encode(np.ones((1, 2, D), np.float64), model="vectors")
    assert fake.last("ModelInfer").inputs[0].datatype == "FP32"


def test_truncation_is_the_servers_and_must_be_asked_for(client: Client, fake: FakeServer) -> None:
    client.encode("a", model="words")
    assert not fake.last("ModelInfer").parameters

    client.encode("a", model="words", truncate=True)
    assert fake.last("ModelInfer").parameters["truncate"].bool_param


def test_timings_say_what_the_server_said(client: Client) -> None:
    timings = client.encode("a", model="words").timings

    assert (timings.parse_ns, timings.queue_ns, timings.compute_ns, timings.serialise_ns) == (
        1000,
        2000,
        3000,
        4000,
    )
    assert timings.tokenise_ns is None
    assert timings.total_ns > 0


@pytest.fixture
def torch_warns() -> Iterator[None]:
    """Torch gives a warning each time, not once a process."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


@pytest.mark.parametrize("dtype", [None, "FP16", "UINT8"])
@pytest.mark.parametrize("inputs", ["the cat", ["the cat", "sat"], [[1, 2], [3]], np.array([[1, 2], [3, 4]])])
def test_results_go_into_tensors(client: Client, torch_warns: None, inputs: Any, dtype: Any) -> None:
    """Warnings are errors here; torch has one for arrays that are read-only, where it shares their memory."""
    encoding: Any = client.encode(inputs, model="words", attention=True, dtype=dtype)

    arrays = [encoding.pooled, encoding.output, *encoding.attention.values()]
    if isinstance(encoding.lengths, np.ndarray):
        arrays.append(encoding.lengths)
    for array in arrays:
        for item in array if isinstance(array, list) else [array]:
            assert item.flags.aligned
            tensor = torch.tensor(item)
            np.testing.assert_array_equal(tensor.numpy(), item)
            tensor += 1
            assert (tensor.numpy() != item).all()


def test_results_can_be_pickled(client: Client) -> None:
    encoding, info = client.encode("a b", model="words", attention=True), client.model("words")
    statistics = client.statistics()

    for copied in (pickle.loads(pickle.dumps(encoding)), copy.deepcopy(encoding)):
        np.testing.assert_equal(dict(copied.attention), dict(encoding.attention))
    assert pickle.loads(pickle.dumps(info)).inputs == info.inputs
    assert pickle.loads(pickle.dumps(statistics)) == statistics


def test_a_request_over_the_servers_limit_is_not_sent(client: Client, fake: FakeServer) -> None:
    x = np.zeros((1, (64 << 20) // (4 * D), D), np.float32)

    with pytest.raises(TooLarge, match=r"the request has \d+ bytes, vectors takes at most 67108864"):
        client.encode(x, model="vectors")
    assert fake.count("ModelInfer") == 0


def test_metadata_is_asked_for_once_for_each_model(client: Client, fake: FakeServer) -> None:
    for _ in range(3):
        client.encode("a", model="words")
        client.encode("a", model="words", attention=[0])

    assert fake.count("ModelMetadata") == 2
    assert fake.count("RepositoryIndex") == 0


def test_the_only_family_needs_no_name(client: Client, fake: FakeServer) -> None:
    fake.families = ["words"]

    assert client.encode("a").model == "words"
    assert client.encode("a", attention=True).model == "words.attention"
    assert client.model().family == "words"
    assert fake.count("RepositoryIndex") == 1


def test_the_only_family_that_takes_such_inputs_needs_no_name(client: Client, fake: FakeServer) -> None:
    assert client.encode("a").model == "words"
    assert client.encode("b", attention=[0]).model == "words.attention"
    assert client.encode(np.zeros((2, 4), np.float32)).model == "vectors"
    assert client.model(takes="text").name == "words"
    assert fake.count("RepositoryIndex") == 2


@pytest.mark.parametrize(
    ("valid", "invalid"),
    [
        ({"output": True, "attention": True}, {"output": 1, "attention": True}),
        ({"top": 1}, {"top": True}),
        ({"attention": (1,)}, {"attention": (True,)}),
        ({"attention": True, "queries": (1,)}, {"attention": True, "queries": (1.0,)}),
        ({"version": 1}, {"version": True}),
        ({"version": 1}, {"version": 1.0}),
    ],
    ids=str,
)
def test_what_equals_a_valid_argument_is_checked_all_the_same(
    client: Client, fake: FakeServer, valid: dict[str, Any], invalid: dict[str, Any]
) -> None:
    """What was valid is remembered."""
    fake.graphs = ["", "attention", "rows", "insight"]
    for _ in range(2):
        client.encode(np.zeros((3, 4), np.float32), model="vectors", **valid)
    with pytest.raises(InvalidRequest):
        client.encode(np.zeros((3, 4), np.float32), model="vectors", **invalid)


def test_a_new_version_is_noticed(client: Client, fake: FakeServer) -> None:
    client.encode("a", model="words")
    infer = fake.answers["ModelInfer"]

    def newer(request: Any, context: Any) -> Any:
        reply = infer(request, context)
        reply.model_version = "2"
        return reply

    fake.answers["ModelInfer"] = newer
    assert client.encode("a", model="words").version == "2"
    client.encode("a", model="words")

    assert fake.count("ModelMetadata") == 2


def test_a_version_can_be_asked_for(client: Client, fake: FakeServer) -> None:
    client.encode("a", model="words", version=1)

    assert fake.last("ModelInfer").model_version == "1"
    assert fake.last("ModelMetadata").version == "1"


def note_time_left(fake: FakeServer) -> list[Any]:
    """Has the server note how long each ModelInfer still has."""
    left: list[Any] = []
    infer = fake.answers["ModelInfer"]

    def answer(request: Any, context: Any) -> Any:
        left.append(context.time_remaining())
        return infer(request, context)

    fake.answers["ModelInfer"] = answer
    return left


@pytest.mark.parametrize(
    ("own", "given", "limit"), [({}, ..., 30), ({"timeout": 7}, ..., 7), ({"timeout": 7}, 3, 3)]
)
def test_every_call_has_a_deadline_unless_none_is_wanted(
    connect: Connect, fake: FakeServer, own: Any, given: Any, limit: float
) -> None:
    left = note_time_left(fake)

    connect(fake.target, **own).encode("a", model="words", timeout=given)
    connect(fake.target, timeout=None).encode("a", model="words")

    assert limit - 2 < left[0] <= limit + 0.1
    assert left[1] is None or left[1] > 1e6
