"""Sparse vectors, from a checkpoint of SPLADE to what is served: as a loop over transformers' logits."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.checkpoints import SPLADE_POOLINGS, bert_tokenizer, sentence_transformers, write_splade
from tests.numerics import close
from tests.server.http.conftest import OverHttp, over_http

from polyhead_client import Client, Encoding, InvalidRequest
from polyhead_export import ExportError, export_family
from polyhead_model import CheckpointError, Encoder, EncoderConfig, load_checkpoint, parameters
from polyhead_model.task_heads import Splade

TEXTS = ["The cat sat.", "", "a b c d e f g h i j k l m n", "é"]


@pytest.fixture(scope="module")
def folder(splade: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of checkpoints, by their types."""
    made = tmp_path_factory.mktemp("checkpoints")
    (made / "bert").symlink_to(splade / "bert")
    write_splade(made / "distilbert", "distilbert", "MLMTransformer")
    return made


@pytest.fixture(scope="module")
def web(splade: Path) -> Iterator[OverHttp]:
    with over_http(splade / "models") as served:
        yield served


@pytest.fixture(scope="module")
def client(web: OverHttp) -> Iterator[Client]:
    with Client(web.running.address) as one:
        yield one


def expected_words(folder: Path, dialect: str, rows: list[list[int]]) -> list[dict[int, float]]:
    """The weight of each word in each text, alone: of every token's logits, a loop over words."""
    from transformers import AutoModelForMaskedLM

    model = AutoModelForMaskedLM.from_pretrained(folder / dialect).eval()
    found = []
    for row in rows:
        with torch.inference_mode():
            logits = model(torch.tensor([row])).logits[0].double().numpy()
        weights = {}
        for word in range(logits.shape[1]):
            each = [math.log1p(max(logit, 0)) for logit in logits[:, word]]
            if SPLADE_POOLINGS[dialect]["activation_function"] == "log1p_relu":
                each = [math.log1p(weight) for weight in each]
            weights[word] = max(each) if SPLADE_POOLINGS[dialect]["pooling_strategy"] == "max" else sum(each)
        found.append({word: weight for word, weight in weights.items() if weight > 0})
    return found


def ids_of(client: Client) -> list[list[int]]:
    """The token ids of the texts."""
    vocabulary, rows = bert_tokenizer().get_vocab(), client.encode(TEXTS, model="splade").tokens
    assert rows is not None
    return [[vocabulary[token] for token in row] for row in rows]


def test_words_are_those_of_transformers(client: Client, folder: Path) -> None:
    rows = ids_of(client)
    assert len({len(row) for row in rows}) == 4  # padding must not count
    expected = expected_words(folder, "bert", rows)

    encoding = client.encode(TEXTS, model="splade", sparse=True)
    by_ids = client.encode(rows, model="splade", sparse=True, output=False)

    for number, words in enumerate(expected):
        assert 10 < len(words) < 150
        for each in (encoding, by_ids):
            sparse: Any = each.sequence(number).sparse
            found = sparse.to_dict()
            assert found == pytest.approx(words, abs=1e-5)
            assert list(found.values()) == sorted(found.values(), reverse=True)
            assert (sparse.indices[len(found) :] == -1).all()
            assert not sparse.values[len(found) :].any()


def test_the_most_words_may_be_chosen_and_kept(client: Client, tmp_path: Path) -> None:
    every: Any = client.encode(TEXTS, model="splade", sparse=True, output=False)
    some: Any = client.encode(TEXTS, model="splade", sparse=5, output=False)
    alone: Any = client.encode(TEXTS[0], model="splade", sparse=5, output=False)

    assert some.sparse.indices.shape == (4, 5)
    np.testing.assert_array_equal(some.sparse.indices, every.sparse.indices[:, :5])
    np.testing.assert_array_equal(alone.sparse.indices, some.sparse.indices[0])
    alone.save(tmp_path / "words.npz")
    assert Encoding.load(tmp_path / "words.npz").sparse.to_dict() == alone.sparse.to_dict()  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="choose one, sequence"):
        some.sparse.to_dict()
    with pytest.raises(InvalidRequest, match="sparse must be between 1 and"):
        client.encode(TEXTS, model="splade", sparse=5000)
    with pytest.raises(InvalidRequest, match="sparse must be True, False or an integer, 1 or more"):
        client.encode(TEXTS, model="splade", sparse=0)


def test_teis_call(client: Client, web: OverHttp) -> None:
    expected: Any = client.encode(TEXTS[:1] + TEXTS[2:], model="splade", sparse=True, output=False)

    answered = web.post("/embed_sparse", {"inputs": TEXTS[:1] + TEXTS[2:]}).json
    named = web.post("/embed_sparse", {"inputs": TEXTS[0], "model": "splade", "truncate": True}).json

    for number, words in enumerate(answered):
        found = {one["index"]: one["value"] for one in words}
        assert found == pytest.approx(expected.sequence(number).sparse.to_dict(), abs=1e-6)
    assert [one["index"] for one in named[0]] == [one["index"] for one in answered[0]]
    rejected = web.post("/embed_sparse", {"inputs": TEXTS[0], "model": "none"})
    assert rejected.status == 404
    assert "pools tokens" in web.post("/v1/embeddings", {"model": "splade", "input": "a"}).error


def test_other_pooling_and_another_type(folder: Path) -> None:
    rows = [[2, 7, 9, 3], [2, 3], [2, 20, 21, 22, 23, 24, 3]]
    padded = torch.tensor([row + [0] * (7 - len(row)) for row in rows])
    checkpoint = load_checkpoint(folder / "distilbert")
    encoder, lengths = checkpoint.encoder, torch.tensor([4, 2, 7])
    assert encoder.config.splade == Splade(pooling="sum", log_twice=True)
    assert parameters(encoder.config) == sum(each.numel() for each in encoder.parameters())

    with torch.inference_mode():
        weights = encoder.weigh_words(encoder(padded, lengths).output, lengths)

    for found, words in zip(weights, expected_words(folder, "distilbert", rows), strict=True):
        assert {word: float(found[word]) for word in words} == pytest.approx(words, abs=1e-4)
        assert int((found > 0).sum()) == len(words)


@pytest.mark.slow
@pytest.mark.parametrize("dialect", SPLADE_POOLINGS)
def test_what_sentence_transformers_saves(folder: Path, tmp_path: Path, dialect: str) -> None:
    package = sentence_transformers()
    theirs = package.SparseEncoder(str(folder / dialect), device="cpu")
    theirs.save_pretrained(str(tmp_path), create_model_card=False)
    checkpoint = load_checkpoint(tmp_path)
    rows = [theirs.tokenizer(text)["input_ids"] for text in TEXTS]
    lengths = torch.tensor(list(map(len, rows)))
    padded = torch.tensor([row + [0] * (max(lengths) - len(row)) for row in rows])

    with torch.inference_mode():
        weights = checkpoint.encoder.weigh_words(checkpoint.encoder(padded, lengths).output, lengths)

    close(weights, theirs.encode(TEXTS, convert_to_sparse_tensor=False).cpu())


def test_a_folder_that_is_no_splade_is_refused(folder: Path, tmp_path: Path) -> None:
    def changed(path: Path, **fields: Any) -> None:
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    refused: list[tuple[str, dict[str, Any], str]] = [
        ("1_SpladePooling/config.json", {"pooling_strategy": "mean"}, "pooling must be one of max, sum"),
        ("1_SpladePooling/config.json", {"activation_function": "x"}, "must be relu or log1p_relu"),
        ("config.json", {"architectures": ["BertModel"]}, "must name a …ForMaskedLM"),
        (
            "config.json",
            {"model_type": "roberta"},
            "must be one of bert, deberta-v2, distilbert for sparse vectors",
        ),
    ]
    for number, (file, fields, named) in enumerate(refused):
        copy = tmp_path / str(number)
        write_splade(copy, "bert")
        changed(copy / file, **fields)
        with pytest.raises(CheckpointError, match=named):
            load_checkpoint(copy)
    encoder = Encoder(EncoderConfig(d_model=8, heads=2, layers=1, vocabulary=9))
    with pytest.raises(ExportError, match="no head that weighs words"):
        export_family(encoder, "other", tmp_path, graphs=["sparse"])
    with pytest.raises(ValueError, match="splade needs"):
        EncoderConfig(d_model=8, heads=2, layers=1, splade=Splade())
