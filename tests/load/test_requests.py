"""The requests of a plan are what the client would send, and the same each time."""

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from tests.load.conftest import plan_for
from tests.load.fake_server import VOCABULARY, metadata_of

from polyhead_client.calls import Call
from polyhead_client.errors import InvalidRequest, Unavailable
from polyhead_load import Lengths, LoadError, LoadPlan
from polyhead_load.connection import LoadConnection, Request
from polyhead_load.outputs import Outputs, parse_outputs
from polyhead_load.requests import RequestBuilder
from polyhead_proto import messages as pb

LENGTHS = Lengths(median=12, sigma=0.5, low=3, high=40)


class FakeConnection:
    """Answers questions about models."""

    def __init__(self) -> None:
        self.address = "a:1"
        self.asked: list[str] = []

    def fetch(self, wanted: Call) -> list[bytes]:
        """As the fake server does, which is too busy for inference."""
        self.asked.append(wanted.rpc.name)
        match wanted.rpc.name:
            case "RepositoryIndex":
                model = pb.RepositoryIndexResponse.ModelIndex(name="only", version="1", state="READY")
                return [pb.RepositoryIndexResponse(models=[model]).SerializeToString()]
            case "ModelMetadata":
                name = pb.ModelMetadataRequest.FromString(wanted.data).name
                return [metadata_of(name).SerializeToString()]
            case _:
                raise Unavailable("the queue is full")


def written(plan: LoadPlan) -> list[Request]:
    return RequestBuilder(cast(LoadConnection, FakeConnection())).build(plan)


def messages(plan: LoadPlan) -> list[Any]:
    return [pb.ModelInferRequest.FromString(request.wanted.data) for request in written(plan)]


def strings(raw: bytes) -> list[str]:
    """Read a tensor of texts: of each, its size in four bytes, and itself."""
    found = []
    while raw:
        size = int.from_bytes(raw[:4], "little")
        found.append(raw[4 : 4 + size].decode())
        raw = raw[4 + size :]
    return found


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tokens": LENGTHS, "batch": 3},
        {"model": "ids", "tokens": LENGTHS},
        {"model": "ids", "text": True, "batch": 2},
        {"outputs": Outputs(fetch=("attention",), heads="0", queries="0:2", dtype="FP16")},
    ],
)
def test_the_same_seed_gives_the_same_bytes(fields: dict[str, Any]) -> None:
    plan = replace(plan_for("a:1", "x"), **fields)
    first, second = ([request.wanted.data for request in written(plan)] for _ in range(2))

    assert first == second
    assert len(set(first)) == len(first)
    other = replace(plan, seed=8)
    assert first != [request.wanted.data for request in written(other)]


def test_vectors_of_one_length_are_one_tensor() -> None:
    for message in messages(plan_for("a:1", "x", tokens=5, batch=2)):
        assert [(tensor.name, list(tensor.shape)) for tensor in message.inputs] == [("x", [2, 5, 8])]
        assert [output.name for output in message.outputs] == ["output"]
        assert len(message.raw_input_contents[0]) == 2 * 5 * 8 * 4


def test_vectors_of_several_lengths_are_padded() -> None:
    longest = []
    for message in messages(plan_for("a:1", "x", tokens=LENGTHS, batch=3)):
        assert [tensor.name for tensor in message.inputs] == ["x", "lengths"]
        lengths = np.frombuffer(message.raw_input_contents[1], np.int32)
        assert message.inputs[0].shape[1] == lengths.max()
        longest.append(lengths.max())
    assert len(set(longest)) > 3


def test_token_ids_and_texts_are_sent_to_those_who_take_them() -> None:
    ids = messages(plan_for("a:1", "ids", tokens=6))[0]
    assert (ids.inputs[0].name, list(ids.inputs[0].shape)) == ("input_ids", [1, 6])
    sent = [
        np.frombuffer(message.raw_input_contents[0], np.int64)
        for message in messages(plan_for("a:1", "ids", tokens=60))
    ]
    assert 50 < max(map(max, sent)) < VOCABULARY

    text = messages(plan_for("a:1", "ids", tokens=6, text=True))[0]
    assert (text.inputs[0].name, list(text.inputs[0].shape)) == ("text", [1])
    assert len(text.raw_input_contents[0][4:].split()) == 4


def test_a_reranker_gets_a_query_with_each_of_its_passages() -> None:
    sent = messages(plan_for("a:1", "ids-of-pairs", tokens=LENGTHS, batch=5, text=True))

    queries = set()
    for message in sent:
        assert [(one.name, list(one.shape)) for one in message.inputs] == [("text", [5]), ("text_pair", [5])]
        (query, *others), passages = map(strings, message.raw_input_contents)
        assert others == [query] * 4
        assert len(set(passages)) > 1
        assert all(3 <= len(query.split()) + len(passage.split()) + 3 <= 40 for passage in passages)
        queries.add(query)
    assert len(queries) > 1

    (first, *_) = messages(plan_for("a:1", "ids-of-pairs", tokens=60, batch=2, text=True))
    spoken = [len(text.split()) for texts in first.raw_input_contents for text in strings(texts)]
    assert spoken == [8, 8, 49, 49]  # with [CLS], [SEP], [SEP]: 60
    (ids, *_) = messages(plan_for("a:1", "ids-of-pairs", tokens=60, batch=2))
    assert [(one.name, list(one.shape)) for one in ids.inputs] == [("input_ids", [2, 60])]


def test_attention_is_asked_for_as_the_plan_says() -> None:
    selected = Outputs(fetch=("attention",), layers=(1,), heads="1,0", queries="0:2", dtype="UINT8")
    plan = plan_for("a:1", "x", outputs=selected)
    message = messages(plan)[0]

    assert message.model_name == "x.attention"
    output = message.outputs[-1]
    assert output.name == "attention.1"
    assert {name: value.string_param for name, value in output.parameters.items()} == {
        "heads": "1,0",
        "queries": "0:2",
        "dtype": "UINT8",
    }
    assert [
        one.name
        for one in messages(plan_for("a:1", "x", outputs=parse_outputs("output+attention")))[0].outputs
    ] == [
        "output",
        "attention.0",
        "attention.1",
    ]


def test_metadata_is_asked_for_once() -> None:
    connection = FakeConnection()
    RequestBuilder(cast(LoadConnection, connection)).build(
        plan_for("a:1", "", outputs=parse_outputs("attention"))
    )

    assert connection.asked == ["RepositoryIndex", "ModelMetadata", "ModelMetadata", "ModelInfer"]


def test_what_the_model_cannot_take_is_refused() -> None:
    with pytest.raises(LoadError, match="tokens must be at most 64 for x, was 65"):
        written(plan_for("a:1", "x", tokens=Lengths(median=9, sigma=1, low=1, high=65)))
    with pytest.raises(LoadError, match="text must be off for x: it takes x, lengths"):
        written(plan_for("a:1", "x", text=True))
    with pytest.raises(InvalidRequest, match=r"attention must be layers that x\.attention has \(0, 1"):
        written(plan_for("a:1", "x", outputs=Outputs(fetch=("attention",), layers=(2,))))
    with pytest.raises(
        LoadError, match=r"model must be a family, was 'x\.attention', one of its graphs: out"
    ):
        written(plan_for("a:1", "x.attention"))
