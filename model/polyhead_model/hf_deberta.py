"""The dialect of DeBERTa-v2 and v3, and what its config.json says, as `hf_fields` has that of others."""

from collections.abc import Mapping
from pathlib import Path

from polyhead_model.checkpoint_files import CheckpointError, choice, flag, integer
from polyhead_model.hf_fields import Config, Fields, require
from polyhead_model.hf_layout import BERT_EMBEDDINGS, BERT_LAYER, BERT_MASKED_LM, ClassifierDialect, Dialect
from polyhead_model.task_heads import DenseActivation

_TERMS = ("c2p", "p2c")

_ACTIVATIONS: Mapping[str, DenseActivation] = {
    "gelu": "gelu",
    "linear": "identity",
    "mish": "mish",
    "relu": "relu",
    "sigmoid": "sigmoid",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
"""Theirs → ours, of the pooler and of the convolution."""


def _fields(path: Path, config: Config) -> Fields:
    """Return the fields of DeBERTa."""
    require(path, config, "z_steps", 0, "the last layer is applied once")
    width, heads = (integer(path, config, name) for name in ("hidden_size", "num_attention_heads"))
    if heads > 0:
        why = "the output projection takes vectors as wide as the encoder"
        require(path, config, "attention_head_size", width // heads, why)
    narrow = integer(path, {"embedding_size": width, **config}, "embedding_size")
    return {
        "embedding_norm": True,
        "embedding_width": None if narrow == width else narrow,
        "projection_first": narrow != width,
        "position_embeddings": flag(path, config, "position_biased_input", default=True),
        "disentangled": _disentangled(path, config),
        "convolution": _convolution(path, config, width),
    }


def _disentangled(path: Path, config: Config) -> Fields | None:
    """Return the fields of `Disentangled`; None if relative positions add nothing to scores."""
    said = config.get("pos_att_type")
    terms = [each.strip() for each in said.lower().split("|")] if isinstance(said, str) else said or []
    terms = [each for each in terms if each != ""] if isinstance(terms, list) else [terms]
    if any(terms.count(each) > 1 or each not in _TERMS for each in terms):
        raise CheckpointError(f"{path}: pos_att_type must be some of {', '.join(_TERMS)}, was {said!r}")
    if not flag(path, config, "relative_attention", default=False):
        if terms:
            raise CheckpointError(
                f"{path}: pos_att_type must be empty where relative_attention is false, was {said!r}: scores "
                "would be divided as if it added something to them"
            )
        return None
    norms = str(config.get("norm_rel_ebd", "none")).lower()
    if norms not in ("none", "layer_norm"):
        raise CheckpointError(
            f"{path}: norm_rel_ebd must be 'layer_norm' or 'none', was {config['norm_rel_ebd']!r}"
        )
    distance = integer(path, {"max_relative_positions": -1, **config}, "max_relative_positions")
    if distance < 1:
        distance = integer(path, config, "max_position_embeddings")
    buckets = integer(path, {"position_buckets": -1, **config}, "position_buckets")
    if buckets > 0 and (buckets % 2 or distance <= buckets // 2 + 1):
        raise CheckpointError(
            f"{path}: position_buckets must be even, and below twice the relative positions ({distance}) "
            f"less two, was {buckets}"
        )
    shared = flag(path, config, "share_att_key", default=False)
    if not terms:
        return None
    return {
        "terms": terms,
        "span": buckets if buckets > 0 else distance,
        "distance": distance if buckets > 0 else None,
        "shared": shared,
        "norm": norms == "layer_norm",
    }


def _convolution(path: Path, config: Config, width: int) -> Fields | None:
    """Return the fields of `Convolution`; None if there is none."""
    size = integer(path, {"conv_kernel_size": 0, **config}, "conv_kernel_size")
    if size <= 0:
        return None
    if size % 2 == 0:
        raise CheckpointError(f"{path}: conv_kernel_size must be odd, was {size}")
    groups = integer(path, {"conv_groups": 1, **config}, "conv_groups")
    if groups < 1 or width % groups:
        raise CheckpointError(f"{path}: conv_groups must divide hidden_size ({width}), was {groups}")
    return {
        "width": size,
        "groups": groups,
        "activation": choice(path, {"conv_act": "tanh", **config}, "conv_act", _ACTIVATIONS),
    }


def _classifier_fields(path: Path, config: Config) -> Fields:
    """Return the activation of the dense layer, which must be as wide as the encoder."""
    width = integer(path, config, "hidden_size")
    require(path, config, "pooler_hidden_size", width, "the pooler reads a token's vector")
    given = {"pooler_hidden_act": "gelu", **config}
    return {"activation": choice(path, given, "pooler_hidden_act", _ACTIVATIONS)}


DEBERTA = Dialect(
    prefix="deberta.",
    default_epsilon=1e-7,
    fields=_fields,
    modules={
        **BERT_EMBEDDINGS,
        "embeddings.projection": "embeddings.embed_proj",
        "relative_positions.table": "encoder.rel_embeddings",
        "relative_positions.norm": "encoder.LayerNorm",
        "convolution.linear": "encoder.conv.conv",
        "convolution.norm": "encoder.conv.LayerNorm",
    },
    layer_modules={
        **BERT_LAYER,
        "attention.w_q": "attention.self.query_proj",
        "attention.w_k": "attention.self.key_proj",
        "attention.w_v": "attention.self.value_proj",
        "attention.w_pq": "attention.self.pos_query_proj",
        "attention.w_pk": "attention.self.pos_key_proj",
    },
    classifier=ClassifierDialect(dense="pooler.dense", out="classifier", fields=_classifier_fields),
    masked_lm=BERT_MASKED_LM,  # unless `legacy` is false
    # What the configuration may leave unread; v3's published weights have embeddings of positions.
    unused=(
        r"encoder\.rel_embeddings\.",
        r"encoder\.LayerNorm\.",
        r"embeddings\.position_embeddings\.",
    ),
)
