"""NeoBERT as it is published, held to its formulas, which are written anew here."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.formulas import Weights, attend, compare, linear, write
from torch import Tensor

from polyhead_model import CheckpointError, load_checkpoint, parameters, read_checkpoint_info

D, H, L, WORDS = 16, 2, 2, 40
INTERMEDIATE, FEED = 40, 32  # two thirds, 26, become a multiple of 8
CONFIG: dict[str, Any] = {
    "architectures": ["NeoBERTLMHead"],
    "auto_map": {"AutoModel": "model.NeoBERT", "AutoModelForMaskedLM": "model.NeoBERTLMHead"},
    "model_type": "neobert",
    "vocab_size": WORDS,
    "hidden_size": D,
    "dim_head": D // H,
    "num_hidden_layers": L,
    "num_attention_heads": H,
    "intermediate_size": INTERMEDIATE,
    "max_length": 60,
    "norm_eps": 1e-5,
    "pad_token_id": 0,
}


def shapes(prefix: str = "model.") -> dict[str, list[int]]:
    named = {"encoder.weight": [WORDS, D], "layer_norm.weight": [D]}
    for layer in range(L):
        start = f"transformer_encoder.{layer}."
        named |= {f"{start}{norm}.weight": [D] for norm in ("attention_norm", "ffn_norm")}
        named |= {f"{start}qkv.weight": [3 * D, D], f"{start}wo.weight": [D, D]}
        named |= {f"{start}ffn.w12.weight": [2 * FEED, D], f"{start}ffn.w3.weight": [D, FEED]}
    return {prefix + name: shape for name, shape in named.items()}


def rms_norm(x: Tensor, weights: Weights, name: str) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weights[f"{name}.weight"]


def rotated_pairs(x: Tensor) -> Tensor:
    """Rotate columns 2i and 2i + 1 of one head's x [T, K], token by token, as complex numbers."""
    angles = 10_000.0 ** -(torch.arange(0, x.shape[1], 2, dtype=torch.float64) / x.shape[1])
    numbers = torch.view_as_complex(x.reshape(len(x), -1, 2).contiguous())
    turned = numbers * torch.exp(1j * torch.arange(len(x), dtype=torch.float64)[:, None] * angles)
    return torch.view_as_real(turned).flatten(1)


def formulas(weights: Weights, config: Mapping[str, Any], ids: list[int]) -> tuple[Tensor, list[Tensor]]:
    """Of chandar-lab/NeoBERT."""
    weights = {name.removeprefix("model."): each for name, each in weights.items()}
    x, width = weights["encoder.weight"][ids], D // H
    attentions = []
    for layer in range(L):
        at = f"transformer_encoder.{layer}."
        qkv = linear(rms_norm(x, weights, f"{at}attention_norm"), weights, f"{at}qkv")
        heads, rows = [], []
        for head in range(H):
            own = qkv[:, head * 3 * width : (head + 1) * 3 * width]
            q, k, v = own[:, :width], own[:, width : 2 * width], own[:, 2 * width :]
            result, row = attend(rotated_pairs(q), rotated_pairs(k), v)
            heads.append(result)
            rows.append(row)
        attentions.append(torch.stack(rows))
        x = x + linear(torch.cat(heads, 1), weights, f"{at}wo")
        gate, up = linear(rms_norm(x, weights, f"{at}ffn_norm"), weights, f"{at}ffn.w12").chunk(2, dim=1)
        x = x + linear(gate * torch.sigmoid(gate) * up, weights, f"{at}ffn.w3")
    return rms_norm(x, weights, "layer_norm"), attentions


@pytest.mark.parametrize("prefix", ["", "model."])
def test_a_published_folder(prefix: str, tmp_path: Path) -> None:
    write(tmp_path, CONFIG, shapes(prefix))

    compare(tmp_path, formulas)
    encoder = load_checkpoint(tmp_path).encoder
    stored = load_file(tmp_path / "model.safetensors").values()
    assert parameters(encoder.config) == sum(each.numel() for each in stored)


def test_what_predicts_words_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, CONFIG, shapes() | {"decoder.weight": [WORDS, D], "decoder.bias": [WORDS]})

    compare(tmp_path, formulas)
    said = load_checkpoint(tmp_path).left_out
    assert said[0] == "the task head is not served (decoder.bias, decoder.weight)"


@pytest.mark.parametrize("of", ["Sequence", "Token"])
def test_classifiers(of: str, tmp_path: Path) -> None:
    config = CONFIG | {"architectures": [f"NeoBERTFor{of}Classification"], "num_labels": 3}
    heads = {"dense.weight": [D, D], "dense.bias": [D], "classifier.weight": [3, D], "classifier.bias": [3]}
    write(tmp_path, config, shapes() | heads)
    weights = {name: each.double() for name, each in load_file(tmp_path / "model.safetensors").items()}
    ids = torch.randint(0, WORDS, (1, 9))

    read, _ = formulas(weights, config, ids[0].tolist())
    if of == "Sequence":
        read = read[:1]
    expected = linear(torch.tanh(linear(read, weights, "dense")), weights, "classifier")
    with torch.no_grad():
        logits = load_checkpoint(tmp_path).encoder.double()(ids).logits
    torch.testing.assert_close(logits.reshape(-1, 3), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim_head": 4}, "dim_head must be 8, was 4"),
        ({"rms_norm": False}, "rms_norm must be true, was false"),
        ({"rope": False}, "rope must be true, was false"),
        ({"ngpt": True}, "ngpt must be false, was true"),
        ({"hidden_act": "gelu"}, "hidden_act must be 'SwiGLU', was 'gelu'"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads must be {}, was {'0': [1]}"),
        ({"num_attention_heads": 0, "dim_head": D}, "heads must be at least 1, was 0"),
        ({"max_length": None}, "max_length must be an integer, was None"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | changes))

    with pytest.raises(CheckpointError, match=re.escape(message)):
        read_checkpoint_info(tmp_path)
