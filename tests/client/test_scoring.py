"""Labels and ranks, from a server of a classifier and a reranker."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tests.client.conftest import INPUTS, OUTPUTS, FakeServer
from tests.conftest import SENTIMENTS
from tests.pages import block
from tests.server.conftest import running
from tests.server.http.test_scoring import LONG, QUERY, TEXTS
from tests.servers import quick_settings

from polyhead_client import Client, InvalidRequest
from polyhead_client.scoring import ranked


@pytest.fixture(scope="module")
def client(scorers: Path) -> Iterator[Client]:
    with running(quick_settings(scorers, max_batch_size=3)) as server, Client(server.address) as client:
        yield client


def logits(client: Client, texts: list[str], pairs: list[str] | None, model: str) -> Any:
    return client.encode(texts, text_pair=pairs, model=model, output=False).logits


def test_a_text_gets_its_labels_with_the_best_first(client: Client) -> None:
    (expected,) = logits(client, TEXTS[:1], None, "sentiment")

    (found,) = client.classify(TEXTS[:1], model="sentiment")
    (raw,) = client.classify(TEXTS[:1], model="sentiment", top=2, raw_scores=True)

    order = np.argsort(-expected)
    powers = np.exp(expected.astype(np.float64))
    assert [each.label for each in found] == [SENTIMENTS[at] for at in order]
    np.testing.assert_allclose([each.score for each in found], (powers / powers.sum())[order], atol=1e-6)
    assert [(each.label, each.score) for each in raw] == [
        (SENTIMENTS[at], float(expected[at])) for at in order[:2]
    ]


def test_many_texts_and_pairs_are_classified(client: Client) -> None:
    """In several requests."""
    expected = logits(client, TEXTS, TEXTS[::-1], "sentiment")

    found = client.classify(TEXTS, text_pair=TEXTS[::-1], model="sentiment", raw_scores=True, top=1)

    assert [row[0].label for row in found] == [SENTIMENTS[at] for at in expected.argmax(1)]
    np.testing.assert_allclose([row[0].score for row in found], expected.max(1), atol=1e-6)


def test_texts_are_ranked_by_how_well_they_answer(client: Client) -> None:
    expected = logits(client, [QUERY] * 4, TEXTS, "reranker")[:, 0].astype(np.float64)
    seen: list[tuple[int, int]] = []

    found = client.rerank(QUERY, TEXTS, model="reranker", progress=lambda *done: seen.append(done))
    best = client.rerank(QUERY, TEXTS, model="reranker", top=1, raw_scores=True)

    order = np.argsort(-expected, kind="stable")
    assert [(each.index, each.text) for each in found] == [(at, TEXTS[at]) for at in order]
    np.testing.assert_allclose([each.score for each in found], 1 / (1 + np.exp(-expected[order])), atol=1e-6)
    np.testing.assert_allclose([each.score for each in best], [expected.max()], atol=1e-6)
    assert seen[-1] == (4, 4)
    assert client.rerank(QUERY, [], model="reranker") == []
    assert client.classify([], model="sentiment") == []


def test_the_order_is_that_of_logits() -> None:
    """Large logits have the same score: their sigmoid is 1 in fp32."""
    found = ranked(np.array([[17.5], [30.0], [18.0]], np.float32), "abc", top=2, activation="sigmoid")

    assert [(each.index, each.score, each.text) for each in found] == [(1, 1.0, "b"), (2, 1.0, "c")]


def test_the_page_shows_what_works(client: Client) -> None:
    exec(block("docs/client.md", "client.rerank"), {"client": client, "texts": TEXTS})


@pytest.mark.parametrize(
    ("call", "arguments", "named"),
    [
        ("classify", {"texts": 5}, "texts must be a list of texts, was 5"),
        ("classify", {"texts": "a"}, "texts must be a list of texts, was 'a'"),
        ("classify", {"texts": ["a"], "text_pair": "b"}, "text_pair must be a list of texts"),
        ("classify", {"texts": ["a"], "top": 0}, "top must be an integer, 1 or more"),
        ("classify", {"texts": ["a"], "raw_scores": "no"}, "raw_scores must be True or False"),
        ("classify", {"texts": [LONG]}, "must be at most 16 tokens"),
        ("compare", {"query": "a", "documents": []}, "documents must be one or more texts, were none"),
        ("rerank", {"query": 5, "texts": ["a"]}, "query must be a text, was 5"),
        ("rerank", {"query": "a", "texts": ["b"], "model": "sentiment"}, "model must be a reranker"),
        ("rerank", {"query": "a", "texts": ["b"], "evidence": True}, "top must be given with evidence"),
        ("rerank", {"query": "a", "texts": ["b"], "activation": "softmax"}, "activation must be one of sigm"),
        (
            "rerank",
            {"query": "a", "texts": ["b"], "activation": "checkpoint", "raw_scores": True},
            "raw_scores must be False where activation is 'checkpoint', was True",
        ),
        (
            "rerank",
            {"query": "a", "texts": ["b"], "activation": "checkpoint"},
            "activation must be 'sigmoid': reranker does not say its own",
        ),
        (
            "rerank",
            {"query": "a", "texts": ["b"], "top": 1, "evidence": 0},
            "evidence must be True, False or",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    client: Client, call: str, arguments: dict[str, Any], named: str
) -> None:
    default = "sentiment" if call == "classify" else "reranker"

    with pytest.raises(InvalidRequest, match=named):
        getattr(client, call)(**{"model": default, **arguments})


def test_a_classifier_of_texts_is_none_of_tokens(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="of tokens, sentiment classifies texts, for classify"):
        client.tag(["a cat"], model="sentiment")


@pytest.fixture
def judge(fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """A newer server, whose logits become scores in a way that this client does not know."""
    monkeypatch.setitem(OUTPUTS, "", ["output", "logits"])
    monkeypatch.setitem(INPUTS, "words", ["text", "text_pair"])
    logits = {"axes": ["B", "C"], "role": "logits", "labels": ["good"]}
    fake.properties = {
        "tensors": json.dumps({"logits": logits | dict.fromkeys(["scores", "activation"], "tanh")})
    }
    fake.graphs = [""]
    return fake


@pytest.mark.parametrize(
    ("call", "arguments", "named"),
    [
        ("classify", {}, "raw_scores must be True: words makes scores by 'tanh', which this client does not"),
        ("rerank", {"activation": "checkpoint"}, "activation must be 'sigmoid': words makes scores by"),
    ],
)
def test_what_only_a_newer_client_knows_stops_what_needs_it_alone(
    judge: FakeServer, call: str, arguments: dict[str, Any], named: str
) -> None:
    with Client(judge.target) as client:
        given: dict[str, Any] = {"texts": ["a b", "a bc"], "model": "words"}
        if call == "rerank":
            given["query"] = "a"
            assert client.rerank(**given)

        with pytest.raises(InvalidRequest, match=named):
            getattr(client, call)(**given, **arguments)

        assert getattr(client, call)(**given, raw_scores=True)


@pytest.mark.parametrize("call", ["classify", "rerank"])
def test_all_calls_of_an_operation_share_its_timeout(judge: FakeServer, call: str) -> None:
    """Metadata is fetched again if another version has answered."""
    described, infer, left = judge.answers["ModelMetadata"], judge.answers["ModelInfer"], list[float]()
    judge.properties = {"tensors": judge.properties["tensors"].replace("tanh", "identity")}

    def metadata(request: Any, context: grpc.ServicerContext) -> Any:
        left.append(context.time_remaining() or 0)
        return described(request, context)

    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        reply = infer(request, context)
        reply.model_version = "2"
        return reply

    judge.answers |= {"ModelMetadata": metadata, "ModelInfer": answer}
    arguments: Any = {"query": "a", "activation": "checkpoint"} if call == "rerank" else {}

    with Client(judge.target, timeout=10_000) as client:
        getattr(client, call)(texts=["a b"], model="words", timeout=1000, **arguments)

    assert [seconds < 2000 for seconds in left] == [True, True]  # gRPC rounds up; the client's own is 10,000


def weight_of(client: Client, text: str, query: int, other: int) -> float:
    """The share of two tokens in what the other gathers, by head and key; of two layers, in the first."""
    encoding: Any = client.encode(
        QUERY, text_pair=text, model="reranker", attention=[0], value_norms=True, output=False
    )
    shares = []
    for row, key in ((query, other), (other, query)):
        gathered = [
            sum(float(weights[row, at] * norms[at]) for weights, norms in heads)
            for at in range(encoding.lengths)
            for heads in [list(zip(encoding.attention[0], encoding.value_norms[0], strict=True))]
        ]
        shares.append(gathered[key] / sum(gathered))
    return sum(shares) / 2


def test_evidence_is_what_tokens_exchange_most(client: Client) -> None:
    plain = client.rerank(QUERY, TEXTS, model="reranker", top=2)

    found = client.rerank(QUERY, TEXTS, model="reranker", top=2, evidence=100)
    few = client.rerank(QUERY, TEXTS, model="reranker", top=1, evidence=3)

    assert [(each.index, each.score) for each in found] == [(each.index, each.score) for each in plain]
    assert all(each.evidence is None for each in plain)
    for each in found:
        tokens: Any = client.encode(QUERY, text_pair=each.text, model="reranker").tokens
        pairs = each.evidence or ()
        words = {(pair.query.index, pair.text.index) for pair in pairs}
        first, last = tokens.index("[SEP]"), len(tokens) - 1
        assert words == {(a, b) for a in range(1, first) for b in range(first + 1, last)}
        assert [pair.weight for pair in pairs] == sorted((pair.weight for pair in pairs), reverse=True)
        for pair in pairs:
            expected = weight_of(client, each.text, pair.query.index, pair.text.index)
            assert abs(pair.weight - expected) < 1e-3  # FP16 rounds weights by 2^-11 of themselves
            for one, whole in ((pair.query, QUERY), (pair.text, each.text)):
                assert one.token == tokens[one.index]
                assert whole[one.start : one.end] == one.token.removeprefix("##")
    assert few[0].evidence == (found[0].evidence or ())[:3]


def test_an_empty_text_has_no_evidence(client: Client) -> None:
    (result,) = client.rerank(QUERY, [""], model="reranker", top=1, evidence=True)

    assert result.evidence == ()
