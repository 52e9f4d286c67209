"""What the tables of Hugging Face checkpoints hold, by model type. Needs no torch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyhead_model.checkpoint_files import CheckpointError
from polyhead_model.hf_dialects import DIALECTS

_FIELDS: Mapping[str, Any] = {
    "vocab_size": 40,
    "type_vocab_size": 2,
    "intermediate_size": 24,
    "head_dim": 4,
    "query_pre_attn_scalar": 4,
    "rope_theta": 100.0,
    "local_attention": 8,
    "sliding_window": 4,
    "global_attn_every_n_layers": 2,
    "sliding_window_pattern": 2,
    "use_bidirectional_attention": True,
}
"""What config.json of a type may have to say beside the sizes that its table names."""

_OWN: Mapping[str, Mapping[str, Any]] = {
    "albert": {"embedding_size": 6},
    "deberta-v2": {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 8,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
    },
    "electra": {"embedding_size": 16},
    "esm": {"pad_token_id": 1, "mask_token_id": 32},
    "eurobert": {"classifier_pooling": "bos"},
    "gemma3_text": {"head_dim": 6, "query_pre_attn_scalar": 6},
    "qwen3": {"head_dim": 6},
}
"""What only that of one type has to say, or what is another size there."""

_GROUPS = {"num_key_value_heads": 2}
"""Of types that have heads of keys and values for groups of queries."""

_POSITIONS = ("absolute", "rotary", "rope")
"""The values of `position_embedding_type`, where a type has several."""


@dataclass(frozen=True, kw_only=True)
class ModelType:
    """A model type that loads."""

    name: str
    """As config.json has it."""
    positions: tuple[str, ...]
    """How tokens get positions: `learned`, `rotations`, `relative`; several where checkpoints differ."""
    layers: tuple[str, ...]
    """What layers have beyond those of BERT."""
    heads: tuple[str, ...]
    """What the heads for tasks that load tell of: `texts` and `tokens` are classified, `words` weighed."""


def small_config(model_type: str, *, layers: int = 2) -> dict[str, Any]:
    """Return the config.json of a small encoder of a type.

    It has every field that the type's table asks for: 4 heads, 2 of keys and values where a type has groups.
    """
    dialect = DIALECTS[model_type]
    sizes = {
        dialect.d_model: 16,
        dialect.heads: 4,
        dialect.layers: layers,
        dialect.feed_forward: 24,
        dialect.positions: 140,
        dialect.activation: "silu" if "feed_forward.gate" in dialect.layer_modules else "gelu",
    }
    named = {name: size for name, size in sizes.items() if name is not None}
    config = {"model_type": model_type, **_FIELDS, **named, **_OWN.get(model_type, {})}
    try:
        dialect.fields(Path("config.json"), config | _GROUPS)
    except CheckpointError:
        return config
    return config | _GROUPS


def model_types() -> tuple[ModelType, ...]:
    """Return the model types that load, with what their tables say of a small encoder, by name."""
    return tuple(_described(name) for name in sorted(DIALECTS))


def _described(name: str) -> ModelType:
    dialect, read = DIALECTS[name], list(_variants(name))
    heads = ["texts", "tokens", *(["words"] if dialect.masked_lm is not None else [])]
    positions = dict.fromkeys(
        word
        for fields in read
        for word in _positions(fields, learned="embeddings.positions" in dialect.modules)
    )
    return ModelType(name=name, positions=tuple(positions), layers=_layers(read[0]), heads=tuple(heads))


def _variants(name: str) -> Iterator[Mapping[str, Any]]:
    """Yield the fields of the encoder for each way in which a checkpoint may have positions.

    Raises:
        CheckpointError: The type asks for a field that `small_config` does not have.
    """
    path, config = Path("config.json"), small_config(name)
    yield DIALECTS[name].fields(path, config)
    for positions in _POSITIONS:
        try:
            yield DIALECTS[name].fields(path, config | {"position_embedding_type": positions})
        except CheckpointError:
            continue


def _positions(fields: Mapping[str, Any], *, learned: bool) -> Iterator[str]:
    if fields.get("rotary_base") is not None:
        yield "rotations"
    elif learned and fields.get("position_embeddings", True):
        yield "learned"
    if any(fields.get(name) is not None for name in ("relative_buckets", "disentangled")):
        yield "relative"


def _layers(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return in words what layers have."""
    has = {
        "causal": fields.get("causal"),
        "windows": fields.get("local_window"),
        "K/V groups": fields.get("kv_heads"),
        "Q/K norms": fields.get("qk_norm") or fields.get("qk_layer_norm"),
        "norm first": fields.get("norm") == "pre",
        "norms around": fields.get("norm") == "both",
        "RMS norms": fields.get("norm_type") == "rms",
        "gated": fields.get("gated"),
        "shared layers": fields.get("shared_layers"),
    }
    return tuple(word for word, holds in has.items() if holds)
