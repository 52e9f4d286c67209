"""The configuration of an encoder: a frozen dataclass, validated on construction."""

import dataclasses
from dataclasses import dataclass
from typing import Literal, Self, get_args

Norm = Literal["post", "pre"]
Activation = Literal["gelu", "gelu_tanh", "relu"]
Pooling = Literal["mean", "cls", "max"]


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The architecture of an encoder.

    Every field is a plain JSON value, so `EncoderConfig(**json.loads(text))` restores
    `json.dumps(dataclasses.asdict(config))`.

    Shape letters, here and everywhere in this package: B batch, T tokens, D d_model, H heads,
    K head width, L layers, F feed-forward width.

    Raises:
        ValueError: A field is out of range, or contradicts another.
        TypeError: A field has the wrong type.
    """

    d_model: int
    """D, the width of every token's vector."""
    heads: int
    """H, the number of attention heads; where some were pruned, the number before."""
    layers: int
    """L, the number of layers."""
    head_width: int | None = None
    """K, the width of one head; None means D / H."""
    kept_heads: tuple[tuple[int, ...], ...] | None = None
    """The heads that are left of the H in each layer, ascending, at least one; None = no head was pruned.

    A head keeps its number. The projections of a layer are as wide as its heads that are left.
    """
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
    mask_input: bool = False
    """Whether the exported graphs take a `mask` BOOL [B, T, T]."""
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
        if self.kept_heads is not None:
            self._check_kept_heads()
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

    @property
    def head_size(self) -> int:
        """K: `head_width`, or D / H when that is None."""
        return self.head_width or self.d_model // self.heads

    @property
    def position_rows(self) -> int:
        """Rows of the position table: `positions`, and one for `padding_id` if given."""
        return (self.positions or 0) + (self.padding_id is not None)

    @property
    def inner_size(self) -> int:
        """H·K, the width of the concatenated heads; D unless `head_width` is given."""
        return self.heads * self.head_size

    def heads_of(self, layer: int) -> tuple[int, ...]:
        """Return the numbers of the heads of a layer: all H, or those that pruning left."""
        return tuple(range(self.heads)) if self.kept_heads is None else self.kept_heads[layer]

    def of_layer(self, layer: int) -> Self:
        """Return the configuration whose H is the number of heads of one layer."""
        if self.kept_heads is None:
            return self
        heads = len(self.kept_heads[layer])
        return dataclasses.replace(self, heads=heads, head_width=self.head_size, kept_heads=None)

    def _check_kept_heads(self) -> None:
        kept = self.kept_heads
        if not isinstance(kept, list | tuple) or not all(isinstance(layer, list | tuple) for layer in kept):
            raise TypeError(f"kept_heads must list the heads of each layer, was {kept!r}")
        # JSON has no tuples.
        object.__setattr__(self, "kept_heads", tuple(tuple(layer) for layer in kept))
        if len(kept) != self.layers:
            raise ValueError(
                f"kept_heads must have the heads of each of {self.layers} layers, has {len(kept)}"
            )
        for layer, numbers in enumerate(kept):
            for number in numbers:
                _require_integer(f"kept_heads[{layer}]", number)
            if not numbers or list(numbers) != sorted({*numbers} & {*range(self.heads)}):
                raise ValueError(
                    f"kept_heads[{layer}] must be at least one head from 0 to {self.heads - 1}, ascending, "
                    f"was {list(numbers)}"
                )
        if all(len(numbers) == self.heads for numbers in kept):
            raise ValueError("kept_heads must lack a head; an encoder of which no head was pruned has None")


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
