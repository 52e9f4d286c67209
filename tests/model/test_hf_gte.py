"""GTE as it is published, held to its formulas, which are written anew here."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tests.formulas import Weights, attend, compare, layer_norm, linear, rotated_halves, write
from torch import Tensor

from polyhead_model import CheckpointError, load_checkpoint, parameters, read_checkpoint_info

D, H, L, FEED, WORDS = 12, 3, 2, 20, 40
CONFIG: dict[str, Any] = {
    "architectures": ["NewModel"],
    "auto_map": {"AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"},
    "model_type": "new",
    "vocab_size": WORDS,
    "hidden_size": D,
    "num_hidden_layers": L,
    "num_attention_heads": H,
    "intermediate_size": FEED,
    "hidden_act": "gelu",
    "max_position_embeddings": 60,
    "type_vocab_size": 1,
    "layer_norm_type": "layer_norm",
    "layer_norm_eps": 1e-12,
    "position_embedding_type": "rope",
    "rope_theta": 50.0,
    "rope_scaling": {"factor": 8.0, "type": "ntk"},
    "pack_qkv": True,
    "unpad_inputs": False,
    "use_memory_efficient_attention": False,
    "logn_attention_scale": False,
    "logn_attention_clip1": False,
}


def shapes(config: dict[str, Any], prefix: str = "") -> dict[str, list[int]]:
    named = {"embeddings.word_embeddings.weight": [WORDS, D]}
    if config["type_vocab_size"]:
        named["embeddings.token_type_embeddings.weight"] = [config["type_vocab_size"], D]
    if config["position_embedding_type"] == "absolute":
        named["embeddings.position_embeddings.weight"] = [60, D]
    linears = {"attention.qkv_proj": (3 * D, D), "attention.o_proj": (D, D), "mlp.down_proj": (D, FEED)}
    norms = ["embeddings.LayerNorm"]
    for layer in range(L):
        start = f"encoder.layer.{layer}."
        named[f"{start}mlp.up_gate_proj.weight"] = [2 * FEED, D]
        for name, (out, width) in linears.items():
            named |= {f"{start}{name}.weight": [out, width], f"{start}{name}.bias": [out]}
        norms += [f"{start}attn_ln", f"{start}mlp_ln"]
    for norm in norms:
        named |= {f"{norm}.weight": [D], f"{norm}.bias": [D]}
    return {prefix + name: shape for name, shape in named.items()}


def formulas(weights: Weights, config: Mapping[str, Any], ids: list[int]) -> tuple[Tensor, list[Tensor]]:
    """Of Alibaba-NLP/new-impl."""
    weights = {name.removeprefix("new.").removeprefix("gte."): each for name, each in weights.items()}
    x = weights["embeddings.word_embeddings.weight"][ids]
    if config["type_vocab_size"]:
        x = x + weights["embeddings.token_type_embeddings.weight"][0]
    rotates = config["position_embedding_type"] == "rope"
    if not rotates:
        x = x + weights["embeddings.position_embeddings.weight"][: len(ids)]
    x = layer_norm(x, weights, "embeddings.LayerNorm", 1e-12)
    width, scaling = D // H, config["rope_scaling"] or {"factor": 1.0}
    exponents = torch.arange(0, width, 2, dtype=torch.float64) / width
    angles = (config["rope_theta"] * scaling["factor"]) ** -exponents / scaling["factor"] ** (2 / width)
    attentions = []
    for layer in range(L):
        at = f"encoder.layer.{layer}."
        parts = linear(x, weights, f"{at}attention.qkv_proj").chunk(3, dim=1)
        heads, rows = [], []
        for head in range(H):
            q, k, v = (part[:, head * width : (head + 1) * width] for part in parts)
            if rotates:
                q, k = rotated_halves(q, angles), rotated_halves(k, angles)
            result, row = attend(q, k, v)
            heads.append(result)
            rows.append(row)
        attentions.append(torch.stack(rows))
        attended = linear(torch.cat(heads, 1), weights, f"{at}attention.o_proj")
        x = layer_norm(x + attended, weights, f"{at}attn_ln", 1e-12)
        up, gate = linear(x, weights, f"{at}mlp.up_gate_proj").chunk(2, dim=1)
        gated = up * gate * (1 + torch.erf(gate / 2**0.5)) / 2
        x = layer_norm(x + linear(gated, weights, f"{at}mlp.down_proj"), weights, f"{at}mlp_ln", 1e-12)
    return x, attentions


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rope_scaling": None, "type_vocab_size": 0},
        {"rope_scaling": {"factor": 2.0, "rope_type": "ntk"}, "type_vocab_size": 2},
        {"position_embedding_type": "absolute"},
        {"position_embedding_type": "absolute", "type_vocab_size": 2, "unpad_inputs": True},
        {"use_memory_efficient_attention": True, "rope_scaling": {"factor": 1.0, "type": "ntk"}},
    ],
)
@pytest.mark.parametrize("prefix", ["", "new."])
def test_a_published_folder(changes: dict[str, Any], prefix: str, tmp_path: Path) -> None:
    config = CONFIG | changes
    write(tmp_path, config, shapes(config, prefix))

    compare(tmp_path, formulas)
    encoder = load_checkpoint(tmp_path).encoder
    held = sum(each.numel() for each in encoder.parameters())
    assert parameters(encoder.config) == held  # without biases of W_up and W_gate
    stored = sum(each.numel() for each in load_file(tmp_path / "model.safetensors").values())
    assert held == stored - (D if config["type_vocab_size"] == 1 else 0)  # which every token has


def test_others_call_it_gte(tmp_path: Path) -> None:
    config = CONFIG | {"model_type": "gte", "auto_map": {"AutoModel": "modeling_hf_alibaba_nlp_gte.GteModel"}}
    write(tmp_path, config, shapes(config))

    compare(tmp_path, formulas)


@pytest.mark.parametrize("of", ["Sequence", "Token"])
def test_classifiers(of: str, tmp_path: Path) -> None:
    config = CONFIG | {"architectures": [f"NewFor{of}Classification"], "id2label": {"0": "LABEL_0"}}
    heads = {"classifier.weight": [1, D], "classifier.bias": [1]}
    if of == "Sequence":
        heads |= {"new.pooler.dense.weight": [D, D], "new.pooler.dense.bias": [D]}
    write(tmp_path, config, shapes(config, "new.") | heads)
    weights = {name: each.double() for name, each in load_file(tmp_path / "model.safetensors").items()}
    encoder = load_checkpoint(tmp_path).encoder.double()
    ids = torch.randint(0, WORDS, (1, 9))

    read, _ = formulas(weights, config, ids[0].tolist())
    if of == "Sequence":
        read = torch.tanh(linear(read[:1], weights, "new.pooler.dense"))
    expected = F.linear(read, weights["classifier.weight"], weights["classifier.bias"])
    with torch.no_grad():
        logits = encoder(ids).logits
    torch.testing.assert_close(logits.reshape(-1, 1), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"layer_norm_type": "rms_norm"},
            "layer_norm_type must be 'layer_norm', was 'rms_norm': the norm of",
        ),
        ({"pack_qkv": False}, "pack_qkv must be true, was false"),
        ({"logn_attention_scale": True}, "logn_attention_scale must be false, was true"),
        ({"logn_attention_clip1": True}, "logn_attention_clip1 must be false, was true"),
        (
            {"position_embedding_type": "alibi"},
            "position_embedding_type must be 'rope' or 'absolute', was 'alibi'",
        ),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling must be of the type 'ntk'"),
        (
            {"rope_scaling": "ntk"},
            "rope_scaling must be of the type 'ntk', without mixed_b, or left out, was 'ntk'",
        ),
        ({"rope_scaling": {"type": "ntk", "factor": 2.0, "mixed_b": 0.6}}, "without mixed_b"),
        ({"rope_scaling": {"type": "ntk"}}, "factor of rope_scaling must be a number from 1 on, was None"),
        ({"rope_scaling": {"type": "ntk", "factor": 0.5}}, "must be a number from 1 on, was 0.5"),
        ({"rope_scaling": {"type": "ntk", "factor": float("nan")}}, "from 1 on, was nan"),
        ({"rope_theta": None}, "rope_theta must be a number, was None"),
        ({"rope_theta": 1e300}, "rotary_base must be finite in fp32"),
        ({"rope_theta": 0.5}, "rotary_base must be above 1, was 0.5"),
        ({"num_attention_heads": 0}, "heads must be at least 1, was 0"),
        ({"num_attention_heads": 4}, "rotary_base needs an even head width"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | changes))

    with pytest.raises(CheckpointError, match=re.escape(message)):
        read_checkpoint_info(tmp_path)
