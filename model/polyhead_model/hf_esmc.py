"""ESM-C, an encoder of proteins (EvolutionaryScale 2024), as transformers has it."""

from pathlib import Path

from polyhead_model.checkpoint_files import integer
from polyhead_model.hf_fields import Config, Fields, require, theta_of
from polyhead_model.hf_layout import QKV, ClassifierDialect, Dialect


def _fields(path: Path, config: Config) -> Fields:
    """Return the fields: layer norms first, and of queries and keys; rotations, SwiGLU."""
    width, heads = (integer(path, config, name) for name in ("hidden_size", "num_attention_heads"))
    bias = config.get("mlp_bias", False)
    why = "attention and feed-forward network must both have biases or not"
    require(path, {"attention_bias": False, **config}, "attention_bias", bias, why)
    for name, wanted, why in (
        ("num_key_value_heads", heads, "each head has keys and values of its own"),
        ("head_dim", width // max(heads, 1), "the norms of queries and keys are as wide as the encoder"),
        ("pruned_heads", {}, "the norms of queries and keys are of all heads together"),
    ):
        if config.get(name) is not None:
            require(path, config, name, wanted, why)
    return {
        "bias": bias,
        "gated": True,
        "norm": "pre",
        "final_norm": True,
        "final_norm_bias": False,
        "qk_layer_norm": True,
        "rotary_base": theta_of(path, config, 10_000.0),
    }


ESMC = Dialect(
    prefix="esmc.",
    layer_norm_epsilon=None,
    default_epsilon=1e-5,
    types=False,
    fields=_fields,
    modules={"embeddings.tokens": "embed_tokens", "final_norm": "norm"},
    layer_prefix="layers.",
    layer_modules={
        **{ours: f"self_attn.{theirs}_proj" for ours, theirs in zip(QKV, "qkv", strict=True)},
        "attention.q_norm": "self_attn.q_norm",
        "attention.k_norm": "self_attn.k_norm",
        "attention.w_o": "self_attn.o_proj",
        "attention_norm": "input_layernorm",
        "feed_forward.gate": "mlp.gate_proj",
        "feed_forward.up": "mlp.up_proj",
        "feed_forward.down": "mlp.down_proj",
        "feed_forward_norm": "post_attention_layernorm",
    },
    classifier=ClassifierDialect(dense="classifier.dense", out="classifier.out_proj"),
    token_classifier=ClassifierDialect(dense=None, out="score", pooling=None),
    divides_results=lambda layers: (layers / 36) ** 0.5,
)
