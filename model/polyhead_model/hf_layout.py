"""How a type of Hugging Face checkpoints names sizes and tensors: what the tables of `hf_dialects` hold."""

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
    by_head: bool = False
    """Whether they are so within each head, which all have rows of their own."""
    pairs: bool = False
    """Whether rows 2i and 2i + 1 of a head are rotated together, which are ours i and i + K/2."""


Places = Mapping[str, str | Rows]
"""Our module → where it is in a checkpoint."""

QKV = ("attention.w_q", "attention.w_k", "attention.w_v")


def fused(module: str, *ours: str) -> dict[str, Rows]:
    """Return the places of matrices of ours that a checkpoint holds as one."""
    return {name: Rows(module=module, part=part, of=len(ours)) for part, name in enumerate(ours)}


BERT_EMBEDDINGS: Places = {
    "embeddings.tokens": "embeddings.word_embeddings",
    "embeddings.positions": "embeddings.position_embeddings",
    "embeddings.types": "embeddings.token_type_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
}
BERT_FEED_FORWARD: Places = {
    "feed_forward.up": "intermediate.dense",
    "feed_forward.down": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}
BERT_LAYER: Places = {
    "attention.w_q": "attention.self.query",
    "attention.w_k": "attention.self.key",
    "attention.w_v": "attention.self.value",
    "attention.w_o": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    **BERT_FEED_FORWARD,
}
GROUPED_LAYER: Places = {
    "attention.w_q": "self_attn.q_proj",
    "attention.w_k": "self_attn.k_proj",
    "attention.w_v": "self_attn.v_proj",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "attention.w_o": "self_attn.o_proj",
    "attention_norm": "input_layernorm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
    "feed_forward_norm": "post_attention_layernorm",
}
"""The layers of Llama's relatives, and of ESM-C."""


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
    """Reads what config.json says: `pooling`, `pools_logits`; `activation` and `bias` of the dense layer."""

    @property
    def modules(self) -> Mapping[str, str]:
        """Our module → theirs."""
        modules = {
            "classifier.pooler.dense.0.linear": self.dense,
            "classifier.pooler.dense.0.norm": self.norm,
            "classifier.out": self.out,
        }
        return {ours: theirs for ours, theirs in modules.items() if theirs is not None}


DENSE_AND_OUT = ClassifierDialect(dense="classifier.dense", out="classifier.out_proj")
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


BERT_MASKED_LM = MaskedLMDialect(
    linear="cls.predictions.transform.dense",
    norm="cls.predictions.transform.LayerNorm",
    bias="cls.predictions",
    decoder="cls.predictions.decoder",
)


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """What a checkpoint holds to adapt its matrices to tasks: W + B A · scale (LoRA: Hu et al. 2021)."""

    tasks: tuple[str, ...]
    """Their names, in the order in which the weights have their adapters."""
    rank: int
    """The width between A and B."""
    scale: float


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
    modules: Places = field(default_factory=lambda: MappingProxyType(BERT_EMBEDDINGS))
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
    language_model: str | None = None
    """The layer of `…ForCausalLM` that gives logits of words; None if rerankers with it are not supported."""
    transposed: bool = False
    """Whether the matrices of layers are stored as [inputs, outputs], not as [outputs, inputs]."""
    frequencies: str | None = None
    """The name, or its end, of tensors with the angles of rotations."""
    contact_head: str | None = None
    """The module that predicts contacts from attention."""
    norm_offset: float = 0.0
    """What is added to the weights of norms, which are stored without it."""
    scales_embeddings: bool = False
    """Whether embeddings of tokens are multiplied by √D."""
    divides_results: Callable[[int], float] | None = None
    """Returns, from L, what the results of attention and feed-forward network are divided by before they are
    added. Here W_o, W_down and their biases are."""
    follows_code: bool = False
    """Whether the equations are those of the code that published folders name (`auto_map`)."""
    published: Mapping[str, "Dialect"] = field(default_factory=dict)
    """Dialects of published folders with the same `model_type`, by the class that they name in `auto_map`."""
    adapters: Callable[[Path, hf_fields.Config], Adapters | None] | None = None
    """Reads which adapters for tasks there are."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Names in config.json of published folders, and what the same is called by transformers."""
    unused: tuple[str, ...] = ()
    """Patterns of names of tensors of the encoder that do not affect its outputs, beside those of all."""
