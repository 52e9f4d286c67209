"""Every pooling, activation and dialect that loads, against `sentence-transformers` itself.

What comes out of export and server for them is tested in tests/test_checkpoints_served.py.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import torch
from tests.checkpoints import DIALECTS, sentence_transformer, tokens_of, write_checkpoint
from tokenizers import Tokenizer

from polyhead_model import load_checkpoint
from polyhead_model.config import Pooling
from polyhead_model.huggingface import ACTIVATIONS

TEXTS = ["The cat sat.", "", "a b c d e f g h i j", "Yes"]
POOLINGS = (None, *get_args(Pooling))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """These models are so small that threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_pooling(dialect: str, activation: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "bare", dialect, activation=activation)
    texts = [*TEXTS, f"a {tokens_of(dialect)['pad']} b {tokens_of(dialect)['pad']}"]
    tokenizer = Tokenizer.from_file(str(tmp_path / "bare" / "tokenizer.json"))
    encoded = [torch.tensor(encoding.ids) for encoding in tokenizer.encode_batch(texts)]
    ids = torch.nn.utils.rnn.pad_sequence(encoded, batch_first=True)
    lengths = torch.tensor([len(row) for row in encoded])

    transformer = sentence_transformer(tmp_path / "bare", pooling=None, normalise=False)[0]
    for pooling, normalise in itertools.product(POOLINGS, (True, False)):
        if normalise and pooling is None:
            continue
        theirs = sentence_transformer(transformer, pooling=pooling, normalise=normalise)
        folder = tmp_path / f"{pooling}-{normalise}"
        theirs.save_pretrained(str(folder), create_model_card=False)

        checkpoint = load_checkpoint(folder)
        with torch.no_grad():
            ours = checkpoint.encoder(ids, lengths)

        assert (checkpoint.encoder.config.pooling, checkpoint.encoder.config.normalise) == (
            pooling,
            normalise,
        )
        if pooling is None:
            expected = theirs.encode(texts, output_value="token_embeddings", convert_to_tensor=True)
            for row, vectors in enumerate(expected):
                torch.testing.assert_close(ours.output[row, : len(vectors)], vectors, rtol=1e-5, atol=1e-5)
        else:
            expected = theirs.encode(texts, convert_to_tensor=True)
            torch.testing.assert_close(ours.pooled, expected, rtol=1e-5, atol=1e-5)
