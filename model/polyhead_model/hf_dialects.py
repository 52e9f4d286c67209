"""The dialects of Hugging Face checkpoints: how each `model_type` names sizes and tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from polyhead_model import hf_fields
from polyhead_model.task_heads import DenseActivation, Pooling


@dataclass(frozen=True, kw_only=True)
class Rows:
    """One of several matrices of ours that a checkpoint holds as one, below each other."""

    module: str
    part: int
    """Which of them, from 0."""
    of: int


Places = Mapping[str, str | Rows]
"""Our module → where it is in a checkpoint."""


def _fused(module: str, *ours: str) -> dict[str, Rows]:
    return {name: Rows(module=module, part=part, of=len(ours)) for part, name in enumerate(ours)}


_Q, _K, _V = "attention.w_q", "attention.w_k", "attention.w_v"

_BERT_FEED_FORWARD = {
    "feed_forward.up": "intermediate.dense",
    "feed_forward.down": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}
_BERT_LAYER = {
    _Q: "attention.self.query",
    _K: "attention.self.key",
    _V: "attention.self.value",
    "attention.w_o": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    **_BERT_FEED_FORWARD,
}
_BERT_EMBEDDINGS = {
    "embeddings.tokens": "embeddings.word_embeddings",
    "embeddings.positions": "embeddings.position_embeddings",
    "embeddings.types": "embeddings.token_type_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
}


@dataclass(frozen=True, kw_only=True)
class ClassifierDialect:
    """How a task head of a model type turns a pooled vector, or that of each token, into logits.

    Names of tensors are without the prefix of the encoder's.
    """

    dense: str | None
    """The name of a dense layer as wide as the encoder; None if there is none."""
    out: str
    """The name of the layer that gives the logits."""
    activation: DenseActivation = "tanh"
    """Of the dense layer."""
    norm: str | None = None
    """The name of a layer norm that follows it; None if there is none."""
    bias: bool = True
    """Whether the layer that gives the logits has a bias."""
    pooling: Pooling | None = "cls"
    """None = it is one of tokens."""
    fields: Callable[[Path, hf_fields.Config], hf_fields.Fields] | None = None
    """Reads what config.json says: `pooling`, and `activation` and `bias` of the dense layer."""

    @property
    def modules(self) -> Mapping[str, str]:
        """Our module → theirs."""
        modules = {
            "classifier.pooler.dense.0.linear": self.dense,
            "classifier.pooler.dense.0.norm": self.norm,
            "classifier.out": self.out,
        }
        return {ours: theirs for ours, theirs in modules.items() if theirs is not None}


_OF_TOKENS = ClassifierDialect(dense=None, out="classifier", pooling=None)


@dataclass(frozen=True, kw_only=True)
class MaskedLMDialect:
    """How a model type's `…ForMaskedLM` names its head, without the prefix of the encoder's tensors."""

    linear: str
    norm: str
    bias: str
    """The module of the logits' bias."""
    decoder: str
    """The module of the logits, whose matrix is that of the token embeddings."""

    @property
    def modules(self) -> Mapping[str, str]:
        """Our module → theirs."""
        return {"splade.linear": self.linear, "splade.norm": self.norm, "splade": self.bias}


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The dialect of one `model_type`."""

    prefix: str
    """The prefix of the encoder's tensors in a model with a task head."""
    # The names of these values in config.json:
    d_model: str = "hidden_size"
    heads: str = "num_attention_heads"
    layers: str = "num_hidden_layers"
    feed_forward: str | None = "intermediate_size"
    """None if `fields` gives it."""
    activation: str | None = "hidden_act"
    """None if it is always GELU."""
    layer_norm_epsilon: str | None = "layer_norm_eps"
    """None if config.json has no such value."""
    default_epsilon: float = 1e-12
    positions: str = "max_position_embeddings"
    types: bool = True
    """Whether the model has token types."""
    fields: Callable[[Path, hf_fields.Config], hf_fields.Fields] = hf_fields.bert
    """Reads what only this type has, as fields of `EncoderConfig`, and rejects what it cannot express."""
    modules: Places = field(default_factory=lambda: MappingProxyType(_BERT_EMBEDDINGS))
    """Our module outside layers → theirs."""
    layer_prefix: str = "encoder.layer."
    """The prefix of a layer's tensors, before its number."""
    layer_modules: Places
    """Our module within a layer → theirs."""
    classifier: ClassifierDialect
    """Of `…ForSequenceClassification`."""
    token_classifier: ClassifierDialect = _OF_TOKENS
    """Of `…ForTokenClassification`."""
    masked_lm: MaskedLMDialect | None = None
    """None if sparse vectors of it are not supported."""
    transposed: bool = False
    """Whether the matrices of layers are stored as [inputs, outputs], not as [outputs, inputs]."""
    frequencies: str | None = None
    """The name, or its end, of tensors with the angles of rotations."""
    contact_head: str | None = None
    """The module that predicts contacts from attention."""
    unused: tuple[str, ...] = ()
    """Patterns of names of tensors of the encoder that do not affect its outputs, beside those of all."""


_DENSE_AND_OUT = ClassifierDialect(dense="classifier.dense", out="classifier.out_proj")

_ROBERTA = Dialect(
    prefix="roberta.", layer_modules=_BERT_LAYER, fields=hf_fields.roberta, classifier=_DENSE_AND_OUT
)

DIALECTS: Mapping[str, Dialect] = {
    "albert": Dialect(
        prefix="albert.",
        fields=hf_fields.albert,
        modules={**_BERT_EMBEDDINGS, "embeddings.projection": "encoder.embedding_hidden_mapping_in"},
        layer_prefix="encoder.albert_layer_groups.0.albert_layers.",
        layer_modules={
            _Q: "attention.query",
            _K: "attention.key",
            _V: "attention.value",
            "attention.w_o": "attention.dense",
            "attention_norm": "attention.LayerNorm",
            "feed_forward.up": "ffn",
            "feed_forward.down": "ffn_output",
            "feed_forward_norm": "full_layer_layer_norm",
        },
        classifier=ClassifierDialect(dense="pooler", out="classifier"),
    ),
    "bert": Dialect(
        prefix="bert.",
        layer_modules=_BERT_LAYER,
        classifier=ClassifierDialect(dense="pooler.dense", out="classifier"),
        masked_lm=MaskedLMDialect(
            linear="cls.predictions.transform.dense",
            norm="cls.predictions.transform.LayerNorm",
            bias="cls.predictions",
            decoder="cls.predictions.decoder",
        ),
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
        layer_modules={
            _Q: "attention.q_lin",
            _K: "attention.k_lin",
            _V: "attention.v_lin",
            "attention.w_o": "attention.out_lin",
            "attention_norm": "sa_layer_norm",
            "feed_forward.up": "ffn.lin1",
            "feed_forward.down": "ffn.lin2",
            "feed_forward_norm": "output_layer_norm",
        },
        classifier=ClassifierDialect(dense="pre_classifier", activation="relu", out="classifier"),
        masked_lm=MaskedLMDialect(
            linear="vocab_transform",
            norm="vocab_layer_norm",
            bias="vocab_projector",
            decoder="vocab_projector",
        ),
    ),
    "electra": Dialect(
        prefix="electra.",
        fields=hf_fields.electra,
        modules={**_BERT_EMBEDDINGS, "embeddings.projection": "embeddings_project"},
        layer_modules=_BERT_LAYER,
        classifier=ClassifierDialect(dense="classifier.dense", activation="gelu", out="classifier.out_proj"),
    ),
    "esm": Dialect(
        prefix="esm.",
        activation=None,
        types=False,
        fields=hf_fields.esm,
        modules={
            "embeddings.tokens": "embeddings.word_embeddings",
            "embeddings.positions": "embeddings.position_embeddings",
            "embeddings.norm": "embeddings.layer_norm",
            "final_norm": "encoder.emb_layer_norm_after",
        },
        layer_modules={
            **_BERT_LAYER,
            "attention_norm": "attention.LayerNorm",
            "feed_forward_norm": "LayerNorm",
        },
        classifier=_DENSE_AND_OUT,
        frequencies="rotary_embeddings.inv_freq",
        contact_head="contact_head.regression",
        # Checkpoints with rotations may have a position table nevertheless.
        unused=(r"contact_head\.", r"embeddings\.position_embeddings\.weight", r".*\.inv_freq"),
    ),
    "gpt2": Dialect(
        prefix="transformer.",
        d_model="n_embd",
        heads="n_head",
        layers="n_layer",
        feed_forward=None,
        activation="activation_function",
        layer_norm_epsilon="layer_norm_epsilon",
        default_epsilon=1e-5,
        positions="n_positions",
        types=False,
        fields=hf_fields.gpt2,
        modules={"embeddings.tokens": "wte", "embeddings.positions": "wpe", "final_norm": "ln_f"},
        layer_prefix="h.",
        layer_modules={
            **_fused("attn.c_attn", _Q, _K, _V),
            "attention.w_o": "attn.c_proj",
            "attention_norm": "ln_1",
            "feed_forward.up": "mlp.c_fc",
            "feed_forward.down": "mlp.c_proj",
            "feed_forward_norm": "ln_2",
        },
        classifier=ClassifierDialect(dense=None, out="score", bias=False, pooling="last"),
        transposed=True,
        unused=(r"h\.\d+\.attn\.(masked_)?bias",),
    ),
    "modernbert": Dialect(
        prefix="model.",
        activation="hidden_activation",
        layer_norm_epsilon="norm_eps",
        default_epsilon=1e-5,
        types=False,
        fields=hf_fields.modernbert,
        modules={
            "embeddings.tokens": "embeddings.tok_embeddings",
            "embeddings.norm": "embeddings.norm",
            "final_norm": "final_norm",
        },
        layer_prefix="layers.",
        layer_modules={
            **_fused("attn.Wqkv", _Q, _K, _V),
            "attention.w_o": "attn.Wo",
            "attention_norm": "attn_norm",
            **_fused("mlp.Wi", "feed_forward.gate", "feed_forward.up"),
            "feed_forward.down": "mlp.Wo",
            "feed_forward_norm": "mlp_norm",
        },
        classifier=ClassifierDialect(
            dense="head.dense", norm="head.norm", out="classifier", fields=hf_fields.modernbert_classifier
        ),
        token_classifier=ClassifierDialect(
            dense="head.dense",
            norm="head.norm",
            out="classifier",
            pooling=None,
            fields=hf_fields.modernbert_head,
        ),
    ),
    "mpnet": Dialect(
        prefix="mpnet.",
        types=False,
        fields=hf_fields.mpnet,
        modules={**_BERT_EMBEDDINGS, "relative_bias.table": "encoder.relative_attention_bias"},
        layer_modules={
            _Q: "attention.attn.q",
            _K: "attention.attn.k",
            _V: "attention.attn.v",
            "attention.w_o": "attention.attn.o",
            "attention_norm": "attention.LayerNorm",
            **_BERT_FEED_FORWARD,
        },
        classifier=_DENSE_AND_OUT,
    ),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
}
"""The supported model types. Tests compare each with its implementation in `transformers`."""
