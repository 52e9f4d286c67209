"""`/predict` of a classifier of tokens, in the form of Hugging Face's inference API."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.pages import block
from tests.pipelines import TEXTS
from tests.server.http.conftest import OverHttp, over_http

from polyhead_client import Client
from polyhead_proto.outputs.tagging import AggregationStrategy


@pytest.fixture(scope="module")
def web(tagger: Path) -> Iterator[OverHttp]:
    """A server of a classifier of tokens, whose batches hold three texts."""
    with over_http(tagger / "models", max_batch_size=3) as one:
        yield one


@pytest.fixture(scope="module")
def client(web: OverHttp) -> Iterator[Client]:
    with Client(web.running.address) as client:
        yield client


def expected(client: Client, texts: list[str], strategy: AggregationStrategy, **options: Any) -> Any:
    """What the client makes of the same texts, which tests/client/test_tagging.py holds to the pipeline."""
    return [
        [
            {
                **(
                    {"entity": each.label, "index": each.tokens.start}
                    if strategy == "none"
                    else {"entity_group": each.label}
                ),
                "score": pytest.approx(each.score, abs=1e-5),
                "word": each.word,
                "start": each.start,
                "end": each.end,
            }
            for each in entities
        ]
        for entities in client.tag(texts, aggregation_strategy=strategy, **options)
    ]


@pytest.mark.parametrize("strategy", get_args(AggregationStrategy))
def test_texts_get_their_entities(web: OverHttp, client: Client, strategy: AggregationStrategy) -> None:
    """The one model need not be named; many texts are computed in parts."""
    found = web.post("/predict", {"inputs": TEXTS, "parameters": {"aggregation_strategy": strategy}}).json

    assert found == expected(client, TEXTS, strategy)


def test_one_text_and_ignored_labels(web: OverHttp, client: Client) -> None:
    parameters = {"ignore_labels": ["PER"], "aggregation_strategy": None}
    found = web.post("/predict", {"inputs": TEXTS[0], "model": "tagger", "parameters": parameters}).json
    (as_tei,) = web.post("/predict", {"inputs": [[TEXTS[0]]], "parameters": parameters}).json

    assert [found] == expected(client, TEXTS[:1], "simple", ignore_labels=["PER"])
    assert as_tei == found


def test_hugging_faces_client(web: OverHttp, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # the server is on this machine
    names: dict[str, Any] = {}

    exec(block("docs/http.md", "InferenceClient(").replace("127.0.0.1:8002", f"127.0.0.1:{web.port}"), names)

    ours = client.tag(["Zoë Müller lives in Kraków."], aggregation_strategy="first")[0]
    assert [(one.entity_group, one.word, one.start, one.end) for one in names["found"]] == [
        (one.label, one.word, one.start, one.end) for one in ours
    ]


def test_long_texts_are_cut_where_that_is_asked_for(web: OverHttp) -> None:
    long = "a b c d " * 20

    assert web.post("/predict", {"inputs": ["a", long]}).error.startswith("inputs[1] must be at most 50")
    (_, found) = web.post("/predict", {"inputs": ["a", long], "truncate": True}).json
    assert all(one["end"] < 100 for one in found)


@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        ("/predict", {"inputs": []}, "inputs must have at least 1 item, had 0"),
        ("/predict", {"inputs": [["a", "b"]]}, "inputs[0] must be a text, as tagger classifies tokens, was"),
        ("/predict", {"inputs": ["a", 5]}, "inputs[1] must be a string or an array, was 5"),
        ("/predict", {"raw_scores": True}, "raw_scores must be left out: tagger classifies tokens"),
        ("/predict", {"parameters": {"stride": 1}}, "field 'stride' of parameters is not known"),
        (
            "/predict",
            {"parameters": {"aggregation_strategy": "last"}},
            "aggregation_strategy must be 'none', 'simple', 'first', 'average' or 'max', was 'last'",
        ),
        ("/predict", {"truncation_direction": "left"}, "truncation_direction must be 'Right', was 'left'"),
        (
            "/rerank",
            {"query": "a", "texts": ["b"]},
            "model must be a reranker, which takes pairs of texts and gives one score",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    web: OverHttp, path: str, fields: dict[str, Any], named: str
) -> None:
    given = {"inputs": "a"} if path == "/predict" else {}

    answered = web.post(path, given | {"model": "tagger"} | fields)

    assert answered.status == 400
    assert named in answered.error
