"""The configuration of an encoder: a frozen dataclass, validated on construction."""

from dataclasses import dataclass
from typing import Literal

from polyhead_model.attention_config import AttentionConfig
from polyhead_model.field_checks import Epsilon, Natural, Positive
from polyhead_model.task_heads import (
    Classifier,
    ContactHead,
    Convolution,
    Dense,
    LexicalWeights,
    Pooling,
    Splade,
    TokenVectors,
)

Norm = Literal["post", "pre", "both"]
NormType = Literal["layer", "rms"]
Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]


@dataclass(frozen=True, kw_only=True, repr=False)
class EncoderConfig(AttentionConfig):
    """The architecture of an encoder: attention, the blocks around it, embeddings, pooling, heads for tasks.

    Every field is a plain JSON value, so `EncoderConfig(**json.loads(text))` restores
    `json.dumps(dataclasses.asdict(config))`.

    Shape letters, here and everywhere in this package: B batch, T tokens, S tokens of the memory,
    D d_model, H heads, G key and value heads, K head width, L layers, F feed-forward width.

    Raises:
        ValueError: A field is out of range, or contradicts another.
        TypeError: A field has the wrong type.
    """

    feed_forward: Positive | None = None
    """F, the hidden width of a block's feed-forward network.

    None makes attention-only layers, x → MultiHead(x): no residual, no norm, no feed-forward.
    """
    norm: Norm = "post"
    """Whether a block normalises after each residual sum (BERT), before each sub-layer (GPT-2), or before
    and behind it, within the residual (Gemma)."""
    norm_type: NormType = "layer"
    """Whether norms are layer norms, or divide by the root mean square (RMSNorm: Zhang & Sennrich 2019)."""
    first_attention_norm: bool = True
    """Whether the first layer of a pre-norm encoder has a norm before its attention.

    ModernBERT has none there, because the embeddings are normalised.
    """
    norm_bias: bool = True
    """Whether layer norms have biases."""
    activation: Activation = "gelu"
    """The activation of the feed-forward network: exact GELU, its tanh approximation, ReLU, or SiLU."""
    gated: bool = False
    """Whether the feed-forward network is gated: act(x W_gate) · (x W_up) in place of act(x W_up) (GeGLU)."""
    up_bias: bool = True
    """Whether W_up and W_gate have biases where `bias` gives the others one (GTE's have none)."""
    shared_layers: bool = False
    """Whether all L layers are one layer, applied L times (ALBERT)."""
    convolution: Convolution | None = None
    """A convolution beside the first layer; None = there is none."""
    layer_norm_epsilon: Epsilon = 1e-12
    """Added to the variance in every layer norm, unless it has an epsilon of its own."""
    vocabulary: Positive | None = None
    """Number of token ids; None makes an encoder of vectors x [B, T, D]."""
    embedding_width: Positive | None = None
    """The width of the embeddings, which a projection then brings to D (ALBERT); None = D, unprojected."""
    positions: Positive | None = None
    """Number of positions, hence the largest T: of learned embeddings, or merely a limit if `rotary_base`
    is given or `position_embeddings` is false; None embeds no positions."""
    position_embeddings: bool = True
    """Whether positions are embedded, where nothing else says that they are not."""
    padding_id: int | None = None
    """The token id that is skipped when positions are counted, wherever it occurs (RoBERTa).

    It has a row of its own in the position table, before the others; None counts every token.
    """
    token_dropout_id: int | None = None
    """The token id whose embedding is zero, while the others of its sequence are scaled up for it.

    The factor is 0.88 T / (T − n) for n such tokens: ESM trained with 12 % of all tokens masked this way.
    """
    types: Natural = 0
    """Number of token types (BERT's sentence A and B); 0 embeds none."""
    embedding_norm: bool = False
    """Whether the sum of the embeddings goes through a layer norm (as in BERT)."""
    projection_first: bool = False
    """Whether that norm follows the projection of narrow embeddings, which then has no bias (DeBERTa)."""
    final_norm: bool = False
    """Whether there is a layer norm after the last layer (as in pre-norm encoders)."""
    final_norm_epsilon: Epsilon | None = None
    """Added to the variance in that one; None means `layer_norm_epsilon`."""
    final_norm_bias: bool = True
    """Whether that one has a bias where `norm_bias` gives the others one (ESM-C's has none)."""
    pooling: Pooling | None = None
    """How token vectors are pooled into one vector per sequence; None gives no pooled output."""
    dense: tuple[Dense, ...] = ()
    """The dense layers that pooled vectors go through, in order."""
    normalise: bool = False
    """Whether to scale pooled vectors to length 1, after the dense layers."""
    truncate_dim: Positive | None = None
    """How many of the first dimensions of pooled vectors are left, not scaled again; None = all."""
    matryoshka: tuple[Positive, ...] | None = None
    """The numbers of dimensions to which pooled vectors were trained to be cut (Kusupati et al. 2022).

    Empty = any number; None = the encoder was not trained so, or nobody says.
    """
    classifier: Classifier | None = None
    """The classifier that gives logits for each sequence, or each token."""
    contacts: ContactHead | None = None
    """The regression that predicts contacts from attention; None = there is none."""
    splade: Splade | None = None
    """The head that weighs the words of the vocabulary; None = there is none."""
    lexical: LexicalWeights | None = None
    """The head that weighs the tokens of a text; None = there is none."""
    token_vectors: TokenVectors | None = None
    """The vectors of tokens for late interaction; None = there are none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_layers()
        if self.convolution is not None:
            self._check_convolution(self.convolution)
        self._check_embeddings()
        self._check_pooling()
        self._check_heads()

    def _check_layers(self) -> None:
        """Reject fields of layers that would have no effect, or contradict others."""
        if self.feed_forward is None:
            if self.norm != "post":
                raise ValueError(
                    "norm must be 'post' when feed_forward is None (attention-only layers do not normalise), "
                    f"was {self.norm!r}"
                )
            for name, value in self.given("gated", "up_bias", "first_attention_norm"):
                raise ValueError(
                    f"{name} needs feed_forward: attention-only layers have neither norms nor a "
                    f"feed-forward network ({name} was {value!r})"
                )
            if self.cross_attention == "after_self":
                raise ValueError("cross_attention 'after_self' makes decoder blocks, which need feed_forward")
        if not self.first_attention_norm and (self.norm != "pre" or self.shared_layers):
            raise ValueError(
                "first_attention_norm must be true unless norm is 'pre' and layers are not shared, was false"
            )
        if not (self.bias or self.up_bias):
            raise ValueError("up_bias must be true where bias is false, which leaves no biases, was false")
        if self.norm_type == "rms" and self.norm_bias:
            raise ValueError("norm_bias must be false where norm_type is 'rms', which has none, was true")
        if self.shared_layers and self.layers == 1:
            raise ValueError("shared_layers must be false for a single layer, was true")
        for name in ("kept_heads", "head_widths"):
            if self.shared_layers and len(set(getattr(self, name) or ())) > 1:
                raise ValueError(f"{name} must be the same in each layer where layers are shared")
        self._check_final_norm()

    def _check_final_norm(self) -> None:
        for name, value in self.given("final_norm_epsilon", "final_norm_bias"):
            if not self.final_norm:
                raise ValueError(f"{name} needs final_norm, was {value}")
        if not (self.norm_bias or self.final_norm_bias):
            raise ValueError(
                "final_norm_bias must be true where norm_bias is false, which leaves no biases, was false"
            )

    def _check_convolution(self, convolution: Convolution) -> None:
        if self.feed_forward is None or self.norm != "post" or self.causal or self.cross_attention:
            raise ValueError(
                "convolution needs blocks of self-attention with norm 'post' that see both sides of a token"
            )
        if self.d_model % convolution.groups:
            raise ValueError(
                f"convolution: groups must divide d_model ({self.d_model}), was {convolution.groups}"
            )

    def _check_embeddings(self) -> None:
        if self.vocabulary is None:
            for name, value in self.given("positions", "types", "embedding_norm", "embedding_width"):
                if name != "positions" or self.rotary_base is None:
                    raise ValueError(
                        f"{name} needs vocabulary: an encoder of vectors has no embeddings "
                        f"({name} was {value!r})"
                    )
        elif self.cross_attention is not None:
            raise ValueError(
                "cross_attention needs an encoder of vectors: query and memory are vectors, so vocabulary "
                f"must be None, was {self.vocabulary!r}"
            )
        if self.padding_id is not None and not self.position_rows:
            raise ValueError(
                f"padding_id needs vocabulary and embedded positions: it is left out when these are counted "
                f"(padding_id was {self.padding_id!r})"
            )
        if self.projection_first and not (self.embedding_norm and self.embedding_width):
            raise ValueError("projection_first needs embedding_norm and embedding_width, was true")
        self._check_ids("padding_id", self.padding_id)
        self._check_ids("token_dropout_id", self.token_dropout_id)

    def _check_pooling(self) -> None:
        for name, what in (
            ("normalise", "are scaled to length 1"),
            ("dense", "go through dense layers"),
            ("truncate_dim", "are cut"),
            ("matryoshka", "are cut"),
        ):
            if self.pooling is None and any(self.given(name)):
                raise ValueError(f"{name} needs pooling: it is pooled vectors that {what}")
        width = self.dense[-1].width if self.dense else self.d_model
        if self.truncate_dim is not None and self.truncate_dim >= width:
            raise ValueError(
                f"truncate_dim must be below {width}, the width of pooled vectors, was {self.truncate_dim}"
            )
        for cut in self.matryoshka or ():
            if cut > self.pooled_size:
                raise ValueError(
                    f"matryoshka must be at most {self.pooled_size}, the width of pooled vectors, was {cut}"
                )

    def _check_heads(self) -> None:
        """Check heads for tasks against the encoder that they read."""
        for name, _ in self.given("contacts", "splade", "lexical", "token_vectors"):
            if self.vocabulary is None:
                raise ValueError(f"{name} needs vocabulary: an encoder of vectors has no token ids")
        if self.classifier is not None:
            self._check_ids("classifier: padding_id", self.classifier.padding_id)
        if (contacts := self.contacts) is not None:
            self._check_ids("contacts: end_id", contacts.end_id)
            if len(contacts.weights) != self.layers * self.heads:
                raise ValueError(
                    f"contacts must have a weight for each of {self.layers} layers' {self.heads} heads, "
                    f"had {len(contacts.weights)}"
                )
        if self.splade is not None and self.embedding_width is not None:
            raise ValueError("splade needs embeddings as wide as the encoder: embedding_width must be None")
        if self.lexical is not None and self.splade is not None:
            raise ValueError("lexical must be None where there is splade, which weighs words otherwise")
        if (vectors := self.token_vectors) is not None:
            self._check_ids("token_vectors: skipped_ids", *vectors.skipped_ids)
            self._check_ids("token_vectors: expansion_id", vectors.expansion_id)
            if self.causal and vectors.expansion_id is not None:
                raise ValueError(
                    "token_vectors must have no expansion_id where causal is true: it is hidden then"
                )

    def _check_ids(self, name: str, *ids: int | None) -> None:
        """Reject what is no token id."""
        for number in ids:
            if number is None:
                continue
            if self.vocabulary is None:
                raise ValueError(
                    f"{name} needs vocabulary: an encoder of vectors has no token ids ({name} was {number!r})"
                )
            if not 0 <= number < self.vocabulary:
                raise ValueError(
                    f"{name} must be between 0 and vocabulary - 1 ({self.vocabulary - 1}), was {number}"
                )

    @property
    def position_rows(self) -> int:
        """Rows of the position table: `positions`, and one for `padding_id` if given; 0 = there is none."""
        if self.vocabulary is None or self.positions is None or self.rotary_base is not None:
            return 0
        if not self.position_embeddings:
            return 0
        return self.positions + (self.padding_id is not None)

    @property
    def embedding_size(self) -> int:
        """The width of the embeddings: `embedding_width`, or D when that is None."""
        return self.embedding_width or self.d_model

    @property
    def main_input(self) -> str:
        """The name of the input that the output follows: `input_ids`, `query` or `x`."""
        if self.vocabulary is not None:
            return "input_ids"
        return "x" if self.cross_attention is None else "query"

    @property
    def pooled_size(self) -> int:
        """P, the width of pooled vectors: D unless there are dense layers, or they are cut."""
        return self.truncate_dim or (self.dense[-1].width if self.dense else self.d_model)

    @property
    def token_vector_size(self) -> int:
        """The width of `token_vectors`: D unless there are dense layers."""
        dense = () if self.token_vectors is None else self.token_vectors.dense
        return dense[-1].width if dense else self.d_model

    @property
    def pooled_position(self) -> Literal["cls", "last"] | None:
        """Which token alone is pooled, for a classifier, too, of what a block of self-attention gives.

        None where others are, or other layers.
        """
        if self.feed_forward is None or self.cross_attention is not None:
            return None
        poolings = {self.pooling} - {None}
        if self.classifier is not None:
            if self.classifier.padding_id is not None and self.pooling is not None:
                return None  # they may be others
            poolings.add(self.classifier.pooling)
        one: tuple[Literal["cls"], Literal["last"]] = ("cls", "last")
        return next((each for each in one if poolings == {each}), None)
