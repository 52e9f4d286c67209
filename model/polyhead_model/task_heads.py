"""The configuration of what reads vectors of tokens: a convolution, dense layers, and heads for tasks."""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from polyhead_model.field_checks import Epsilon, Ids, Positive, check_fields, shown

Pooling = Literal["mean", "cls", "max", "last", "weighted_mean", "mean_sqrt_len"]
DenseActivation = Literal[
    "identity", "tanh", "relu", "gelu", "silu", "sigmoid", "elu", "leaky_relu", "mish", "softplus"
]
ScoreActivation = Literal["softmax", "sigmoid", "identity"]


@dataclass(frozen=True, kw_only=True)
class Dense:
    """A layer on a pooled vector, or on those of tokens: activation(x W + b).

    Raises:
        ValueError: A field is out of range.
        TypeError: A field has the wrong type.
    """

    width: Positive
    """The width of its result."""
    activation: DenseActivation = "identity"
    bias: bool = True
    normalise: bool = False
    """Whether x is scaled to length 1 before."""
    norm: bool = False
    """Whether a layer norm follows, like those of the encoder."""
    norm_epsilon: Epsilon | None = None
    """Of a norm unlike those, which has a bias; None = as theirs."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.norm_epsilon is not None and not self.norm:
            raise ValueError(f"norm_epsilon needs norm, was {self.norm_epsilon}")


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """A convolution over tokens beside the first layer: norm(layer(x) + activation(conv(x))) (DeBERTa-v2).

    Raises:
        ValueError: A field is out of range.
        TypeError: A field has the wrong type.
    """

    width: Positive
    """How many tokens it reads for each, as many before as behind; odd."""
    activation: DenseActivation = "tanh"
    groups: Positive = 1
    """The number of parts of D columns, each of which is computed from the same part."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.width % 2 == 0:
            raise ValueError(f"width must be odd, was {self.width}")


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """A classifier of sequences, or of tokens: pooling, dense layers, and a logit for each label.

    Raises:
        ValueError: A field is out of range.
        TypeError: A field has the wrong type.
    """

    labels: tuple[str, ...]
    """The names of its C logits, in order."""
    pooling: Pooling | None = "cls"
    """How the token vectors are pooled that it reads; None = each token has logits of its own."""
    pools_logits: bool = False
    """Whether each token has logits of its own, which are pooled instead of its vector."""
    dense: tuple[Dense, ...] = ()
    bias: bool = True
    """Whether the last layer, which gives the logits, has a bias."""
    padding_id: int | None = None
    """With the pooling `last`, the token id that is passed by at the end of a sequence (GPT-2)."""
    scores: ScoreActivation | None = None
    """What makes scores of logits; None = the sigmoid of a single one, or the softmax of several."""
    activation: ScoreActivation | None = None
    """What the CrossEncoder of sentence-transformers makes of logits; None = nothing says so."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.labels:
            raise ValueError("labels must be at least one, were none")
        if len(set(self.labels)) < len(self.labels):
            twice = next(label for label, count in Counter(self.labels).items() if count > 1)
            raise ValueError(f"labels must differ, {shown(twice)} was there twice")
        if self.pools_logits and self.pooling != "mean":
            raise ValueError(f"pools_logits needs the pooling 'mean', was {self.pooling!r}")
        if self.padding_id is not None and self.pooling != "last":
            raise ValueError(f"padding_id needs the pooling 'last', was {self.padding_id}")
        for name in ("scores", "activation"):
            if (value := getattr(self, name)) is not None and self.pooling is None:
                raise ValueError(f"{name} must be None where tokens have logits, was {value!r}")

    @property
    def score_activation(self) -> ScoreActivation | None:
        """What makes scores of logits; None where these are of tokens."""
        if self.pooling is None:
            return None
        return self.scores or ("sigmoid" if len(self.labels) == 1 else "softmax")


@dataclass(frozen=True, kw_only=True)
class Splade:
    """The head of SPLADE: a masked language model's, whose logits become a weight for each word of a text.

    Raises:
        ValueError: A field is out of range.
        TypeError: A field has the wrong type.
    """

    pooling: Literal["max", "sum"] = "max"
    """How what tokens say of a word is pooled."""
    log_twice: bool = False
    """Whether it is log(1 + log(1 + relu(logit))), not log(1 + relu(logit))."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class LexicalWeights:
    """A head that weighs each token of a text: a token id's weight is the largest of its tokens' (BGE-M3).

    Raises:
        TypeError: A field has the wrong type.
    """

    skipped_ids: Ids = ()
    """The token ids without weight, such as those of special tokens."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True, repr=False)
class ContactHead:
    """A logistic regression on the attention of all heads, which predicts contacts in proteins (ESM).

    Raises:
        ValueError: A number is not finite.
        TypeError: A field has the wrong type.
    """

    weights: tuple[float, ...]
    """Of the L·H heads, layer by layer."""
    bias: float
    end_id: int
    """The token id that ends a sequence. Contacts are between tokens before it, the first left out."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __repr__(self) -> str:
        """Count the weights, which may be thousands."""
        return f"ContactHead({len(self.weights)} weights, bias={self.bias!r}, end_id={self.end_id!r})"


@dataclass(frozen=True, kw_only=True)
class TokenVectors:
    """The vectors of tokens that late interaction compares: dense layers, then scaled to length 1 (ColBERT).

    Raises:
        ValueError: A field is out of range.
        TypeError: A field has the wrong type.
    """

    dense: tuple[Dense, ...] = ()
    skipped_ids: Ids = ()
    """The token ids that are not compared in documents, such as those of punctuation."""
    skips_first: bool = False
    """Whether the vector of the first token is zero, and not compared in documents."""
    expansion_id: int | None = None
    """The token id that queries are filled up with; at the end of a sequence, no token attends to it.

    None = there is none, or it is attended to as any other.
    """

    def __post_init__(self) -> None:
        check_fields(self)
