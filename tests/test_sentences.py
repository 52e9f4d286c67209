"""The main job from end to end: a trained encoder, real sentences, real processes, three other libraries."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.checkpoints import sentence_transformers
from tests.interop.conftest import CLIENTS_PYTHON, TOKEN, call, needs_clients
from tests.numerics import TRAINED, close
from tests.server.http.conftest import over_http

from polyhead_client import Client, InvalidRequest
from polyhead_export import from_checkpoint
from polyhead_export.calibration import calibrate

SENTENCES = [
    "The cat that I saw yesterday sat on the mat.",
    "Ein Satz, der kein englischer ist: ÄÖÜ, naïve café, 日本語 and an emoji 🙂.",
    "no",
    "",
    "Antidisestablishmentarianism, " * 20,
]


@pytest.fixture(scope="module")
def client(minilm_address: str) -> Iterator[Client]:
    with Client(minilm_address) as one:
        yield one


@pytest.fixture(scope="module")
def sentence_transformer(minilm_checkpoint: Path) -> Any:
    return sentence_transformers().SentenceTransformer(str(minilm_checkpoint), device="cpu")


def test_embeddings_are_those_of_sentence_transformers(client: Client, sentence_transformer: Any) -> None:
    expected = sentence_transformer.encode(SENTENCES)

    pooled: Any = client.encode(SENTENCES).pooled

    close(pooled, expected, roundings=TRAINED)


def test_ranges_are_those_of_sentence_transformers(
    minilm_checkpoint: Path, sentence_transformer: Any
) -> None:
    built: Any = from_checkpoint(minilm_checkpoint, "minilm", matryoshka=(64,)).build()
    whole, cut = (
        sentence_transformer.encode(SENTENCES, truncate_dim=width, normalize_embeddings=True)
        for width in (None, 64)
    )

    measured = calibrate(built.encoder, built.tokenizer, SENTENCES)

    assert measured.texts == len(SENTENCES)
    for width, vectors in ((384, whole), (64, cut)):
        close(measured.ranges[width], (vectors.min(0), vectors.max(0)), roundings=TRAINED)


@needs_clients
def test_openai_s_package_gets_these_embeddings_too(
    minilm_models: Path, minilm_checkpoint: Path, sentence_transformer: Any, tmp_path: Path
) -> None:
    (tmp_path / "tokens").write_text(TOKEN)
    ids = sentence_transformer.tokenizer(SENTENCES)["input_ids"]

    with over_http(minilm_models, token_file=tmp_path / "tokens") as web:
        url, given = f"http://127.0.0.1:{web.port}/v1", json.dumps({"texts": SENTENCES, "ids": ids})
        answer = call(CLIENTS_PYTHON, "openai_calls.py", url, TOKEN, given=given)
        with Client(web.running.address, token=TOKEN) as client:
            over_grpc = client.encode(SENTENCES).pooled

    got = {name: np.array(vectors, np.float32) for name, vectors in json.loads(answer).items()}
    expected = sentence_transformer.encode(SENTENCES)
    cut, bits = expected[:, :64], np.unpackbits(got.pop("bits").astype(np.uint8), axis=1)
    close(got.pop("cut"), cut / np.linalg.norm(cut, axis=1, keepdims=True), roundings=TRAINED)
    clear = np.abs(expected) > 1e-4  # of which rounding does not change the sign
    np.testing.assert_array_equal(bits[clear], expected[clear] > 0)
    for name, vectors in got.items():
        assert vectors.shape == expected.shape, name
        close(vectors, expected, roundings=TRAINED)
    # Which pieces a list is run in depends on what is free just then, and with them the last bits.
    for name in ("texts", "floats", "base64"):
        close(got[name], over_grpc, roundings=TRAINED)


def test_truncated_text_gets_the_same_embedding(client: Client, sentence_transformer: Any) -> None:
    long = "one two three four five six seven eight nine ten " * 60
    with pytest.raises(InvalidRequest, match=r"text\[0\] must be at most 256 tokens, was 602"):
        client.encode([long])

    pooled: Any = client.encode([long], truncate=True).pooled

    close(pooled, sentence_transformer.encode([long]), roundings=TRAINED)


def test_outputs_and_attention_are_those_of_transformers(client: Client, minilm_checkpoint: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(minilm_checkpoint, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(minilm_checkpoint)
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.inference_mode():
        expected = model(**batch, output_attentions=True)
    lengths = batch["attention_mask"].sum(1).tolist()

    encoding: Any = client.encode(SENTENCES, attention=True)

    assert sorted(encoding.attention) == list(range(6))
    for index, length in enumerate(lengths):
        assert encoding.tokens[index] == tokenizer.convert_ids_to_tokens(batch["input_ids"][index, :length])
        close(encoding.output[index], expected.last_hidden_state[index, :length], roundings=TRAINED)
        for layer, weights in encoding.attention.items():
            theirs = expected.attentions[layer][index, :, :length, :length]
            close(weights[index], theirs, roundings=TRAINED, scale=1)
