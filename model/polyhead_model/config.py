"""The configuration of an encoder: a frozen dataclass, validated on construction."""

import dataclasses
import inspect
import reprlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self, TypeVar, get_args

T = TypeVar("T")

Norm = Literal["post", "pre"]
Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]
Pooling = Literal["mean", "cls", "max", "last", "weighted_mean", "mean_sqrt_len"]
DenseActivation = Literal[
    "identity", "tanh", "relu", "gelu", "silu", "sigmoid", "elu", "leaky_relu", "mish", "softplus"
]
CrossAttention = Literal["alone", "after_self"]
ScoreActivation = Literal["softmax", "sigmoid", "identity"]

MOST_LAYERS = 10_000
"""Ten times the deepest encoders published. More is a mistake, which would take hours to find out."""

_INTEGERS_END = 2**63
"""No tensor has a larger axis, nor a graph larger integers; below it, costs remain in the range of floats."""

_SMALLEST, _LARGEST = 2.0**-126, 2.0**128 - 2.0**104
"""The normal numbers of fp32."""

_repr = reprlib.Repr()
_repr.maxlist = _repr.maxtuple = _repr.maxdict = 8
_repr.maxstring = _repr.maxother = 100

FARTHEST_DISTANCE = 2**20
"""More than any sequence is long. Each distance up to `relative_distance` takes memory."""


@dataclass(frozen=True, kw_only=True)
class Dense:
    """A layer on a pooled vector, or on those of tokens: activation(x W + b).

    Raises:
        ValueError: A field is out of range.
        TypeError: A field has the wrong type.
    """

    width: int
    """The width of its result."""
    activation: DenseActivation = "identity"
    bias: bool = True
    normalise: bool = False
    """Whether x is scaled to length 1 before."""
    norm: bool = False
    """Whether a layer norm follows, like those of the encoder."""
    norm_epsilon: float | None = None
    """Of a norm unlike those, which has a bias; None = as theirs."""

    def __post_init__(self) -> None:
        _require_positive("width", self.width)
        _require_choice("activation", self.activation, get_args(DenseActivation))
        for name in ("bias", "normalise", "norm"):
            _require_flag(name, getattr(self, name))
        if self.norm_epsilon is not None:
            _require_epsilon("norm_epsilon", self.norm_epsilon)
            if not self.norm:
                raise ValueError(f"norm_epsilon needs norm, was {self.norm_epsilon}")


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
        labels = self.labels
        if not isinstance(labels, list | tuple) or not all(isinstance(label, str) for label in labels):
            raise TypeError(f"labels must be strings, were {_shown(labels)}")
        if not labels:
            raise ValueError("labels must be at least one, were none")
        if len(set(labels)) < len(labels):
            twice = next(label for label, count in Counter(labels).items() if count > 1)
            raise ValueError(f"labels must differ, {_shown(twice)} was there twice")
        object.__setattr__(self, "labels", tuple(labels))
        if self.pooling is not None:
            _require_choice("pooling", self.pooling, get_args(Pooling))
        object.__setattr__(self, "dense", _read_dense(self.dense))
        _require_flag("bias", self.bias)
        _require_integer("padding_id", self.padding_id, optional=True)
        if self.padding_id is not None and self.pooling != "last":
            raise ValueError(f"padding_id needs the pooling 'last', was {self.padding_id}")
        for name in ("scores", "activation"):
            if (value := getattr(self, name)) is not None:
                _require_choice(name, value, get_args(ScoreActivation))
                if self.pooling is None:
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
        _require_choice("pooling", self.pooling, ("max", "sum"))
        _require_flag("log_twice", self.log_twice)


@dataclass(frozen=True, kw_only=True)
class LexicalWeights:
    """A head that weighs each token of a text: a token id's weight is the largest of its tokens' (BGE-M3).

    Raises:
        TypeError: A field has the wrong type.
    """

    skipped_ids: tuple[int, ...] = ()
    """The token ids without weight, such as those of special tokens."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "skipped_ids", _read_ids("skipped_ids", self.skipped_ids))


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
        if not isinstance(self.weights, list | tuple):
            raise TypeError(f"weights must be numbers, was {_shown(self.weights)}")
        object.__setattr__(self, "weights", tuple(self.weights))
        for name, value in (*(("weights", each) for each in self.weights), ("bias", self.bias)):
            _require_number(name, value)
        _require_integer("end_id", self.end_id)

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
    skipped_ids: tuple[int, ...] = ()
    """The token ids that are not compared in documents, such as those of punctuation."""
    skips_first: bool = False
    """Whether the vector of the first token is zero, and not compared in documents."""
    expansion_id: int | None = None
    """The token id that queries are filled up with; at the end of a sequence, no token attends to it.

    None = there is none, or it is attended to as any other.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "dense", _read_dense(self.dense))
        object.__setattr__(self, "skipped_ids", _read_ids("skipped_ids", self.skipped_ids))
        _require_flag("skips_first", self.skips_first)
        _require_integer("expansion_id", self.expansion_id, optional=True)


@dataclass(frozen=True, kw_only=True, repr=False)
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
    shared_layers: bool = False
    """Whether all L layers are one layer, applied L times (ALBERT)."""
    bias: bool = True
    """Whether attention and feed-forward projections have biases."""
    fused: bool = False
    """Whether one W_qkv replaces W_q, W_k and W_v: the same numbers from one matrix product."""
    causal: bool = False
    """Whether token t sees only tokens 0 … t."""
    local_window: int | None = None
    """In local layers, a token sees only those at most local_window // 2 away; None = there are none."""
    global_every: int | None = None
    """n: layers 0, n, 2n, … see all tokens, the others are local; None = with a window, all are local."""
    rotary_base: float | None = None
    """Queries and keys are rotated by the angles position · base^(−2i/K) (RoPE); None = they are not."""
    local_rotary_base: float | None = None
    """The base in local layers; None means `rotary_base`."""
    rotary_frequencies: tuple[float, ...] | None = None
    """The K/2 angles of one position where they are not exactly base^(−2i/K): early ones of ESM-2 were
    rounded."""
    relative_buckets: int | None = None
    """Number of buckets of relative positions, each with a learned bias of every head's scores.

    The table is shared by all layers (T5, MPNet); None = there is none.
    """
    relative_distance: int | None = None
    """The distance from which on all keys are in the same bucket."""
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
    """Added to the variance in every layer norm, unless it has an epsilon of its own."""
    vocabulary: int | None = None
    """Number of token ids; None makes an encoder of vectors x [B, T, D]."""
    embedding_width: int | None = None
    """The width of the embeddings, which a projection then brings to D (ALBERT); None = D, unprojected."""
    positions: int | None = None
    """Number of positions, hence the largest T: of learned embeddings, or merely a limit if `rotary_base`
    is given; None embeds no positions."""
    padding_id: int | None = None
    """The token id that is skipped when positions are counted, wherever it occurs (RoBERTa).

    It has a row of its own in the position table, before the others; None counts every token.
    """
    token_dropout_id: int | None = None
    """The token id whose embedding is zero, while the others of its sequence are scaled up for it.

    The factor is 0.88 T / (T − n) for n such tokens: ESM trained with 12 % of all tokens masked this way.
    """
    types: int = 0
    """Number of token types (BERT's sentence A and B); 0 embeds none."""
    embedding_norm: bool = False
    """Whether the sum of the embeddings goes through a layer norm (as in BERT)."""
    final_norm: bool = False
    """Whether there is a layer norm after the last layer (as in pre-norm encoders)."""
    final_norm_epsilon: float | None = None
    """Added to the variance in that one; None means `layer_norm_epsilon`."""
    pooling: Pooling | None = None
    """How token vectors are pooled into one vector per sequence; None gives no pooled output."""
    dense: tuple[Dense, ...] = ()
    """The dense layers that pooled vectors go through, in order."""
    normalise: bool = False
    """Whether to scale pooled vectors to length 1, after the dense layers."""
    truncate_dim: int | None = None
    """How many of the first dimensions of pooled vectors are left, not scaled again; None = all."""
    matryoshka: tuple[int, ...] | None = None
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

    def __repr__(self) -> str:
        """Show the fields that are not as by default; they make an equal one, but for a contact head."""
        values = {
            field.name: (getattr(self, field.name), field.default) for field in dataclasses.fields(self)
        }
        shown = (f"{name}={value!r}" for name, (value, default) in values.items() if value != default)
        return f"EncoderConfig({', '.join(shown)})"

    def __post_init__(self) -> None:
        for name in ("d_model", "heads", "layers"):
            _require_positive(name, getattr(self, name))
        if self.layers > MOST_LAYERS:
            raise ValueError(f"layers must be at most {MOST_LAYERS:,}, was {self.layers:,}")
        for name in (
            "head_width",
            "feed_forward",
            "local_window",
            "global_every",
            "relative_buckets",
            "relative_distance",
            "vocabulary",
            "embedding_width",
            "positions",
            "truncate_dim",
        ):
            _require_positive(name, getattr(self, name), optional=True)
        for name in ("padding_id", "token_dropout_id"):
            _require_integer(name, getattr(self, name), optional=True)
        _require_integer("types", self.types)
        if self.types < 0:
            raise ValueError(f"types must be 0 or more, was {self.types}")
        for name in (
            "first_attention_norm",
            "norm_bias",
            "gated",
            "shared_layers",
            "bias",
            "fused",
            "causal",
            "mask_input",
            "head_mask_input",
            "embedding_norm",
            "final_norm",
            "normalise",
        ):
            _require_flag(name, getattr(self, name))
        _require_choice("norm", self.norm, get_args(Norm))
        _require_choice("activation", self.activation, get_args(Activation))
        if self.cross_attention is not None:
            _require_choice("cross_attention", self.cross_attention, get_args(CrossAttention))
        if self.pooling is not None:
            _require_choice("pooling", self.pooling, get_args(Pooling))
        self._read_parts()
        _require_number("dropout", self.dropout)
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must be at least 0 and below 1, was {self.dropout}")
        self._check_norms()
        self._check_combinations()
        self._check_layers()
        self._check_rotations()
        self._check_relative_positions()
        self._check_embeddings()
        self._check_classifier()
        self._check_contacts()
        self._check_truncation()
        self._check_matryoshka()
        self._check_token_vectors()
        self._check_words()
        if self.cross_attention is not None:
            self._check_cross_attention(self.cross_attention)

    def _check_norms(self) -> None:
        _require_epsilon("layer_norm_epsilon", self.layer_norm_epsilon)
        if self.final_norm_epsilon is not None:
            _require_epsilon("final_norm_epsilon", self.final_norm_epsilon)
            if not self.final_norm:
                raise ValueError(f"final_norm_epsilon needs final_norm, was {self.final_norm_epsilon}")

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

    def _read_parts(self) -> None:
        """Turn what JSON has of parts into them."""
        object.__setattr__(self, "dense", _read_dense(self.dense))
        for name, kind in (
            ("classifier", Classifier),
            ("contacts", ContactHead),
            ("splade", Splade),
            ("lexical", LexicalWeights),
            ("token_vectors", TokenVectors),
        ):
            if (part := getattr(self, name)) is not None:
                object.__setattr__(self, name, _as(name, part, kind))

    def _check_classifier(self) -> None:
        padding_id = None if self.classifier is None else self.classifier.padding_id
        if padding_id is not None and not 0 <= padding_id < (self.vocabulary or 0):
            raise ValueError(
                f"classifier: padding_id must be a token id (vocabulary {self.vocabulary}), was {padding_id}"
            )

    def _check_contacts(self) -> None:
        if (head := self.contacts) is None:
            return
        if self.vocabulary is None or not 0 <= head.end_id < self.vocabulary:
            raise ValueError(
                "contacts need an end_id among the token ids "
                f"(vocabulary {self.vocabulary}), was {head.end_id}"
            )
        if len(head.weights) != self.layers * self.heads:
            raise ValueError(
                f"contacts must have a weight for each of {self.layers} layers' {self.heads} heads, "
                f"had {len(head.weights)}"
            )

    def _check_truncation(self) -> None:
        if self.truncate_dim is None:
            return
        if self.pooling is None:
            raise ValueError("truncate_dim needs pooling: it is pooled vectors that are cut")
        width = self.dense[-1].width if self.dense else self.d_model
        if self.truncate_dim >= width:
            raise ValueError(
                f"truncate_dim must be below {width}, the width of pooled vectors, was {self.truncate_dim}"
            )

    def _check_matryoshka(self) -> None:
        if (widths := self.matryoshka) is None:
            return
        if not isinstance(widths, list | tuple):
            raise TypeError(f"matryoshka must be numbers of dimensions, was {_shown(widths)}")
        object.__setattr__(self, "matryoshka", tuple(widths))  # JSON has lists
        if self.pooling is None:
            raise ValueError("matryoshka needs pooling: it is pooled vectors that are cut")
        for width in widths:
            _require_positive("matryoshka", width)
            if width > self.pooled_size:
                raise ValueError(
                    f"matryoshka must be at most {self.pooled_size}, the width of pooled vectors, was {width}"
                )

    def _check_words(self) -> None:
        if self.splade is not None and (self.vocabulary is None or self.embedding_width is not None):
            raise ValueError("splade needs a vocabulary, with embeddings as wide as the encoder")
        if self.lexical is not None and (self.vocabulary is None or self.splade is not None):
            raise ValueError("lexical needs a vocabulary, and no splade, which weighs words otherwise")

    def _check_token_vectors(self) -> None:
        if (head := self.token_vectors) is None:
            return
        ids = (*head.skipped_ids, *([] if head.expansion_id is None else [head.expansion_id]))
        if self.vocabulary is None or not all(0 <= number < self.vocabulary for number in ids):
            raise ValueError(
                "token_vectors need an encoder of token ids, and skipped_ids and expansion_id among them "
                f"(vocabulary {self.vocabulary}), were {_shown(head.skipped_ids)} and {head.expansion_id}"
            )
        if self.causal and head.expansion_id is not None:
            raise ValueError(
                "token_vectors must have no expansion_id where causal is true: it is hidden then"
            )

    def _check_cross_attention(self, kind: CrossAttention) -> None:
        if self.vocabulary is not None:
            raise ValueError(
                "cross_attention needs an encoder of vectors: query and memory are vectors, so vocabulary "
                f"must be None, was {self.vocabulary!r}"
            )
        for name in ("rotary_base", "local_window", "relative_buckets"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name} must be None where there is cross_attention: the tokens of two sequences "
                    f"have no distance, was {getattr(self, name)!r}"
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

    def _check_layers(self) -> None:
        """Reject fields of layers that would have no effect, or contradict each other."""
        if self.feed_forward is None:
            for name in ("gated", "first_attention_norm"):
                if getattr(self, name) != type(self).__dataclass_fields__[name].default:
                    raise ValueError(
                        f"{name} needs feed_forward: attention-only layers have neither norms nor a "
                        f"feed-forward network ({name} was {getattr(self, name)!r})"
                    )
        if not self.first_attention_norm and (self.norm == "post" or self.shared_layers):
            raise ValueError(
                "first_attention_norm must be true unless norm is 'pre' and layers are not shared, was false"
            )
        if self.shared_layers and self.layers == 1:
            raise ValueError("shared_layers must be false for a single layer, was true")
        for name in ("global_every", "local_rotary_base"):
            if getattr(self, name) is not None and self.local_window is None:
                raise ValueError(
                    f"{name} needs local_window: without it no layer is local ({name} was "
                    f"{_shown(getattr(self, name))})"
                )
        if self.global_every == 1:
            raise ValueError("global_every must be at least 2, as otherwise no layer is local, was 1")

    def _check_rotations(self) -> None:
        """Check the fields of rotations, and against each other."""
        for name in ("rotary_base", "local_rotary_base"):
            if (base := getattr(self, name)) is not None:
                _require_number(name, base)
                if not base > 1.0:
                    raise ValueError(f"{name} must be above 1, was {base}")
        for name in ("local_rotary_base", "rotary_frequencies"):
            if getattr(self, name) is not None and self.rotary_base is None:
                raise ValueError(f"{name} needs rotary_base ({name} was {_shown(getattr(self, name))})")
        if self.rotary_base is not None and self.head_size % 2:
            raise ValueError(
                f"rotary_base needs an even head width, as columns are rotated in pairs, was {self.head_size}"
            )
        if self.rotary_frequencies is not None:
            if not isinstance(self.rotary_frequencies, list | tuple):
                raise TypeError(f"rotary_frequencies must be numbers, was {_shown(self.rotary_frequencies)}")
            object.__setattr__(self, "rotary_frequencies", tuple(self.rotary_frequencies))  # JSON has lists
            for frequency in self.rotary_frequencies:
                _require_number("rotary_frequencies", frequency)
            if len(self.rotary_frequencies) != self.head_size // 2 or self.local_rotary_base is not None:
                raise ValueError(
                    f"rotary_frequencies must be half the head width, {self.head_size // 2}, without "
                    f"local_rotary_base, were {len(self.rotary_frequencies)}"
                )

    def _check_relative_positions(self) -> None:
        """Check the fields of relative positions against each other."""
        buckets, distance = self.relative_buckets, self.relative_distance
        if (buckets is None) != (distance is None):
            raise ValueError(
                "relative_buckets and relative_distance must be given together, "
                f"were {buckets} and {distance}"
            )
        if buckets is not None and distance is not None:
            if buckets % 2 or buckets < 4:
                raise ValueError(
                    f"relative_buckets must be even and at least 4: half of them are for keys after the "
                    f"query, was {buckets}"
                )
            if distance <= buckets // 4:
                raise ValueError(
                    f"relative_distance must be above relative_buckets // 4 ({buckets // 4}), as that many "
                    f"distances have a bucket of their own, was {distance}"
                )
            if distance > FARTHEST_DISTANCE:
                raise ValueError(f"relative_distance must be at most {FARTHEST_DISTANCE:,}, was {distance:,}")

    def _check_embeddings(self) -> None:
        """Check the fields of embeddings against each other, and against the vocabulary."""
        if self.vocabulary is None:
            for name in ("positions", "types", "embedding_norm", "embedding_width"):
                if getattr(self, name) and not (name == "positions" and self.rotary_base is not None):
                    raise ValueError(
                        f"{name} needs vocabulary: an encoder of vectors has no embeddings "
                        f"({name} was {getattr(self, name)!r})"
                    )
        if self.padding_id is not None and not self.position_rows:
            raise ValueError(
                f"padding_id needs vocabulary and positions, without rotary_base: it is left out when "
                f"positions are counted (padding_id was {self.padding_id!r})"
            )
        for name in ("padding_id", "token_dropout_id"):
            if (number := getattr(self, name)) is None:
                continue
            if self.vocabulary is None:
                raise ValueError(
                    f"{name} needs vocabulary: an encoder of vectors has no token ids ({name} was {number!r})"
                )
            if not 0 <= number < self.vocabulary:
                raise ValueError(
                    f"{name} must be between 0 and vocabulary - 1 ({self.vocabulary - 1}), was {number}"
                )
        if self.pooling is None:
            if self.normalise:
                raise ValueError("normalise needs pooling: it is pooled vectors that are scaled to length 1")
            if self.dense:
                raise ValueError("dense needs pooling: it is pooled vectors that go through dense layers")

    def is_local(self, layer: int) -> bool:
        """Return whether a layer's tokens see only those within `local_window`."""
        return self.local_window is not None and (self.global_every is None or layer % self.global_every > 0)

    @property
    def head_size(self) -> int:
        """K: `head_width`, or D / H when that is None."""
        return self.head_width or self.d_model // self.heads

    @property
    def position_rows(self) -> int:
        """Rows of the position table: `positions`, and one for `padding_id` if given; 0 = there is none."""
        if self.vocabulary is None or self.positions is None or self.rotary_base is not None:
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

    def heads_of(self, layer: int) -> Sequence[int]:
        """Return the numbers of the heads of a layer: all H, or those that pruning left."""
        return range(self.heads) if self.kept_heads is None else self.kept_heads[layer]

    def of_layer(self, layer: int) -> Self:
        """Return the configuration whose H is the number of heads of one layer."""
        if self.kept_heads is None:
            return self
        heads = len(self.kept_heads[layer])
        return dataclasses.replace(
            self, heads=heads, head_width=self.head_size, kept_heads=None, contacts=None
        )

    def _check_kept_heads(self) -> None:
        kept = self.kept_heads
        if not isinstance(kept, list | tuple) or not all(isinstance(layer, list | tuple) for layer in kept):
            raise TypeError(f"kept_heads must list the heads of each layer, was {_shown(kept)}")
        # JSON has no tuples.
        object.__setattr__(self, "kept_heads", tuple(tuple(layer) for layer in kept))
        if len(kept) != self.layers:
            raise ValueError(
                f"kept_heads must have the heads of each of {self.layers} layers, has {len(kept)}"
            )
        for layer, numbers in enumerate(kept):
            for number in numbers:
                _require_integer(f"kept_heads[{layer}]", number)
            is_ascending = list(numbers) == sorted(set(numbers))
            if not numbers or not is_ascending or numbers[0] < 0 or numbers[-1] >= self.heads:
                raise ValueError(
                    f"kept_heads[{layer}] must be at least one head from 0 to {self.heads - 1}, ascending, "
                    f"was {_shown(list(numbers))}"
                )
        if all(len(numbers) == self.heads for numbers in kept):
            raise ValueError("kept_heads must lack a head; an encoder of which no head was pruned has None")
        if self.shared_layers and len(set(self.kept_heads or ())) > 1:
            raise ValueError("kept_heads must be the same in each layer where layers are shared")
        if self.cross_attention == "after_self":
            raise ValueError(
                "kept_heads must be None where cross_attention is 'after_self': a layer has two attentions"
            )


def _as(name: str, value: object, kind: type[T]) -> T:
    """Return a part of a configuration, which may be a JSON object."""
    if isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be an object, was {_shown(value)}")
    known = inspect.signature(kind).parameters
    for field in value:
        if field not in known:
            raise TypeError(f"{name}: there is no field {_shown(field)}, only {', '.join(known)}")
    if missing := [field for field, its in known.items() if its.default is its.empty and field not in value]:
        raise TypeError(f"{name}: {', '.join(missing)} must be given")
    try:
        return kind(**value)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{name}: {error}") from error


def _read_dense(layers: object) -> tuple[Dense, ...]:
    if not isinstance(layers, list | tuple):
        raise TypeError(f"dense must be a list of layers, was {_shown(layers)}")
    return tuple(_as(f"dense[{number}]", layer, Dense) for number, layer in enumerate(layers))


def _read_ids(name: str, ids: object) -> tuple[int, ...]:
    """Return token ids, ascending, each once."""
    if not isinstance(ids, list | tuple):
        raise TypeError(f"{name} must be integers, was {_shown(ids)}")
    for number in ids:
        _require_integer(name, number)
    return tuple(sorted(set(ids)))


def _require_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be true or false, was {_shown(value)}")


def _require_integer(name: str, value: object, *, optional: bool = False) -> None:
    if value is None and optional:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, was {_shown(value)}")
    if not -_INTEGERS_END <= value < _INTEGERS_END:
        raise ValueError(f"{name} must fit into 64 bits, was {_shown(value)}")


def _require_positive(name: str, value: int | None, *, optional: bool = False) -> None:
    _require_integer(name, value, optional=optional)
    if value is not None and value < 1:
        raise ValueError(f"{name} must be at least 1, was {value}")


def _require_number(name: str, value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, was {_shown(value)}")
    if not abs(value) <= _LARGEST:
        raise ValueError(f"{name} must be finite in fp32, was {_shown(value)}")


def _shown(value: object) -> str:
    """Show a value, however large it is; Python does not write integers of thousands of digits."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}" if value.bit_length() <= 64 else f"an integer of {value.bit_length()} bits"
    return _repr.repr(value)


def _require_epsilon(name: str, value: float) -> None:
    _require_number(name, value)
    if not _SMALLEST <= value < 1.0:
        raise ValueError(
            f"{name} must be at least {_SMALLEST:.2g}, the smallest that fp32 divides by, and below 1, "
            f"was {value}"
        )


def _require_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, was {_shown(value)}")
