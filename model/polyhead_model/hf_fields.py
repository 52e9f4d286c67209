"""What config.json says beyond sizes, by model type, as fields of `EncoderConfig`.

Each function reads every setting that changes its type's equations, and rejects a value that cannot be
reproduced: the numbers would silently differ from those of transformers.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyhead_model.checkpoint_files import CheckpointError, integer

Config = Mapping[str, Any]
Fields = dict[str, Any]


def bert(path: Path, config: Config) -> Fields:
    """Return the fields of BERT and of its relatives without settings of their own."""
    _require(path, config, "position_embedding_type", "absolute", "relative positions are not supported")
    width = config.get("hidden_size")
    _require(path, config, "embedding_size", width, "embeddings of another width are not supported")
    return {"embedding_norm": True}


def roberta(path: Path, config: Config) -> Fields:
    """Return the fields of RoBERTa, in which padding has a position of its own, before the others."""
    return bert(path, config) | {"padding_id": integer(path, {"pad_token_id": 1, **config}, "pad_token_id")}


def electra(path: Path, config: Config) -> Fields:
    """Return the fields of ELECTRA, whose embeddings are projected if their width differs."""
    _require(path, config, "position_embedding_type", "absolute", "relative positions are not supported")
    width = integer(path, config, "embedding_size")
    return {"embedding_norm": True, "embedding_width": None if width == config.get("hidden_size") else width}


def albert(path: Path, config: Config) -> Fields:
    """Return the fields of ALBERT: narrow embeddings, and one layer for all."""
    _require(path, config, "position_embedding_type", "absolute", "relative positions are not supported")
    for name in ("num_hidden_groups", "inner_group_num"):
        _require(path, config, name, 1, "all layers must be one and the same")
    return {
        "embedding_norm": True,
        "embedding_width": integer(path, config, "embedding_size"),
        "shared_layers": integer(path, config, "num_hidden_layers") > 1,
    }


def mpnet(path: Path, config: Config) -> Fields:
    """Return the fields of MPNet. transformers fixes what its configuration seems to leave open."""
    name = "relative_attention_num_buckets"
    _require(path, config, name, 32, "transformers computes with 32, whatever is given")
    return {"embedding_norm": True, "padding_id": 1, "relative_buckets": 32, "relative_distance": 128}


def esm(path: Path, config: Config) -> Fields:
    """Return the fields of ESM-2 (rotations) and ESM-1b (learned positions)."""
    for name in ("is_folding_model", "add_cross_attention"):
        _require(path, config, name, False, "only the encoder of protein sequences is supported")
    fields: Fields = {
        "norm": "pre",
        "final_norm": True,
        "embedding_norm": bool(config.get("emb_layer_norm_before")),
    }
    if config.get("token_dropout"):
        fields["token_dropout_id"] = integer(path, config, "mask_token_id")
    positions = config.get("position_embedding_type", "absolute")
    if positions == "rotary":
        _require_head_width(path, config)
        return fields | {"rotary_base": config.get("rope_theta", 10_000.0)}
    if positions != "absolute":
        raise CheckpointError(
            f"{path}: position_embedding_type must be 'rotary' or 'absolute', was {positions!r}"
        )
    return fields | {"padding_id": integer(path, config, "pad_token_id")}


def gpt2(path: Path, config: Config) -> Fields:
    """Return the fields of GPT-2: causal blocks that normalise first."""
    _require(path, config, "scale_attn_weights", True, "scores are divided by √K")
    _require(path, config, "scale_attn_by_inverse_layer_idx", False, "all layers scale scores alike")
    _require(
        path, config, "add_cross_attention", False, "checkpoints with a second sequence are not supported"
    )
    width = integer(path, config, "n_embd")
    return {
        "feed_forward": 4 * width if config.get("n_inner") is None else integer(path, config, "n_inner"),
        "norm": "pre",
        "final_norm": True,
        "causal": True,
    }


def modernbert(path: Path, config: Config) -> Fields:
    """Return the fields of ModernBERT: rotations, local layers, a gated feed-forward network."""
    _require_head_width(path, config)
    bias = config.get("attention_bias", False)
    _require(
        path, config, "mlp_bias", bias, "attention and feed-forward network must both have biases or not"
    )
    whole, local = (_theta(path, config, kind) for kind in ("full_attention", "sliding_attention"))
    return {
        "embedding_norm": True,
        "norm": "pre",
        "first_attention_norm": False,
        "final_norm": True,
        "norm_bias": config.get("norm_bias", False),
        "bias": bias,
        "gated": True,
        "rotary_base": whole,
        **_windows(path, config, local),
    }


def modernbert_classifier(path: Path, config: Config) -> Fields:
    """Return how ModernBERT's classifier of sequences pools, and what `modernbert_head` does."""
    pooling = config.get("classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        raise CheckpointError(f"{path}: classifier_pooling must be 'cls' or 'mean', was {pooling!r}")
    return {"pooling": pooling, **modernbert_head(path, config)}


def modernbert_head(path: Path, config: Config) -> Fields:
    """Return the activation and bias of the dense layer of ModernBERT's classifiers."""
    _require(path, config, "classifier_activation", "gelu", "another activation is not supported")
    return {"activation": "gelu", "bias": config.get("classifier_bias", False)}


def _windows(path: Path, config: Config, local_base: float) -> Fields:
    """Return the fields of ModernBERT's local layers."""
    layers = integer(path, config, "num_hidden_layers")
    types = config.get("layer_types")
    every = config.get("global_attn_every_n_layers", 3)
    if isinstance(types, list):
        # The first layer that sees everything, after layer 0, tells the period; the pattern must hold.
        later = [number for number in range(1, layers) if types[number : number + 1] == ["full_attention"]]
        every = later[0] if later else max(layers, 2)
    if not isinstance(every, int) or every < 1:
        raise CheckpointError(f"{path}: global_attn_every_n_layers must be at least 1, was {every!r}")
    pattern = ["sliding_attention" if number % every else "full_attention" for number in range(layers)]
    if types is not None and types != pattern:
        raise CheckpointError(
            f"{path}: layer_types must be 'full_attention' in layers 0, n, 2n, … and 'sliding_attention' in "
            f"the others, was {types!r}"
        )
    if "sliding_attention" not in pattern:
        return {}
    width = integer(path, {"local_attention": 128, **config}, "local_attention")
    _require(path, config, "sliding_window", width // 2, "it is half of local_attention")
    return {"local_window": width, "global_every": every, "local_rotary_base": local_base}


def _theta(path: Path, config: Config, kind: str) -> float:
    """Return the base of the rotations of one kind of ModernBERT's layers, from either format."""
    scaling = config.get("rope_scaling")
    by_kind = config.get("rope_parameters") or {}
    rope = (by_kind.get(kind) or {}) if isinstance(by_kind, dict) else by_kind
    if scaling or not isinstance(rope, dict) or rope.get("rope_type", "default") != "default":
        raise CheckpointError(
            f"{path}: rope_type must be 'default' and rope_scaling absent, was {scaling or rope!r}: scaled "
            "rotations are not supported"
        )
    if any(name not in ("full_attention", "sliding_attention") for name in by_kind):
        raise CheckpointError(f"{path}: rope_parameters must be given by type of layer, was {by_kind!r}")
    old, default = {
        "full_attention": ("global_rope_theta", 160_000.0),
        "sliding_attention": ("local_rope_theta", 10_000.0),
    }[kind]
    theta = rope.get("rope_theta", config.get(old, default))
    if not isinstance(theta, int | float):
        raise CheckpointError(f"{path}: rope_theta of {kind} must be a number, was {theta!r}")
    return theta


def _require(path: Path, config: Config, name: str, wanted: object, why: str) -> None:
    """Reject a value that is given and is another one than `wanted`."""
    if (value := config.get(name, wanted)) != wanted:
        raise CheckpointError(f"{path}: {name} must be {_shown(wanted)}, was {_shown(value)}: {why}")


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _require_head_width(path: Path, config: Config) -> None:
    """Reject rotations of another width than a head's."""
    width, heads = (integer(path, config, name) for name in ("hidden_size", "num_attention_heads"))
    if heads > 0:
        _require(path, config, "head_dim", width // heads, "rotations are as wide as a head")
