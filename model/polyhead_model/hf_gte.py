"""GTE's encoders: BERT with rotations, and a gated feed-forward network.

`new` is the model type of the folders that their authors publish (Zhang et al. 2024, "mGTE"), whose
`auto_map` names code of its own; `gte` is what transformers and others call it.
"""

from dataclasses import replace
from pathlib import Path

from polyhead_model.checkpoint_files import CheckpointError, integer
from polyhead_model.hf_fields import Config, Fields, require, theta_of
from polyhead_model.hf_layout import QKV, ClassifierDialect, Dialect, fused


def _fields(path: Path, config: Config) -> Fields:
    """Return the fields of both types."""
    for name, wanted, why in (
        ("layer_norm_type", "layer_norm", "the norm of the embeddings would be another one than of layers"),
        ("pack_qkv", True, "queries, keys and values are projected by one matrix"),
        ("logn_attention_scale", False, "scores do not depend on the length of a text"),
        ("logn_attention_clip1", False, "scores do not depend on the length of a text"),
    ):
        require(path, config, name, wanted, why)
    fields: Fields = {"embedding_norm": True, "gated": True, "up_bias": False}
    positions = config.get("position_embedding_type", "rope")
    if positions not in ("rope", "absolute"):
        raise CheckpointError(
            f"{path}: position_embedding_type must be 'rope' or 'absolute', was {positions!r}"
        )
    return fields if positions == "absolute" else fields | _rotations(path, config)


def _rotations(path: Path, config: Config) -> Fields:
    """Return the base of rotations, and their angles where they are scaled.

    As published, the base is multiplied by the factor, and all angles are divided by its root of order K/2.
    """
    scaling = config.get("rope_scaling")
    base = theta_of(path, {"rope_theta": None, **config, "rope_scaling": None}, 0.0)
    if not scaling:
        return {"rotary_base": base}
    kind = scaling.get("rope_type", scaling.get("type")) if isinstance(scaling, dict) else None
    if kind != "ntk" or scaling.get("mixed_b") is not None:
        raise CheckpointError(
            f"{path}: rope_scaling must be of the type 'ntk', without mixed_b, or left out, was {scaling!r}"
        )
    factor = scaling.get("factor")
    if not isinstance(factor, int | float) or not 1 <= factor < 2**20:
        raise CheckpointError(f"{path}: factor of rope_scaling must be a number from 1 on, was {factor!r}")
    width, heads = (integer(path, config, name) for name in ("hidden_size", "num_attention_heads"))
    width //= max(heads, 1)
    if not 1 < base < 2**64 or width < 2:  # which the encoder's configuration rejects
        return {"rotary_base": base}
    angles = [(base * factor) ** (-pair / width) / factor ** (2 / width) for pair in range(0, width, 2)]
    return {"rotary_base": float(base * factor), "rotary_frequencies": tuple(angles)}


NEW = Dialect(
    prefix="new.",
    fields=_fields,
    layer_modules={
        **fused("attention.qkv_proj", *QKV),
        "attention.w_o": "attention.o_proj",
        "attention_norm": "attn_ln",
        **fused("mlp.up_gate_proj", "feed_forward.up", "feed_forward.gate"),
        "feed_forward.down": "mlp.down_proj",
        "feed_forward_norm": "mlp_ln",
    },
    classifier=ClassifierDialect(dense="pooler.dense", out="classifier"),
    follows_code=True,
)

GTE = replace(NEW, prefix="gte.")
