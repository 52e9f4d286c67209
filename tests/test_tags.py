"""Labels of tokens, words and entities are those of transformers' pipeline, whatever the tokenizer.

tests/client/test_tagging.py has them served.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from tests.checkpoints import (
    ALBERT_TOKENS,
    BERT_TOKENS,
    ROBERTA_TOKENS,
    albert_tokenizer,
    bert_tokenizer,
    gpt2_tokenizer,
    random_model,
    roberta_tokenizer,
)
from tests.conftest import TAGS
from tests.pipelines import TEXTS, Labelled, labelled, pipeline, same
from tokenizers import Tokenizer, processors

from polyhead_proto.outputs.tagging import AggregationStrategy, tags_of
from polyhead_server.serving.tokeniser import Tokenised, Tokeniser

TOKENIZERS: Mapping[str, tuple[Tokenizer, Mapping[str, str]]] = {
    "WordPiece that lowers and strips accents": (bert_tokenizer(), BERT_TOKENS),
    "WordPiece with case": (bert_tokenizer(lowercase=False), BERT_TOKENS),
    "byte-level BPE": (roberta_tokenizer(), ROBERTA_TOKENS),
    "byte-level BPE without special tokens": (gpt2_tokenizer(add_prefix_space=True), {}),
    "Unigram that lowers and strips accents": (albert_tokenizer(), ALBERT_TOKENS),
    "Unigram with case": (albert_tokenizer(lowercase=False, keep_accents=True), ALBERT_TOKENS),
}
"""Tokenizers, and their special tokens by what they are for."""


@pytest.fixture(scope="module", params=TOKENIZERS)
def tagged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Tokeniser]:
    """A pipeline of a small random model, and our tokeniser of the same file."""
    folder = tmp_path_factory.mktemp("tagger")
    tokenizer, special = TOKENIZERS[request.param]
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    named = {f"{name}_token": token for name, token in special.items()}
    files = {"tokenizer_class": "PreTrainedTokenizerFast", **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(files))
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 80}
    labels = dict(enumerate(TAGS))
    random_model("bert", "ForTokenClassification", id2label=labels, **sizes).save_pretrained(folder)
    return pipeline(folder), Tokeniser(path, max_tokens=None)


def made_of(tokeniser: Tokeniser, text: str, prompt: str = "") -> Tokenised:
    return tokeniser.encode([text], prompt=prompt, truncate=False, max_total=999, with_spans=True)


@pytest.mark.parametrize("strategy", get_args(AggregationStrategy))
@pytest.mark.parametrize("ignored", [("O",), ("PER", "B-LOC")])
def test_labels_are_those_of_the_pipeline(
    tagged: tuple[Any, Tokeniser], strategy: AggregationStrategy, ignored: tuple[str, ...]
) -> None:
    pipe, tokeniser = tagged
    count = 0
    for text in filter(None, TEXTS):
        theirs = labelled(pipe, text, aggregation_strategy=strategy, ignore_labels=list(ignored))
        made: Any = made_of(tokeniser, text)
        ids = torch.from_numpy(made.input_ids)
        with torch.inference_mode():
            logits = pipe.model(ids, torch.ones_like(ids)).logits[0].numpy()

        (spans,) = made.spans
        tags = tags_of(logits, spans[:, 2], TAGS, aggregation_strategy=strategy, ignore_labels=ignored)

        ours: Labelled = [
            (tag.label, int(spans[tag.first, 0]), int(spans[tag.last, 1]), tag.score) for tag in tags
        ]
        assert same(ours, theirs), text
        count += len(ours)
    assert count


@pytest.mark.parametrize("name", [name for name in TOKENIZERS if "WordPiece" in name or "Unigram" in name])
def test_a_prompt_is_not_of_the_text(name: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    TOKENIZERS[name][0].save(str(path))
    tokeniser = Tokeniser(path, max_tokens=None)
    text, prompt = "Abc é x", "a query: "

    (alone,), (prompted,) = (made_of(tokeniser, text, each).spans for each in ("", prompt))  # type: ignore[misc]

    added = len(prompted) - len(alone)
    assert added > 0
    np.testing.assert_array_equal(prompted[1 + added :], alone[1:])
    assert (prompted[: 1 + added] == -1).all()


def test_spans_of_a_pair_are_in_its_own_texts(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    bert_tokenizer().save(str(path))

    made: Any = Tokeniser(path, max_tokens=None, pairs=True).encode(
        ["ab c", "x"], ["", "yz"], prompt="a ", truncate=False, max_total=999, with_spans=True
    )

    none = [-1] * 3
    assert made.spans.tolist() == [
        [none, none, [0, 1, 0], [1, 2, 0], [3, 4, 1], none, none],
        [none, none, [0, 1, 0], none, [0, 1, 1], [1, 2, 1], none],
    ]


def test_a_tokenizer_that_adds_nothing_has_spans(tmp_path: Path) -> None:
    tokenizer = bert_tokenizer()
    tokenizer.post_processor = processors.Sequence([])
    tokenizer.save(str(path := tmp_path / "tokenizer.json"))

    made: Any = made_of(Tokeniser(path, max_tokens=None), "ab c")

    assert made.spans.tolist() == [[[0, 1, 0], [1, 2, 0], [3, 4, 1]]]


@pytest.mark.parametrize("strategy", get_args(AggregationStrategy))
def test_without_words_there_are_no_tags(strategy: AggregationStrategy) -> None:
    logits, words = np.zeros((2, 5), np.float32), np.full(2, -1)

    assert tags_of(logits, words, TAGS, aggregation_strategy=strategy, ignore_labels=()) == []
