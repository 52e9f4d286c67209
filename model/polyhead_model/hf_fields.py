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
    require(path, config, "position_embedding_type", "absolute", "relative positions are not supported")
    width = config.get("hidden_size")
    require(path, config, "embedding_size", width, "embeddings of another width are not supported")
    return {"embedding_norm": True}


def roberta(path: Path, config: Config) -> Fields:
    """Return the fields of RoBERTa, in which padding has a position of its own, before the others."""
    return bert(path, config) | {"padding_id": integer(path, {"pad_token_id": 1, **config}, "pad_token_id")}


def electra(path: Path, config: Config) -> Fields:
    """Return the fields of ELECTRA, whose embeddings are projected if their width differs."""
    require(path, config, "position_embedding_type", "absolute", "relative positions are not supported")
    width = integer(path, config, "embedding_size")
    return {"embedding_norm": True, "embedding_width": None if width == config.get("hidden_size") else width}


def albert(path: Path, config: Config) -> Fields:
    """Return the fields of ALBERT: narrow embeddings, and one layer for all."""
    require(path, config, "position_embedding_type", "absolute", "relative positions are not supported")
    for name in ("num_hidden_groups", "inner_group_num"):
        require(path, config, name, 1, "all layers must be one and the same")
    return {
        "embedding_norm": True,
        "embedding_width": integer(path, config, "embedding_size"),
        "shared_layers": integer(path, config, "num_hidden_layers") > 1,
    }


def mpnet(path: Path, config: Config) -> Fields:
    """Return the fields of MPNet. transformers fixes what its configuration seems to leave open."""
    name = "relative_attention_num_buckets"
    require(path, config, name, 32, "transformers computes with 32, whatever is given")
    return {"embedding_norm": True, "padding_id": 1, "relative_buckets": 32, "relative_distance": 128}


def esm(path: Path, config: Config) -> Fields:
    """Return the fields of ESM-2 (rotations) and ESM-1b (learned positions)."""
    for name in ("is_folding_model", "add_cross_attention"):
        require(path, config, name, False, "only the encoder of protein sequences is supported")
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
    require(path, config, "scale_attn_weights", True, "scores are divided by √K")
    require(path, config, "scale_attn_by_inverse_layer_idx", False, "all layers scale scores alike")
    require(
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
    require(path, config, "mlp_bias", bias, "attention and feed-forward network must both have biases or not")
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
    require(path, config, "classifier_activation", "gelu", "another activation is not supported")
    return {"activation": "gelu", "bias": config.get("classifier_bias", False)}


def _windows(path: Path, config: Config, local_base: float) -> Fields:
    """Return the fields of ModernBERT's local layers."""
    width = integer(path, {"local_attention": 128, **config}, "local_attention")
    config = {"global_attn_every_n_layers": 3, **config}
    fields = local_layers(
        path, config, "global_attn_every_n_layers", last=False, window=width, base=local_base
    )
    if fields:
        require(path, config, "sliding_window", width // 2, "it is half of local_attention")
    return fields


def local_layers(path: Path, config: Config, period: str, *, last: bool, window: int, base: float) -> Fields:
    """Return the fields of local layers, of which `layer_types` may tell another period.

    Args:
        path: Of config.json, for messages.
        config: Its content.
        period: The name of n, the period of layers that see everything, where there are no `layer_types`.
        last: Whether they are the last of n layers, n − 1, 2n − 1, …, not the first, 0, n, ….
        window: Its width.
        base: Of the rotations of local layers.
    """
    layers = integer(path, config, "num_hidden_layers")
    types, every = config.get("layer_types"), config.get(period)
    if isinstance(types, list):
        # The first layer that sees everything, after layer 0, tells the period; the pattern must hold.
        first = 0 if last else 1
        later = [
            number for number in range(first, layers) if types[number : number + 1] == ["full_attention"]
        ]
        every = later[0] + last if later else max(layers + last, 2)
    if not isinstance(every, int) or every < 1:
        raise CheckpointError(f"{path}: {period} must be at least 1, was {every!r}")
    place = every - 1 if last else 0
    pattern = [
        "full_attention" if number % every == place else "sliding_attention" for number in range(layers)
    ]
    if types is not None and types != pattern:
        which = "n - 1, 2n - 1" if last else "0, n, 2n"
        raise CheckpointError(
            f"{path}: layer_types must be 'full_attention' in layers {which}, … and 'sliding_attention' in "
            f"the others, was {types!r}"
        )
    if "sliding_attention" not in pattern:
        return {}
    return {"local_window": window, "global_every": every, "first_global": place, "local_rotary_base": base}


def _theta(path: Path, config: Config, kind: str) -> float:
    """Return the base of the rotations of one kind of ModernBERT's layers, from either format."""
    old, default = {
        "full_attention": ("global_rope_theta", 160_000.0),
        "sliding_attention": ("local_rope_theta", 10_000.0),
    }[kind]
    return theta_of(path, config, default, kind=kind, old=old)


def theta_of(
    path: Path, config: Config, default: float, *, kind: str | None = None, old: str = "rope_theta"
) -> float:
    """Return the base of rotations, from either format.

    Args:
        path: Of config.json, for messages.
        config: Its content.
        default: What it is where nothing is said.
        kind: The kind of layers, where kinds differ.
        old: Its name before `rope_parameters`.
    """
    scaling = config.get("rope_scaling")
    given = config.get("rope_parameters") or {}
    rope = given if kind is None or not isinstance(given, dict) else given.get(kind) or {}
    if scaling or not isinstance(rope, dict) or rope.get("rope_type", "default") != "default":
        raise CheckpointError(
            f"{path}: rope_type must be 'default' and rope_scaling absent, was {scaling or rope!r}: scaled "
            "rotations are not supported"
        )
    if kind is not None and any(name not in ("full_attention", "sliding_attention") for name in given):
        raise CheckpointError(f"{path}: rope_parameters must be given by type of layer, was {given!r}")
    theta = rope.get("rope_theta", config.get(old, default))
    if not isinstance(theta, int | float):
        raise CheckpointError(
            f"{path}: rope_theta{f' of {kind}' if kind else ''} must be a number, was {theta!r}"
        )
    return theta


def nomic_bert(path: Path, config: Config) -> Fields:
    """Return the fields of NomicBERT: BERT's blocks with rotations and a gated feed-forward network."""
    _require_head_width(path, config)
    for name, wanted in (
        *(("prenorm", False), ("use_rms_norm", False), ("parallel_block", False), ("causal", False)),
        *(("qkv_proj_bias", False), ("mlp_fc1_bias", False), ("mlp_fc2_bias", False)),
        *(("rotary_emb_fraction", 1.0), ("rotary_emb_interleaved", False), ("rotary_emb_scale_base", None)),
        *(("rotary_scaling_factor", None), ("moe_every_n_layers", 0), ("scale_attn_weights", True)),
    ):
        require(path, config, name, wanted, "another variant is not supported")
    if (act := config.get("hidden_act", "silu")) not in ("silu", "swiglu"):
        raise CheckpointError(f"{path}: hidden_act must be 'silu', or 'swiglu', was {act!r}")
    return {
        "embedding_norm": True,
        "bias": False,
        "gated": True,
        "activation": "silu",
        "rotary_base": theta_of(path, config, 1_000.0),
    }


def require(path: Path, config: Config, name: str, wanted: object, why: str) -> None:
    """Reject a value that is given and is another one than `wanted`."""
    if (value := config.get(name, wanted)) != wanted:
        raise CheckpointError(f"{path}: {name} must be {_shown(wanted)}, was {_shown(value)}: {why}")


def _shown(value: object) -> str:
    """Show a value as JSON has it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _require_head_width(path: Path, config: Config) -> None:
    """Reject rotations of another width than a head's."""
    width, heads = (integer(path, config, name) for name in ("hidden_size", "num_attention_heads"))
    if heads > 0:
        require(path, config, "head_dim", width // heads, "rotations are as wide as a head")
