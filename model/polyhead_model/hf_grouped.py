"""What config.json says of encoders of today: RMS norms, rotations, gates, keys that several queries share.

As `polyhead_model.hf_fields`, each function reads every setting that changes its type's equations.
"""

from pathlib import Path

from polyhead_model.checkpoint_files import CheckpointError, integer
from polyhead_model.hf_fields import Config, Fields, local_layers, require, theta_of


def eurobert(path: Path, config: Config) -> Fields:
    """Return the fields of EuroBERT."""
    bias = config.get("mlp_bias", False)
    require(path, config, "attention_bias", bias, "attention and feed-forward network have biases or not")
    require(path, config, "clip_qkv", None, "queries, keys and values are not clipped")
    return _grouped(path, config) | {"bias": bias, "rotary_base": theta_of(path, config, 10_000.0)}


def eurobert_classifier(path: Path, config: Config) -> Fields:
    """Return how EuroBERT's classifier of sequences pools."""
    pooling = config.get("classifier_pooling", "late")
    if pooling not in ("bos", "mean", "late"):
        raise CheckpointError(f"{path}: classifier_pooling must be 'bos', 'mean' or 'late', was {pooling!r}")
    return {"pooling": "cls" if pooling == "bos" else "mean", "pools_logits": pooling == "late"}


def qwen3(path: Path, config: Config) -> Fields:
    """Return the fields of Qwen3: causal, with norms of queries and keys."""
    require(path, config, "attention_bias", False, "its feed-forward network has no biases either")
    layers = integer(path, config, "num_hidden_layers")
    every = ["full_attention"] * layers
    require(path, config, "layer_types", every, "all layers must see everything before a token")
    require(path, config, "use_sliding_window", False, "all layers must see everything before a token")
    base = theta_of(path, config, 10_000.0)
    return _grouped(path, config) | {"causal": True, "qk_norm": True, "rotary_base": base}


def gemma3(path: Path, config: Config) -> Fields:
    """Return the fields of Gemma 3's text model as an encoder (EmbeddingGemma): it sees both sides."""
    require(
        path,
        {"use_bidirectional_attention": False, **config},
        "use_bidirectional_attention",
        True,
        "causal Gemma is no encoder",
    )
    require(path, config, "attention_bias", False, "its feed-forward network has no biases either")
    require(path, config, "attn_logit_softcapping", None, "scores are not capped")
    width = integer(path, {"head_dim": 256, **config}, "head_dim")
    require(
        path,
        {"query_pre_attn_scalar": 256, **config},
        "query_pre_attn_scalar",
        width,
        "scores are divided by √K",
    )
    whole = theta_of(path, config, 1_000_000.0, kind="full_attention")
    local = theta_of(path, config, 10_000.0, kind="sliding_attention", old="rope_local_base_freq")
    period = "_sliding_window_pattern" if "_sliding_window_pattern" in config else "sliding_window_pattern"
    window = integer(path, {"sliding_window": 4096, **config}, "sliding_window")
    return _grouped(path, {"head_dim": width, **config}) | {
        "norm": "both",
        "qk_norm": True,
        "rotary_base": whole,
        **local_layers(path, {period: 6, **config}, period, last=True, window=window, base=local),
    }


def _grouped(path: Path, config: Config) -> Fields:
    """Return the fields that all have."""
    require(path, config, "pretraining_tp", 1, "products are not divided")
    width, heads = (integer(path, config, name) for name in ("hidden_size", "num_attention_heads"))
    groups = (
        heads if config.get("num_key_value_heads") is None else integer(path, config, "num_key_value_heads")
    )
    own = None if config.get("head_dim") is None else integer(path, config, "head_dim")
    return {
        "kv_heads": None if groups == heads else groups,
        "head_width": None if own is None or own * heads == width else own,
        "norm": "pre",
        "norm_type": "rms",
        "norm_bias": False,
        "final_norm": True,
        "gated": True,
        "bias": False,
    }
