"""The configuration of an encoder's attention."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from polyhead_model.field_checks import Natural, Positive, check_fields, shown

CrossAttention = Literal["alone", "after_self"]
ScoreTerm = Literal["c2p", "p2c"]

MOST_LAYERS = 10_000
"""Ten times the deepest encoders published. More is a mistake, which would take hours to find out."""

MOST_HEADS = 10_000
"""A hundred times GPT-3's. Heads are listed, so that more by mistake would take all memory."""

FARTHEST_DISTANCE = 2**20
"""More than any sequence is long. Each distance up to `relative_distance` takes memory."""


@dataclass(frozen=True, kw_only=True)
class Disentangled:
    """Scores of content with learned vectors of relative positions (He et al. 2021, "DeBERTa").

    All layers share the vectors, [2·span, D], and project each to a key p_k and a query p_q of every head.
    The score of query i and key j is (q_i · k_j + q_i · p_k(i − j) + p_q(i − j) · k_j) / √K.

    Raises:
        ValueError: A field is out of range, or contradicts another.
        TypeError: A field has the wrong type.
    """

    terms: tuple[ScoreTerm, ...]
    """Which of them are added: q_i · p_k is `c2p`, content to position, and p_q · k_j `p2c`."""
    span: Positive
    """Positions are numbered from −span to span − 1. Those further away have the number of the outermost."""
    distance: Positive | None = None
    """If given, numbers from span / 2 on stand for more and more positions each, up to this distance.

    None = each position has a number of its own.
    """
    shared: bool = False
    """Whether W_k and W_q project the vectors of positions, too; if not, each layer has matrices for them."""
    norm: bool = False
    """Whether the vectors go through a norm first."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.terms or len(set(self.terms)) < len(self.terms):
            raise ValueError(f"terms must be c2p, p2c or both, each once, were {shown(list(self.terms))}")
        if self.reach > FARTHEST_DISTANCE:
            name = "span" if self.distance is None else "distance"
            raise ValueError(f"{name} must be at most {FARTHEST_DISTANCE:,}, was {self.reach:,}")
        if self.distance is None:
            return
        if self.span % 2:
            raise ValueError(f"span must be even where there is a distance, was {self.span}")
        if self.distance <= self.span // 2 + 1:
            raise ValueError(
                f"distance must be above span / 2 + 1 ({self.span // 2 + 1}), as nearer positions have "
                f"numbers of their own, was {self.distance}"
            )

    @property
    def reach(self) -> int:
        """The distance from which on all positions have the same number."""
        return self.span if self.distance is None else self.distance


@dataclass(frozen=True, kw_only=True, repr=False)
class AttentionConfig:
    """The multi-head attention of an encoder's layers.

    Raises:
        ValueError: A field is out of range, or contradicts another.
        TypeError: A field has the wrong type.
    """

    d_model: Positive
    """D, the width of every token's vector."""
    heads: Positive
    """H, the number of attention heads; where some were pruned, the number before."""
    layers: Positive
    """L, the number of layers."""
    head_width: Positive | None = None
    """K, the width of one head; None means D / H."""
    kv_heads: Positive | None = None
    """G, the number of key and value heads; None means H.

    H / G query heads in a row share one: grouped queries (Ainslie et al. 2023), and with G = 1 multi-query
    attention (Shazeer 2019).
    """
    head_widths: tuple[tuple[Positive, ...], ...] | None = None
    """The width of each of the H heads in each layer; None = all heads are K wide.

    Each is computed K wide, the rest of it zero, so `head_width` must be the largest.
    """
    qk_norm: bool = False
    """Whether each head's queries and keys are divided by their root mean square, with learned factors [K]
    of all heads, before they are rotated."""
    qk_layer_norm: bool = False
    """Whether queries and keys go through layer norms over the columns of all their heads together, with
    learned factors [H·K] and [G·K], before they are rotated (ESM-C)."""
    kept_heads: tuple[tuple[int, ...], ...] | None = None
    """The heads that are left of the H in each layer, ascending, at least one; None = no head was pruned.

    A head keeps its number. The projections of a layer are as wide as its heads that are left. A head of keys
    and values is left as long as one of its query heads is.
    """
    bias: bool = True
    """Whether attention and feed-forward projections have biases."""
    fused: bool = False
    """Whether one W_qkv replaces W_q, W_k and W_v: the same numbers from one matrix product."""
    causal: bool = False
    """Whether token t sees only tokens 0 … t."""
    local_window: Positive | None = None
    """In local layers, a token sees only those at most local_window // 2 away; None = there are none."""
    global_every: Positive | None = None
    """n: every n-th layer sees all tokens, the others are local; None = with a window, all are local."""
    first_global: Natural = 0
    """The first of those layers, below n."""
    rotary_base: float | None = None
    """Queries and keys are rotated by the angles position · base^(−2i/K) (RoPE); None = they are not."""
    local_rotary_base: float | None = None
    """The base in local layers; None means `rotary_base`."""
    rotary_frequencies: tuple[float, ...] | None = None
    """The K/2 angles of one position where they are not exactly base^(−2i/K): early ones of ESM-2 were
    rounded."""
    relative_buckets: Positive | None = None
    """Number of buckets of relative positions, each with a learned bias of every head's scores.

    The table is shared by all layers (T5, MPNet); None = there is none.
    """
    relative_distance: Positive | None = None
    """The distance from which on all keys are in the same bucket."""
    disentangled: Disentangled | None = None
    """What else relative positions add to scores; None = nothing."""
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

    def __post_init__(self) -> None:
        check_fields(self)
        for name, count, most in (("layers", self.layers, MOST_LAYERS), ("heads", self.heads, MOST_HEADS)):
            if count > most:
                raise ValueError(f"{name} must be at most {most:,}, was {count:,}")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must be at least 0 and below 1, was {self.dropout}")
        if self.head_width is None and self.d_model % self.heads:
            raise ValueError(
                f"d_model ({self.d_model}) must be a multiple of heads ({self.heads}); "
                "give head_width for heads of another width"
            )
        if self.heads % self.groups:
            raise ValueError(
                f"kv_heads must divide heads ({self.heads}), as equally many queries share each, was "
                f"{self.groups}"
            )
        if self.kept_heads is not None:
            self._check_kept_heads(self.kept_heads)
        if self.head_widths is not None:
            self._check_head_widths(self.head_widths)
        if self.qk_layer_norm and (self.qk_norm or self.kept_heads is not None):
            name = "qk_norm" if self.qk_norm else "kept_heads"
            raise ValueError(
                f"{name} must be left out where qk_layer_norm is true, which normalises all heads together"
            )
        self._check_local_layers()
        self._check_rotations()
        self._check_relative_positions()
        if self.cross_attention is not None:
            self._check_cross_attention()

    def __repr__(self) -> str:
        """Show the fields that are not as by default; they make an equal one, but for a contact head."""
        given = self.given(*(field.name for field in fields(self)))
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in given)})"

    def given(self, *names: str) -> Iterator[tuple[str, Any]]:
        """Yield those of the named fields that are not as by default, with their values."""
        for field in fields(self):
            if field.name in names and (value := getattr(self, field.name)) != field.default:
                yield field.name, value

    def is_local(self, layer: int) -> bool:
        """Return whether a layer's tokens see only those within `local_window`."""
        if self.local_window is None or self.global_every is None:
            return self.local_window is not None
        return layer % self.global_every != self.first_global

    @property
    def head_size(self) -> int:
        """K: `head_width`, or D / H when that is None."""
        return self.head_width or self.d_model // self.heads

    @property
    def groups(self) -> int:
        """G: `kv_heads`, or H when that is None."""
        return self.kv_heads or self.heads

    @property
    def adds_to_scores(self) -> bool:
        """Whether relative positions add something to scores, which fused kernels take as a bias."""
        return self.relative_buckets is not None or self.disentangled is not None

    def heads_of(self, layer: int) -> Sequence[int]:
        """Return the numbers of the heads of a layer: all H, or those that pruning left."""
        return range(self.heads) if self.kept_heads is None else self.kept_heads[layer]

    def kv_heads_of(self, layer: int) -> Sequence[int]:
        """Return the number of the key and value head that each head of a layer attends with."""
        return [head * self.groups // self.heads for head in self.heads_of(layer)]

    def widths_of(self, layer: int) -> Sequence[int]:
        """Return the width of each head of a layer."""
        if self.head_widths is None:
            return [self.head_size] * len(self.heads_of(layer))
        return [self.head_widths[layer][head] for head in self.heads_of(layer)]

    def _check_kept_heads(self, kept: tuple[tuple[int, ...], ...]) -> None:
        if len(kept) != self.layers:
            raise ValueError(
                f"kept_heads must have the heads of each of {self.layers} layers, has {len(kept)}"
            )
        for layer, numbers in enumerate(kept):
            is_ascending = list(numbers) == sorted(set(numbers))
            if not numbers or not is_ascending or numbers[0] < 0 or numbers[-1] >= self.heads:
                raise ValueError(
                    f"kept_heads[{layer}] must be at least one head from 0 to {self.heads - 1}, ascending, "
                    f"was {shown(list(numbers))}"
                )
        if all(len(numbers) == self.heads for numbers in kept):
            raise ValueError("kept_heads must lack a head; an encoder of which no head was pruned has None")

    def _check_head_widths(self, widths: tuple[tuple[int, ...], ...]) -> None:
        if [len(each) for each in widths] != [self.heads] * self.layers:
            raise ValueError(
                f"head_widths must have the widths of {self.heads} heads for each of {self.layers} layers, "
                f"was {shown(list(map(list, widths)))}"
            )
        if (widest := max(map(max, widths))) != self.head_size:
            raise ValueError(
                f"head_width must be the largest of head_widths, {widest}, was {self.head_size}: each head "
                "is computed as wide as the widest"
            )
        for name, value in self.given("kv_heads", "rotary_base", "qk_norm", "qk_layer_norm"):
            raise ValueError(
                f"{name} must be left out where there are head_widths, was {shown(value)}: only heads of one "
                "width can share keys, and rotations and norms are of one width"
            )

    def _check_local_layers(self) -> None:
        if self.local_window is None:
            for name, value in self.given("global_every", "local_rotary_base"):
                raise ValueError(
                    f"{name} needs local_window: without it no layer is local ({name} was {shown(value)})"
                )
        if self.global_every == 1:
            raise ValueError("global_every must be at least 2, as otherwise no layer is local, was 1")
        if self.first_global and self.first_global >= (self.global_every or 1):
            raise ValueError(
                f"first_global must be below global_every ({self.global_every}), was {self.first_global}"
            )

    def _check_rotations(self) -> None:
        if self.rotary_base is None:
            for name, value in self.given("local_rotary_base", "rotary_frequencies"):
                raise ValueError(f"{name} needs rotary_base ({name} was {shown(value)})")
            return
        for name, base in self.given("rotary_base", "local_rotary_base"):
            if not base > 1.0:
                raise ValueError(f"{name} must be above 1, was {base}")
        if self.head_size % 2:
            raise ValueError(
                f"rotary_base needs an even head width, as columns are rotated in pairs, was {self.head_size}"
            )
        if (frequencies := self.rotary_frequencies) is not None and (
            len(frequencies) != self.head_size // 2 or self.local_rotary_base is not None
        ):
            raise ValueError(
                f"rotary_frequencies must be half the head width, {self.head_size // 2}, without "
                f"local_rotary_base, were {len(frequencies)}"
            )

    def _check_relative_positions(self) -> None:
        if self.disentangled is not None:
            for name, value in self.given(
                "kv_heads", "head_widths", "qk_norm", "qk_layer_norm", "rotary_base", "relative_buckets"
            ):
                raise ValueError(
                    f"{name} must be left out where there is disentangled, was {shown(value)}: it is not "
                    "defined for keys and queries of positions"
                )
        buckets, distance = self.relative_buckets, self.relative_distance
        if (buckets is None) != (distance is None):
            raise ValueError(
                "relative_buckets and relative_distance must be given together, "
                f"were {buckets} and {distance}"
            )
        if buckets is None or distance is None:
            return
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

    def _check_cross_attention(self) -> None:
        for name, value in self.given("rotary_base", "local_window", "relative_buckets", "disentangled"):
            raise ValueError(
                f"{name} must be None where there is cross_attention: the tokens of two sequences "
                f"have no distance, was {value!r}"
            )
        if self.cross_attention == "alone":
            for name, why in (
                ("causal", "the tokens of two sequences have no common order"),
                ("fused", "queries are projected from another sequence than keys and values"),
            ):
                if getattr(self, name):
                    raise ValueError(f"{name} must be false where cross_attention is 'alone': {why}")
            return
        if self.head_mask_input:
            raise ValueError(
                "head_mask_input must be false where cross_attention is 'after_self': a layer has two "
                "attentions, and a head mask [B, L, H] does not say which it silences"
            )
        if self.kept_heads is not None:
            raise ValueError(
                "kept_heads must be None where cross_attention is 'after_self': a layer has two attentions"
            )
