"""What config.json says of DeBERTa: as it is published, with one setting changed, and what is refused."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checkpoints import SIZES, random_of
from torch import Tensor

from polyhead_model import CheckpointError, load_checkpoint, read_checkpoint_info
from polyhead_model.attention_config import Disentangled
from polyhead_model.task_heads import Convolution

V3: dict[str, Any] = {
    "model_type": "deberta-v2",
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-07,
    "max_position_embeddings": 512,
    "max_relative_positions": -1,
    "norm_rel_ebd": "layer_norm",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "pooler_dropout": 0,
    "pooler_hidden_act": "gelu",
    "pooler_hidden_size": 768,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "position_buckets": 256,
    "relative_attention": True,
    "share_att_key": True,
    "type_vocab_size": 0,
    "vocab_size": 128100,
}
"""The settings that microsoft/deberta-v3-base is published with."""

XLARGE = V3 | {
    "attention_head_size": 64,
    "conv_act": "gelu",
    "conv_kernel_size": 3,
    "hidden_size": 1536,
    "intermediate_size": 6144,
    "num_attention_heads": 24,
    "num_hidden_layers": 24,
    "pooler_hidden_size": 1536,
    "pos_att_type": "p2c|c2p",
}
"""Of microsoft/deberta-v2-xlarge."""

NLI = V3 | {
    "architectures": ["DebertaV2ForSequenceClassification"],
    "id2label": {"0": "contradiction", "1": "entailment", "2": "neutral"},
    "pos_att_type": "p2c|c2p",
}
"""Of cross-encoder/nli-deberta-v3-base."""

TINY = SIZES | {
    "vocab_size": 50,
    "num_hidden_layers": 2,
    "max_position_embeddings": 40,
    "relative_attention": True,
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
    "conv_kernel_size": 3,
    "conv_act": "gelu",
}


def write(folder: Path, config: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_published_configurations(tmp_path: Path) -> None:
    v3 = read_checkpoint_info(write(tmp_path, V3))
    assert v3.encoder.disentangled == Disentangled(
        terms=("p2c", "c2p"), span=256, distance=512, shared=True, norm=True
    )
    assert (v3.encoder.position_rows, v3.encoder.positions, v3.max_tokens) == (0, 512, 512)
    assert (v3.encoder.types, v3.encoder.layer_norm_epsilon, v3.encoder.convolution) == (0, 1e-7, None)

    xlarge = read_checkpoint_info(write(tmp_path, XLARGE)).encoder
    assert xlarge.convolution == Convolution(width=3, activation="gelu")
    assert (xlarge.head_size, xlarge.disentangled) == (64, v3.encoder.disentangled)

    classifier = read_checkpoint_info(write(tmp_path, NLI)).encoder.classifier
    assert classifier is not None
    assert classifier.labels == ("contradiction", "entailment", "neutral")
    assert [(each.width, each.activation) for each in classifier.dense] == [(768, "gelu")]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small one with a convolution, as `transformers` saves it."""
    folder = tmp_path_factory.mktemp("deberta")
    random_of("DebertaV2", "Model", **TINY).save_pretrained(folder)
    return folder


def outputs_of(folder: Path) -> tuple[Tensor, Tensor]:
    """Our outputs, and those of `transformers`, from the same folder."""
    from transformers import AutoModel

    torch.manual_seed(6)
    ids = torch.randint(50, (2, 31))
    with torch.no_grad():
        return load_checkpoint(folder).encoder(ids).output, AutoModel.from_pretrained(folder)(ids)[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"pos_att_type": "c2p"},
        {"pos_att_type": ["p2c"]},
        {"norm_rel_ebd": "none"},
        {"conv_act": "tanh"},
        {"conv_act": "relu"},
        {"max_relative_positions": 12},
    ],
    ids=str,
)
def test_every_setting_is_followed(changes: dict[str, Any], saved: Path, tmp_path: Path) -> None:
    """The same weights with another setting give other outputs: those of `transformers`."""
    before, _ = outputs_of(saved)
    folder = shutil.copytree(saved, tmp_path / "changed")
    write(folder, json.loads((saved / "config.json").read_text()) | changes)

    ours, theirs = outputs_of(folder)

    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert (ours - before).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"z_steps": 2}, "z_steps must be 0, was 2"),
        ({"pos_att_type": "c2p|p2p"}, "pos_att_type must be some of c2p, p2c, was 'c2p|p2p'"),
        ({"pos_att_type": ["c2p", "c2p"]}, "pos_att_type must be some of c2p, p2c, was ['c2p', 'c2p']"),
        ({"pos_att_type": [3]}, "pos_att_type must be some of c2p, p2c, was [3]"),
        ({"pos_att_type": 3}, "pos_att_type must be some of c2p, p2c, was 3"),
        ({"relative_attention": False}, "pos_att_type must be empty where relative_attention is false, was"),
        ({"relative_attention": 1}, "relative_attention must be true or false, was 1"),
        ({"share_att_key": None}, "share_att_key must be true or false, was None"),
        ({"norm_rel_ebd": "rms_norm"}, "norm_rel_ebd must be 'layer_norm' or 'none', was 'rms_norm'"),
        ({"position_buckets": 7}, "position_buckets must be even, and below twice the relative positions"),
        ({"position_buckets": 1024}, "position_buckets must be even, and below twice the relative positions"),
        ({"max_relative_positions": 128}, "(128) less two, was 256"),
        ({"position_buckets": "256"}, "position_buckets must be an integer, was '256'"),
        ({"position_biased_input": "no"}, "position_biased_input must be true or false, was 'no'"),
        ({"attention_head_size": 32}, "attention_head_size must be 64, was 32"),
        ({"embedding_size": 0}, "embedding_width must be at least 1, was 0"),
        ({"conv_kernel_size": 4}, "conv_kernel_size must be odd, was 4"),
        ({"conv_kernel_size": 3, "conv_groups": 5}, "conv_groups must divide hidden_size (768), was 5"),
        ({"conv_kernel_size": 3, "conv_act": "celu"}, "conv_act must be one of gelu, linear, mish, "),
        (NLI | {"pooler_hidden_act": "softmax"}, "pooler_hidden_act must be one of gelu, linear, mish, "),
        (NLI | {"pooler_hidden_size": 512}, "pooler_hidden_size must be 768, was 512"),
    ],
)
def test_what_cannot_be_followed_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    write(tmp_path, V3 | changes)

    with pytest.raises(CheckpointError, match=re.escape(message)) as raised:
        read_checkpoint_info(tmp_path)
    assert str(raised.value).startswith(f"{tmp_path / 'config.json'}: ")


def write_splade(folder: Path, **config: Any) -> Any:
    """Write a SparseEncoder's folder; return its language model."""
    model = random_of("DebertaV2", "ForMaskedLM", **TINY, **config)
    model.save_pretrained(folder)
    kinds = {"": "sentence_transformers.models.Transformer", "1": "x.SpladePooling"}
    modules = [{"path": path, "type": kind} for path, kind in kinds.items()]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1").mkdir()
    (folder / "1" / "config.json").write_text(json.dumps({"pooling_strategy": "max"}))
    return model


def test_words_are_weighed_by_its_language_model(tmp_path: Path) -> None:
    model = write_splade(tmp_path)
    torch.manual_seed(6)
    ids, lengths = torch.randint(1, 50, (2, 9)), torch.tensor([9, 5])
    mask = (torch.arange(9) < lengths[:, None]).long()

    encoder = load_checkpoint(tmp_path).encoder

    with torch.no_grad():
        ours = encoder.weigh_words(encoder(ids, lengths).output, lengths)
        logits = model(input_ids=ids, attention_mask=mask).logits
    theirs = (torch.log1p(logits.relu()) * mask[..., None]).amax(1)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert (theirs > 0).any()


def test_another_language_model_is_refused(tmp_path: Path) -> None:
    write_splade(tmp_path, legacy=False)

    with pytest.raises(CheckpointError, match=r"the weights must hold cls\.predictions\."):
        load_checkpoint(tmp_path)


def test_one_token_type_needs_a_table_to_be_added_to(tmp_path: Path) -> None:
    """Without positions that is the embeddings of tokens, by which SPLADE weighs words, too."""
    write_splade(tmp_path, type_vocab_size=1)

    with pytest.raises(CheckpointError, match="type_vocab_size must not be 1"):
        load_checkpoint(tmp_path)
