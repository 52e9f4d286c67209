"""The configuration of an encoder: a frozen dataclass, validated on construction."""

from dataclasses import dataclass
from typing import Literal, get_args

Norm = Literal["post", "pre"]
Activation = Literal["gelu", "gelu_tanh", "relu"]
Pooling = Literal["mean", "cls", "max"]
CrossAttention = Literal["alone", "after_self"]


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The architecture of an encoder.

    Every field is a plain JSON value, so `EncoderConfig(**json.loads(text))` restores
    `json.dumps(dataclasses.asdict(config))`.

    Shape letters, here and everywhere in this package: B batch, T tokens, S tokens of the memory,
    D d_model, H heads, K head width, L layers, F feed-forward width.

    Raises:
        ValueError: A field is out of range, or contradicts another.
        TypeError: A field has the wrong type.
    """

    d_model: int
    """D, the width of every token's vector."""
    heads: int
    """H, the number of attention heads."""
    layers: int
    """L, the number of layers."""
    head_width: int | None = None
    """K, the width of one head; None means D / H."""
    feed_forward: int | None = None
    """F, the hidden width of a block's feed-forward network.

    None makes attention-only layers, x → MultiHead(x): no residual, no norm, no feed-forward.
    """
    norm: Norm = "post"
    """Whether a block normalises after each residual sum (BERT) or before each sub-layer (GPT-2)."""
    activation: Activation = "gelu"
    """The activation of the feed-forward network: exact GELU, its tanh approximation, or ReLU."""
    bias: bool = True
    """Whether attention and feed-forward projections have biases."""
    fused: bool = False
    """Whether one W_qkv replaces W_q, W_k and W_v: the same numbers from one matrix product."""
    causal: bool = False
    """Whether token t sees only tokens 0 … t."""
    cross_attention: CrossAttention | None = None
    """Whether layers attend to a second sequence, `memory` [B, S, D].

    "alone" does so instead of attending to the own sequence; "after_self" does both in turn, as a
    transformer's decoder block.
    """
    mask_input: bool = False
    """Whether the exported graphs take a `mask` BOOL [B, T, T], and for cross-attention a `memory_mask`
    BOOL [B, T, S]; alone, that is the only one."""
    head_mask_input: bool = False
    """Whether the exported graphs take a `head_mask` FP32 [B, L, H], a factor on what each head gives."""
    dropout: float = 0.0
    """Probability of dropping an attention weight, in training only."""
    layer_norm_epsilon: float = 1e-12
    """Added to the variance in every layer norm."""
    vocabulary: int | None = None
    """Number of token ids; None makes an encoder of vectors x [B, T, D]."""
    positions: int | None = None
    """Number of learned positions, hence the largest T; None embeds no positions."""
    padding_id: int | None = None
    """The token id that is skipped when positions are counted, wherever it occurs (RoBERTa).

    It has a row of its own in the position table, before the others; None counts every token.
    """
    types: int = 0
    """Number of token types (BERT's sentence A and B); 0 embeds none."""
    embedding_norm: bool = False
    """Whether the sum of the embeddings goes through a layer norm (as in BERT)."""
    final_norm: bool = False
    """Whether there is a layer norm after the last layer (as in pre-norm encoders)."""
    pooling: Pooling | None = None
    """How token vectors are pooled into one vector per sequence; None gives no pooled output."""
    normalise: bool = False
    """Whether to scale pooled vectors to length 1."""

    def __post_init__(self) -> None:
        for name in ("d_model", "heads", "layers"):
            _require_positive(name, getattr(self, name))
        for name in ("head_width", "feed_forward", "vocabulary", "positions"):
            if getattr(self, name) is not None:
                _require_positive(name, getattr(self, name))
        if self.padding_id is not None:
            _require_integer("padding_id", self.padding_id)
        _require_integer("types", self.types)
        if self.types < 0:
            raise ValueError(f"types must be 0 or more, was {self.types}")
        for name in (
            "bias",
            "fused",
            "causal",
            "mask_input",
            "head_mask_input",
            "embedding_norm",
            "final_norm",
            "normalise",
        ):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be true or false, was {getattr(self, name)!r}")
        _require_choice("norm", self.norm, get_args(Norm))
        _require_choice("activation", self.activation, get_args(Activation))
        if self.cross_attention is not None:
            _require_choice("cross_attention", self.cross_attention, get_args(CrossAttention))
        if self.pooling is not None:
            _require_choice("pooling", self.pooling, get_args(Pooling))
        _require_number("dropout", self.dropout)
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must be at least 0 and below 1, was {self.dropout}")
        _require_number("layer_norm_epsilon", self.layer_norm_epsilon)
        if not 0.0 < self.layer_norm_epsilon < 1.0:
            raise ValueError(f"layer_norm_epsilon must be above 0 and below 1, was {self.layer_norm_epsilon}")
        self._check_combinations()

    def _check_combinations(self) -> None:
        """Reject fields that contradict each other, and fields that would silently have no effect."""
        if self.head_width is None and self.d_model % self.heads:
            raise ValueError(
                f"d_model ({self.d_model}) must be a multiple of heads ({self.heads}); "
                "give head_width for heads of another width"
            )
        if self.feed_forward is None and self.norm == "pre":
            raise ValueError(
                "norm must be 'post' when feed_forward is None (attention-only layers do not normalise), "
                "was 'pre'"
            )
        if self.vocabulary is None:
            for name in ("positions", "types", "embedding_norm"):
                if getattr(self, name):
                    raise ValueError(
                        f"{name} needs vocabulary: an encoder of vectors has no embeddings "
                        f"({name} was {getattr(self, name)!r})"
                    )
        if self.padding_id is not None:
            if self.vocabulary is None or self.positions is None:
                raise ValueError(
                    f"padding_id needs vocabulary and positions: it is left out when positions are counted "
                    f"(padding_id was {self.padding_id!r})"
                )
            if not 0 <= self.padding_id < self.vocabulary:
                raise ValueError(
                    f"padding_id must be between 0 and vocabulary - 1 ({self.vocabulary - 1}), "
                    f"was {self.padding_id}"
                )
        if self.normalise and self.pooling is None:
            raise ValueError("normalise needs pooling: it is the pooled vectors that are scaled to length 1")
        if self.cross_attention is not None:
            self._check_cross_attention(self.cross_attention)

    def _check_cross_attention(self, kind: CrossAttention) -> None:
        if self.vocabulary is not None:
            raise ValueError(
                "cross_attention needs an encoder of vectors: query and memory are vectors, so vocabulary "
                f"must be None, was {self.vocabulary!r}"
            )
        if kind == "alone":
            for name, why in (
                ("causal", "the tokens of two sequences have no common order"),
                ("fused", "queries are projected from another sequence than keys and values"),
            ):
                if getattr(self, name):
                    raise ValueError(f"{name} must be false where cross_attention is 'alone': {why}")
            return
        if self.feed_forward is None:
            raise ValueError("cross_attention 'after_self' makes decoder blocks, which need feed_forward")
        if self.head_mask_input:
            raise ValueError(
                "head_mask_input must be false where cross_attention is 'after_self': a layer has two "
                "attentions, and a head mask [B, L, H] does not say which it silences"
            )

    @property
    def head_size(self) -> int:
        """K: `head_width`, or D / H when that is None."""
        return self.head_width or self.d_model // self.heads

    @property
    def position_rows(self) -> int:
        """Rows of the position table: `positions`, and one for `padding_id` if given."""
        return (self.positions or 0) + (self.padding_id is not None)

    @property
    def main_input(self) -> str:
        """The name of the input that the output follows: `input_ids`, `query` or `x`."""
        if self.vocabulary is not None:
            return "input_ids"
        return "x" if self.cross_attention is None else "query"

    @property
    def inner_size(self) -> int:
        """H·K, the width of the concatenated heads; D unless `head_width` is given."""
        return self.heads * self.head_size


def _require_integer(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, was {value!r}")


def _require_positive(name: str, value: int) -> None:
    _require_integer(name, value)
    if value < 1:
        raise ValueError(f"{name} must be at least 1, was {value}")


def _require_number(name: str, value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, was {value!r}")


def _require_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, was {value!r}")
