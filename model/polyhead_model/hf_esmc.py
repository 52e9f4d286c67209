"""ESM-C, an encoder of proteins (EvolutionaryScale 2024), as transformers has it."""

from pathlib import Path

from polyhead_model.checkpoint_files import integer
from polyhead_model.hf_fields import Config, Fields, require, theta_of
from polyhead_model.hf_layout import DENSE_AND_OUT, GROUPED_LAYER, ClassifierDialect, Dialect


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
    layer_modules=GROUPED_LAYER,
    classifier=DENSE_AND_OUT,
    token_classifier=ClassifierDialect(dense=None, out="score", pooling=None),
    divides_results=lambda layers: (layers / 36) ** 0.5,
)
