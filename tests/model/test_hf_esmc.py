"""ESM-C against formulas written here, and transformers in float64; what of its configuration is refused."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.checkpoints import random_of
from tests.formulas import Weights, attend, compare, layer_norm, linear, rotated_halves, write
from torch import Tensor

from polyhead_model import CheckpointError, load_checkpoint, masks, parameters, read_checkpoint_info

D, H, L, FEED, WORDS = 12, 3, 3, 20, 33
SIZES = {
    "vocab_size": WORDS,
    "hidden_size": D,
    "num_hidden_layers": L,
    "num_attention_heads": H,
    "intermediate_size": FEED,
    "max_position_embeddings": 60,
}
CONFIG: dict[str, Any] = SIZES | {"model_type": "esmc", "hidden_act": "silu", "rope_theta": 50.0}


def shapes() -> dict[str, list[int]]:
    named = {"embed_tokens.weight": [WORDS, D], "norm.weight": [D]}
    for layer in range(L):
        at = f"layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            named |= {f"{at}{norm}.weight": [D], f"{at}{norm}.bias": [D]}
        named |= {f"{at}self_attn.{each}_norm.weight": [D] for each in "qk"}
        named |= {f"{at}self_attn.{each}_proj.weight": [D, D] for each in "qkvo"}
        named |= {f"{at}mlp.{each}_proj.weight": [FEED, D] for each in ("gate", "up")}
        named[f"{at}mlp.down_proj.weight"] = [D, FEED]
    return named


def formulas(weights: Weights, config: Mapping[str, Any], ids: list[int]) -> tuple[Tensor, list[Tensor]]:
    """Of transformers' `esmc`."""
    x, width, divisor = weights["embed_tokens.weight"][ids], D // H, (L / 36) ** 0.5
    angles = config["rope_theta"] ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    attentions = []
    for layer in range(L):
        at = f"layers.{layer}."
        normed = layer_norm(x, weights, f"{at}input_layernorm", 1e-5)
        q, k, v = (linear(normed, weights, f"{at}self_attn.{each}_proj") for each in "qkv")
        q, k = (
            layer_norm(each, weights, f"{at}self_attn.{n}_norm", 1e-5) for each, n in ((q, "q"), (k, "k"))
        )
        heads, rows = [], []
        for head in range(H):
            own = slice(head * width, (head + 1) * width)
            turned_q, turned_k = (rotated_halves(each[:, own], angles) for each in (q, k))
            result, row = attend(turned_q, turned_k, v[:, own])
            heads.append(result)
            rows.append(row)
        attentions.append(torch.stack(rows))
        x = x + linear(torch.cat(heads, 1), weights, f"{at}self_attn.o_proj") / divisor
        normed = layer_norm(x, weights, f"{at}post_attention_layernorm", 1e-5)
        gate, up = (linear(normed, weights, f"{at}mlp.{each}_proj") for each in ("gate", "up"))
        x = x + linear(gate * torch.sigmoid(gate) * up, weights, f"{at}mlp.down_proj") / divisor
    return layer_norm(x, weights, "norm", 1e-5), attentions


def test_a_folder_of_its_layout(tmp_path: Path) -> None:
    write(tmp_path, CONFIG, shapes())

    compare(tmp_path, formulas)
    encoder = load_checkpoint(tmp_path).encoder
    stored = load_file(tmp_path / "model.safetensors").values()
    assert parameters(encoder.config) == sum(each.numel() for each in stored)


def test_transformers_in_float64(tmp_path: Path) -> None:
    """The bound is what W_o and W_down in fp32 leave of what they are divided by, and angles in fp32."""
    model = random_of("Esmc", "Model", **SIZES)
    model.save_pretrained(tmp_path)
    torch.manual_seed(5)
    lengths = torch.tensor([23, 1, 9])
    valid = masks.valid_tokens(lengths, 23)
    ids = torch.where(valid, torch.randint(0, WORDS, valid.shape), 1)

    with torch.no_grad():
        theirs = model.double()(input_ids=ids, attention_mask=valid.long(), output_attentions=True)
        ours = load_checkpoint(tmp_path).encoder.double()(ids, lengths, need_weights=True)
    for row, length in enumerate(lengths.tolist()):
        expected = theirs.last_hidden_state[row, :length]
        torch.testing.assert_close(ours.output[row, :length], expected, rtol=0, atol=2e-6)
        for own, other in zip(ours.attention, theirs.attentions, strict=True):
            torch.testing.assert_close(own[row, :, :length], other[row, :, :length], rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mlp_bias": True}, "attention_bias must be true, was false: attention and feed-forward network"),
        ({"num_key_value_heads": 1}, "num_key_value_heads must be 3, was 1"),
        ({"head_dim": 8}, "head_dim must be 4, was 8"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads must be {}, was {'0': [1]}"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type must be 'default'"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | changes))

    with pytest.raises(CheckpointError, match=re.escape(message)):
        read_checkpoint_info(tmp_path)
