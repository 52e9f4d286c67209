"""NeoBERT as it is published (Le Breton et al. 2025), whose code is its own."""

from pathlib import Path

from polyhead_model.checkpoint_files import integer
from polyhead_model.hf_fields import Config, Fields, require
from polyhead_model.hf_layout import QKV, ClassifierDialect, Dialect, Rows, fused


def _fields(path: Path, config: Config) -> Fields:
    """Return the fields: RMS norms first, rotations, SwiGLU, no biases."""
    width, heads = (integer(path, config, name) for name in ("hidden_size", "num_attention_heads"))
    for name, wanted in (
        *(("dim_head", width // max(heads, 1)), ("rms_norm", True), ("rope", True), ("ngpt", False)),
        *(("hidden_act", "SwiGLU"), ("pruned_heads", {})),
    ):
        require(path, config, name, wanted, "another variant is not supported")
    # As many parameters as a network without a gate would have; a multiple of 8.
    gated = 2 * integer(path, config, "intermediate_size") // 3
    return {
        "feed_forward": -(-gated // 8) * 8,
        "activation": "silu",
        "gated": True,
        "bias": False,
        "norm": "pre",
        "norm_type": "rms",
        "norm_bias": False,
        "final_norm": True,
        "rotary_base": 10_000.0,
    }


NEOBERT = Dialect(
    prefix="model.",
    feed_forward=None,
    activation=None,
    layer_norm_epsilon="norm_eps",
    default_epsilon=1e-6,
    positions="max_length",
    types=False,
    fields=_fields,
    modules={"embeddings.tokens": "encoder", "final_norm": "layer_norm"},
    layer_prefix="transformer_encoder.",
    layer_modules={
        **{
            ours: Rows(module="qkv", part=part, of=3, by_head=True, pairs=part < 2)
            for part, ours in enumerate(QKV)
        },
        "attention.w_o": "wo",
        "attention_norm": "attention_norm",
        **fused("ffn.w12", "feed_forward.gate", "feed_forward.up"),
        "feed_forward.down": "ffn.w3",
        "feed_forward_norm": "ffn_norm",
    },
    classifier=ClassifierDialect(dense="dense", out="classifier"),
    token_classifier=ClassifierDialect(dense="dense", out="classifier", pooling=None),
    follows_code=True,
)
