"""The dialects of Hugging Face checkpoints: how each `model_type` names sizes and tensors."""

from collections.abc import Mapping
from dataclasses import dataclass

from polyhead_model.config import DenseActivation

_BERT_LAYER = {
    "attention.w_q": "attention.self.query",
    "attention.w_k": "attention.self.key",
    "attention.w_v": "attention.self.value",
    "attention.w_o": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward.up": "intermediate.dense",
    "feed_forward.down": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}
_DISTILBERT_LAYER = {
    "attention.w_q": "attention.q_lin",
    "attention.w_k": "attention.k_lin",
    "attention.w_v": "attention.v_lin",
    "attention.w_o": "attention.out_lin",
    "attention_norm": "sa_layer_norm",
    "feed_forward.up": "ffn.lin1",
    "feed_forward.down": "ffn.lin2",
    "feed_forward_norm": "output_layer_norm",
}
EMBEDDINGS: Mapping[str, str] = {
    "embeddings.tokens": "embeddings.word_embeddings",
    "embeddings.positions": "embeddings.position_embeddings",
    "embeddings.types": "embeddings.token_type_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
}
"""Our module → theirs, the same in every dialect."""


@dataclass(frozen=True, kw_only=True)
class ClassifierDialect:
    """How a model type's `…ForSequenceClassification` turns the first token's vector into logits."""

    dense: str
    """The name of its dense layer, as wide as the encoder; without the prefix of the encoder's tensors."""
    activation: DenseActivation
    """Of the dense layer."""
    out: str
    """The name of the layer that gives the logits."""


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The dialect of one `model_type`."""

    prefix: str
    """The prefix of the encoder's tensors in a model with a task head."""
    # The names of these values in config.json:
    d_model: str = "hidden_size"
    heads: str = "num_attention_heads"
    layers: str = "num_hidden_layers"
    feed_forward: str = "intermediate_size"
    activation: str = "hidden_act"
    layer_norm_epsilon: str | None = "layer_norm_eps"
    """None if config.json has no such value: 1e-12."""
    types: bool = True
    """Whether the model has token types."""
    padding_takes_no_position: bool = False
    """Whether padding has the position pad_token_id, and other tokens count from the next (RoBERTa)."""
    layer_prefix: str = "encoder.layer."
    """The prefix of a layer's tensors, before its number."""
    layer_modules: Mapping[str, str]
    """Our module within a layer → theirs."""
    classifier: ClassifierDialect


_ROBERTA = Dialect(
    prefix="roberta.",
    layer_modules=_BERT_LAYER,
    padding_takes_no_position=True,
    classifier=ClassifierDialect(dense="classifier.dense", activation="tanh", out="classifier.out_proj"),
)

DIALECTS: Mapping[str, Dialect] = {
    "bert": Dialect(
        prefix="bert.",
        layer_modules=_BERT_LAYER,
        classifier=ClassifierDialect(dense="pooler.dense", activation="tanh", out="classifier"),
    ),
    "camembert": _ROBERTA,
    "distilbert": Dialect(
        prefix="distilbert.",
        d_model="dim",
        heads="n_heads",
        layers="n_layers",
        feed_forward="hidden_dim",
        activation="activation",
        layer_norm_epsilon=None,
        types=False,
        layer_prefix="transformer.layer.",
        layer_modules=_DISTILBERT_LAYER,
        classifier=ClassifierDialect(dense="pre_classifier", activation="relu", out="classifier"),
    ),
    "electra": Dialect(
        prefix="electra.",
        layer_modules=_BERT_LAYER,
        classifier=ClassifierDialect(dense="classifier.dense", activation="gelu", out="classifier.out_proj"),
    ),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
}
"""The supported model types. Tests compare each with its implementation in `transformers`."""
