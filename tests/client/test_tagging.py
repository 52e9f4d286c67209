"""`tag` gives what transformers' pipeline does, with texts as they were sent."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from tests.conftest import TAGS
from tests.pages import block
from tests.pipelines import TEXTS, labelled, pipeline, same
from tests.servers import quick_settings, serving

from polyhead_client import Client, InvalidRequest
from polyhead_client.command import main
from polyhead_proto.outputs.tagging import AggregationStrategy

LONG = "a b c d e f g h " * 4


@pytest.fixture(scope="module")
def pipe(tagger: Path) -> Any:
    return pipeline(tagger / "checkpoint")


@pytest.fixture(scope="module")
def address(tagger: Path) -> Iterator[str]:
    with serving(quick_settings(tagger / "models", max_batch_size=3)) as server:
        yield server.address


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[Client]:
    with Client(address) as client:
        yield client


@pytest.mark.parametrize("strategy", get_args(AggregationStrategy))
def test_entities_are_those_of_the_pipeline(client: Client, pipe: Any, strategy: AggregationStrategy) -> None:
    """In several requests, of texts of different lengths."""
    found = client.tag(TEXTS, model="tagger", aggregation_strategy=strategy)

    for text, entities in zip(TEXTS, found, strict=True):
        ours = [(each.label, each.start, each.end, each.score) for each in entities]
        assert same(ours, labelled(pipe, text, aggregation_strategy=strategy)), text
        assert [each.word for each in entities] == [text[each.start : each.end] for each in entities]


def test_logits_are_those_of_each_token(client: Client, pipe: Any) -> None:
    import torch

    (text, *_) = TEXTS
    with torch.inference_mode():
        expected = pipe.model(**pipe.tokenizer(text, return_tensors="pt")).logits[0]

    alone: Any = client.encode(text, model="tagger")
    several: Any = client.encode([LONG[:9], text], model="tagger", output=False)

    np.testing.assert_allclose(alone.logits, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(several.logits[1], expected, rtol=0, atol=1e-5)
    assert several.logits[0].shape == (several.lengths[0], len(TAGS))
    assert alone.labels == TAGS
    assert alone.spans is None


def test_spans_say_where_tokens_are(client: Client) -> None:
    text = "Zoé ran"

    encoding: Any = client.encode(text, model="tagger", output=False, logits=False, spans=True)
    ids: Any = client.encode([[2, 5, 3]], model="tagger", spans=True)

    assert [text[start:end] for start, end, word in encoding.spans if word >= 0] == [*"Zoéran"]
    assert [text.split()[word] for _, _, word in encoding.spans[1:-1]] == ["Zoé"] * 3 + ["ran"] * 3
    assert (encoding.spans[[0, -1]] == -1).all()
    assert (ids.spans[0] == -1).all()


def test_labels_can_be_ignored(client: Client) -> None:
    every = client.tag(TEXTS[:1], model="tagger", ignore_labels=())[0]
    some = client.tag(TEXTS[:1], model="tagger", ignore_labels=["PER", "O"])[0]

    assert {each.label for each in every} > {"PER", "LOC"}
    assert some == [each for each in every if each.label not in {"PER", "O"}]
    assert client.tag([], model="tagger") == []


def test_long_texts_are_cut_where_that_is_asked_for(client: Client) -> None:
    with pytest.raises(InvalidRequest, match=r"text\[1\] must be at most 50 tokens"):
        client.tag(["a", LONG * 2], model="tagger")

    (found,) = client.tag([LONG * 2], model="tagger", truncate=True, ignore_labels=())

    assert found[-1].end == 95
    assert found[-1].tokens.stop == 49


def test_the_page_shows_what_works(client: Client) -> None:
    names: dict[str, Any] = {"client": client}
    exec(block("docs/client.md", "client.tag").replace('"ner"', '"tagger"'), names)

    entity, rows = names["entity"], names["encoding"].rows
    assert rows[0].shape[1] == len(entity.tokens) >= 1
    np.testing.assert_allclose(rows[0].sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"texts": "a"}, "texts must be a list of texts, was 'a'"),
        ({"aggregation_strategy": "last"}, "aggregation_strategy must be one of none, .*, was 'last'"),
        ({"aggregation_strategy": []}, r"aggregation_strategy must be one of none, .*, was \[\]"),
        ({"ignore_labels": "O"}, "ignore_labels must be a list of texts, was 'O'"),
        ({"truncate": 1}, "truncate must be True or False"),
    ],
)
def test_what_cannot_be_done_is_refused(client: Client, arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        client.tag(**{"texts": ["a"], "model": "tagger"} | arguments)


def test_a_classifier_of_tokens_is_none_of_texts(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="a classifier of texts, tagger classifies tokens, for tag"):
        client.classify(["a"], model="tagger")


def test_the_command_line_shows_the_best_labels(
    address: str, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    logits = np.asarray(client.encode(TEXTS[0], model="tagger").logits)

    def infer(*flags: str) -> str:
        assert main(["infer", TEXTS[0], "--address", address, "--model", "tagger", *flags]) == 0
        return capsys.readouterr().out

    assert TAGS[logits[1].argmax()] in infer()
    (sequence,) = json.loads(infer("--json"))["sequences"]
    np.testing.assert_allclose([sequence["logits"][tag] for tag in TAGS], logits.T, atol=1e-5)
