"""Every pooling, activation and dialect that loads, against `sentence-transformers` itself.

What comes out of export and server for them is tested in tests/test_checkpoints_served.py.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from tests.checkpoints import (
    DIALECTS,
    modular_cross_encoder,
    sentence_transformer,
    tokens_of,
    write_checkpoint,
)
from tokenizers import Tokenizer
from torch import nn

from polyhead_model import load_checkpoint, parameters
from polyhead_model.huggingface import ACTIVATIONS
from polyhead_model.task_heads import Pooling

TEXTS = ["The cat sat.", "", "a b c d e f g h i j", "Yes"]


DENSE = (
    (nn.Tanh(),),
    (None, nn.Identity(), nn.GELU(), None),
    *((activation(),) for activation in (nn.ReLU, nn.SiLU, nn.Sigmoid, nn.ELU, nn.LeakyReLU, nn.Mish)),
    (nn.Softplus(),),
)
"""Activations of dense layers after pooling; None stands for `Normalize`."""


OTHER_ACTIVATIONS = ("silu", "swish")
"""Which no model of these types is made with by default, so that one type is enough."""


@pytest.mark.parametrize(
    ("dialect", "activation"),
    [
        (dialect, activation)
        for dialect in DIALECTS
        for activation in ACTIVATIONS
        if dialect == "bert" or activation not in OTHER_ACTIVATIONS
    ],
)
def test_every_activation(dialect: str, activation: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "bare", dialect, activation=activation)

    compare(tmp_path, dialect, [("mean", True, ()), (None, False, ())])


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_pooling(dialect: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "bare", dialect)

    compare(tmp_path, dialect, [(pooling, False, ()) for pooling in get_args(Pooling)])


def test_dense_layers(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "bare", "bert")

    compare(tmp_path, "bert", [("mean", False, dense) for dense in DENSE] + [("last", True, DENSE[1])])


@pytest.mark.parametrize("scores", [1, 3])
def test_cross_encoders_of_modules(scores: int, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "bare", "bert", inputs=["token_type_ids"])
    theirs = modular_cross_encoder(tmp_path / "bare", scores=scores)
    theirs.save_pretrained(str(tmp_path / "saved"))
    pairs = [("the cat", text) for text in TEXTS]

    checkpoint = load_checkpoint(tmp_path / "saved")

    batch = theirs.tokenizer(*zip(*pairs, strict=True), padding=True, return_tensors="pt")
    with torch.no_grad():
        ours = checkpoint.encoder(
            batch["input_ids"], batch["attention_mask"].sum(1), token_type_ids=batch["token_type_ids"]
        )
    expected = theirs.predict(pairs, convert_to_tensor=True).reshape(len(pairs), scores)
    torch.testing.assert_close(ours.logits, expected, rtol=1e-5, atol=1e-5)
    classifier = checkpoint.encoder.config.classifier
    assert (ours.pooled, checkpoint.left_out) == (None, ())
    assert classifier is not None
    assert classifier.activation == "identity"
    assert parameters(checkpoint.encoder.config) == sum(
        each.numel() for each in checkpoint.encoder.parameters()
    )


def compare(
    tmp_path: Path, dialect: str, wanted: Sequence[tuple[Pooling | None, bool, Sequence[Any]]]
) -> None:
    """Compare a checkpoint with poolings, normalisation and dense layers with sentence-transformers."""
    texts = [*TEXTS, f"a {tokens_of(dialect)['pad']} b {tokens_of(dialect)['pad']}"]
    tokenizer = Tokenizer.from_file(str(tmp_path / "bare" / "tokenizer.json"))
    encoded = [torch.tensor(encoding.ids) for encoding in tokenizer.encode_batch(texts)]
    ids = torch.nn.utils.rnn.pad_sequence(encoded, batch_first=True)
    lengths = torch.tensor([len(row) for row in encoded])

    transformer = sentence_transformer(tmp_path / "bare", pooling=None, normalise=False)[0]
    for number, (pooling, normalise, dense) in enumerate(wanted):
        theirs = sentence_transformer(transformer, pooling=pooling, normalise=normalise, dense=dense)
        folder = tmp_path / str(number)
        theirs.save_pretrained(str(folder), create_model_card=False)

        checkpoint = load_checkpoint(folder)
        with torch.no_grad():
            ours = checkpoint.encoder(ids, lengths)

        config = checkpoint.encoder.config
        assert (config.pooling, config.normalise) == (pooling, normalise or dense[-1:] == (None,))
        assert config.pooled_size == 16 - 3 * sum(layer is not None for layer in dense)
        if pooling is None:
            expected = theirs.encode(texts, output_value="token_embeddings", convert_to_tensor=True)
            for row, vectors in enumerate(expected):
                torch.testing.assert_close(ours.output[row, : len(vectors)], vectors, rtol=1e-5, atol=1e-5)
        else:
            expected = theirs.encode(texts, convert_to_tensor=True)
            torch.testing.assert_close(ours.pooled, expected, rtol=1e-5, atol=1e-5)
