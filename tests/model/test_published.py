"""Folders as they are published, against sentence-transformers."""

from pathlib import Path

import pytest
import torch
from tests.published import (
    EMBEDDERS,
    TEXTS,
    WIDTH,
    sentence_transformer,
    write_eurobert,
    write_nomic_embed_text,
)
from tokenizers import Tokenizer

from polyhead_model import load_checkpoint

LEFT_OUT = {
    "embeddinggemma": "the encoder has no embedding for <image_soft_token>: in text, that is no token",
    "eurobert": "the task head is not served (lm_head.weight)",
}


@pytest.mark.parametrize("name", EMBEDDERS)
def test_what_is_published(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "published"
    EMBEDDERS[name](folder)
    theirs = folder
    if name == "nomic-embed-text":
        theirs = tmp_path / "renamed"
        write_nomic_embed_text(theirs, renamed=True)
    model = sentence_transformer(theirs)

    # A folder without modules.json does not say how to pool.
    checkpoint = load_checkpoint(folder, pooling="mean" if name == "eurobert" else None)

    config = checkpoint.encoder.config
    assert (config.pooling, config.pooled_size) == ("last" if name == "qwen3-embedding" else "mean", WIDTH)
    assert checkpoint.prompts.texts == ({} if name == "eurobert" else model.prompts)
    assert checkpoint.left_out == ((LEFT_OUT[name],) if name in LEFT_OUT else ())
    assert checkpoint.tokenizer_content is not None
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer_content)
    for prompt in ("", *checkpoint.prompts.texts.values()):
        tokenizer.enable_truncation(checkpoint.max_tokens)
        rows = [torch.tensor(tokenizer.encode(prompt + text).ids) for text in TEXTS]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        with torch.no_grad():
            ours = checkpoint.encoder(ids, torch.tensor([len(row) for row in rows]))
        expected = model.encode(TEXTS, prompt=prompt, convert_to_tensor=True)
        torch.testing.assert_close(ours.pooled, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pooling", ["late", "mean", "bos"])
def test_pooling_of_eurobert_by_the_name_of_its_own_code(pooling: str, tmp_path: Path) -> None:
    """transformers calls the same `classifier_pooling`."""
    for folder, name in (
        (tmp_path / "published", "clf_pooling"),
        (tmp_path / "theirs", "classifier_pooling"),
    ):
        write_eurobert(folder, "ForSequenceClassification", num_labels=3, **{name: pooling})
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "theirs", dtype=torch.float32)
    ids, lengths = torch.randint(0, 99, (3, 9)), torch.tensor([9, 1, 5])

    encoder = load_checkpoint(tmp_path / "published").encoder

    with torch.no_grad():
        mask = torch.arange(9) < lengths[:, None]
        torch.testing.assert_close(
            encoder(ids, lengths).logits, model(ids, mask.long()).logits, rtol=1e-5, atol=1e-5
        )
