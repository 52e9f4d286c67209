"""The encoder: embeddings for token ids, a stack of layers, pooling."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from polyhead_model import masks
from polyhead_model.attention import Attend, attend_explicitly
from polyhead_model.block import DecoderBlock, layer_of, norm_of
from polyhead_model.config import EncoderConfig
from polyhead_model.packing import Packed, Padded, TokenLayout
from polyhead_model.pooling import ClassifierHead, Pooler, TokenHead, last_positions
from polyhead_model.positions import RelativeBias, Rotation, in_fp32, rotary_frequencies, rotation_of
from polyhead_model.projections import FusibleModule
from polyhead_model.splade import LexicalHead, SpladeHead

Visit = Callable[[int, Tensor, TokenLayout], Tensor]
"""Called with a layer's number and its input x [B, T, D], laid out; returns what the layer gets instead."""


def pass_by(_layer: int, x: Tensor, _layout: TokenLayout) -> Tensor:
    """Return x; a `Visit`."""
    return x


class EncoderOutput(NamedTuple):
    """The result of an encoder.

    Shape letters: B batch, T tokens, S tokens of the memory, D d_model, H heads, L layers.
    """

    output: Tensor
    """[B, T, D], zero in padding; [B, 1, D] where only pooled tokens were asked for."""
    pooled: Tensor | None
    """[B, P], or None where the encoder does not pool; P is D unless there are dense layers."""
    attention: tuple[Tensor, ...] | None
    """L tensors [B, H, T, T], zero in the rows and columns of padding; None unless asked for.

    [B, H, T, S] where layers attend to the memory alone.
    """
    cross_attention: tuple[Tensor, ...] | None = None
    """Of decoder blocks, which attend to both: L tensors [B, H, T, S], likewise."""
    logits: Tensor | None = None
    """[B, C], a number for each label, or None where there is no classifier; [B, T, C], zero in padding, of a
    classifier of tokens."""
    token_vectors: Tensor | None = None
    """[B, T, V] of length 1, zero in padding; None where there are none, or only pooled tokens were asked
    for."""


class Embeddings(nn.Module):
    """The sum of token, position and type embeddings, with a norm and a projection where there are any."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        if config.vocabulary is None:
            raise ValueError("Embeddings need config.vocabulary; an encoder of vectors has none")
        width = config.embedding_size
        self.tokens = nn.Embedding(config.vocabulary, width)
        self.positions = nn.Embedding(config.position_rows, width) if config.position_rows else None
        self.padding_id = config.padding_id
        self.token_dropout_id = config.token_dropout_id
        self.types = nn.Embedding(config.types, width) if config.types else None
        self.norm = norm_of(config, width) if config.embedding_norm else None
        self.projection = nn.Linear(width, config.d_model) if config.embedding_width else None

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor | None = None,
        valid: Tensor | None = None,
        layout: TokenLayout | None = None,
    ) -> Tensor:
        """Embed ids as vectors.

        Args:
            input_ids: [B, T].
            token_type_ids: [B, T]; None = every token is of type 0.
            valid: Boolean [B, T], True = token; None = no padding.
            layout: Of the vectors; None = padded.

        Returns:
            [B, T, D], or as the layout has them.
        """
        layout = Padded() if layout is None else layout
        x: Tensor = self.tokens(layout.pack(input_ids))
        if self.token_dropout_id is not None:
            factors = dropout_factors(input_ids == self.token_dropout_id, valid)
            x = x * layout.pack(factors)[..., None].to(x.dtype)
        if self.types is not None:
            if token_type_ids is None:
                x = x + self.types.weight[0]
            else:
                x = x + self.types(layout.pack(token_type_ids))
        if self.positions is not None and self.padding_id is not None:
            counted = (input_ids != self.padding_id).to(torch.int64)
            x = x + self.positions(layout.pack(counted.cumsum(1) * counted))
        elif self.positions is not None:
            x = x + layout.at_positions(self.positions.weight[: input_ids.shape[1]])
        if self.norm is not None:
            x = self.norm(x)
        return x if self.projection is None else self.projection(x)


TRAINED_WITHOUT_MASK = torch.tensor(1 - 0.15 * 0.8, dtype=torch.float32).item()
"""The share of tokens that were not masked when ESM was trained, in the precision of fp32."""


def dropout_factors(dropped: Tensor, valid: Tensor | None) -> Tensor:
    """Return factors of embeddings: 0 for some, and for others as if as many were 0 as in training (ESM).

    Args:
        dropped: Boolean [B, T].
        valid: Boolean [B, T], True = token; None = no padding.

    Returns:
        [B, T], in fp32.
    """
    tokens = torch.ones_like(dropped) if valid is None else valid
    kept = (tokens & ~dropped).sum(1)
    # All are zero where none is kept.
    scale = TRAINED_WITHOUT_MASK * tokens.sum(1).float() / kept.clamp(min=1)
    return torch.where(dropped, 0, scale[:, None])


class Encoder(FusibleModule):
    """A multi-head-attention encoder as its `config` describes it.

    Sequences are padded on the right. The contents of padding, NaN included, do not affect the result: they
    are zeroed in the input, hidden from attention, and zeroed in the output. A sequence of length 0 gives
    zeros, and what dense layers and a classifier make of them.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = None if config.vocabulary is None else Embeddings(config)
        distinct = 1 if config.shared_layers else config.layers
        self.layers = nn.ModuleList(layer_of(config.of_layer(number), number) for number in range(distinct))
        self.final_norm = norm_of(config, config.d_model) if config.final_norm else None
        if self.final_norm is not None and config.final_norm_epsilon is not None:
            self.final_norm.eps = config.final_norm_epsilon
        self.relative_bias = (
            None
            if config.relative_buckets is None or config.relative_distance is None
            else RelativeBias(
                config.heads, buckets=config.relative_buckets, distance=config.relative_distance
            )
        )
        self.pooler = (
            None
            if config.pooling is None
            else Pooler(
                config,
                config.pooling,
                config.dense,
                normalise=config.normalise,
                truncate_dim=config.truncate_dim,
            )
        )
        self.classifier = None if config.classifier is None else ClassifierHead(config, config.classifier)
        self.splade = None if config.splade is None else SpladeHead(config, config.splade)
        self.lexical = None if config.lexical is None else LexicalHead(config, config.lexical)
        self.token_head = None if config.token_vectors is None else TokenHead(config, config.token_vectors)
        # Not in the forward pass: a constant stays the same whatever precision that computes in.
        self._frequencies, self._local_frequencies = _frequencies_of(config)

    def layer(self, number: int) -> nn.Module:
        """Return layer `number`, which may be all of them."""
        return self.layers[0 if self.config.shared_layers else number]

    def forward(
        self,
        x: Tensor,
        lengths: Tensor | None = None,
        *,
        memory: Tensor | None = None,
        memory_lengths: Tensor | None = None,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        head_mask: Tensor | None = None,
        need_weights: bool = False,
        attend: Attend = attend_explicitly,
        pack: bool = False,
        pooled_only: bool = False,
        visit: Visit = pass_by,
    ) -> EncoderOutput:
        """Encode a batch.

        Args:
            x: Vectors [B, T, D], or token ids [B, T] where `config.vocabulary` is given.
            lengths: Integers [B], the number of tokens in each sequence; None = T.
            memory: Vectors [B, S, D] that layers attend to, where `config.cross_attention` is given.
            memory_lengths: Integers [B], the number of tokens in each memory; None = S.
            mask: Boolean [B or 1, T or 1, T], True = may attend; combined with padding and causality.
            memory_mask: Boolean [B or 1, T or 1, S], likewise, for the attention to the memory.
            token_type_ids: Integers [B, T]; None = all 0.
            head_mask: [B, L, H], a factor on what each head gives: 0 silences it; None = all 1.
            need_weights: Whether to return every layer's attention weights.
            attend: The attention of every layer, see `Attend`.
            pack: Whether what each token needs is computed for the tokens that exist alone, where `lengths`
                are given and dropout is not active. The result is the same.
            pooled_only: Whether the last layer is computed for the one token of each sequence that is pooled
                (`config.pooled_position`); its keys and values are those of all. It must be a `Block`.
            visit: Called before every layer, and with L after the last, before the final norm.

        Raises:
            ValueError: A shape or a value is out of range; the message names it.
            TypeError: A dtype is not the expected one.
        """
        if not torch.compiler.is_compiling():  # inspecting sizes would fix them in an exported graph
            self._check(x, lengths, mask, token_type_ids, head_mask)
            self._check_memory(x, memory, memory_lengths, mask, memory_mask)
        tokens = x.shape[1]
        valid, keys = self._valid(x, lengths)  # [B, T]
        pack = pack and not (self.training and self.config.dropout > 0)  # dropout attends to padded tokens
        layout = _layout_of(lengths, tokens, pack=pack)
        positions = self._pooled_positions(valid, x) if pooled_only else None
        ids, x = x, self._embed(x, token_type_ids, valid, layout)
        visible, near = self._visible(tokens, valid, keys, mask, device=x.device)
        bias = None if self.relative_bias is None else self.relative_bias(tokens)
        rotations = self._rotations(tokens, x.device)
        rotation, near_rotation = (
            None if each is None else (layout.at_positions(each[0]), layout.at_positions(each[1]))
            for each in rotations
        )
        memory_layout, visible_memory = layout, memory_mask
        if memory is not None:
            valid_memory = None
            if memory_lengths is not None:
                valid_memory = masks.valid_tokens(memory_lengths, memory.shape[1])
            elif valid is not None:  # a mask has S columns
                valid_memory = valid.new_ones(memory.shape[:2])
            memory_layout = _layout_of(memory_lengths, memory.shape[1], pack=pack)
            memory = _zero_padding(memory, valid_memory, memory_layout)
            visible_memory = masks.combine(
                None if valid is None else valid[:, :, None],
                None if valid_memory is None else valid_memory[:, None, :],
                memory_mask,
            )
        to_memory = partial(attend, layouts=(layout, memory_layout))
        queries: TokenLayout = layout
        of_pooled: dict[str, Any] = {}  # arguments of the layer that computes no others
        attention: list[Tensor] = []
        cross_attention: list[Tensor] = []
        for number in range(self.config.layers):
            layer, is_local, cross_weights = self.layer(number), self.config.is_local(number), None
            if positions is not None and number == self.config.layers - 1:
                queries = _layout_of(torch.ones_like(positions[:, 0]), 1, pack=isinstance(layout, Packed))
                of_pooled = {"take": partial(layout.take, positions=positions)}
                if (angles := rotations[is_local]) is not None:
                    of_pooled["query_rotation"] = (
                        queries.pack(angles[0][positions]),
                        queries.pack(angles[1][positions]),
                    )
                visible, near = self._visible(tokens, valid, keys, mask, positions, device=x.device)
                valid = None if valid is None else valid.gather(1, positions)
                bias = None if bias is None else bias[0, :, positions].transpose(0, 1)
            if isinstance(layer, DecoderBlock):
                x, weights, cross_weights = layer(
                    visit(number, x, layout),
                    memory,
                    mask=visible,
                    memory_mask=visible_memory,
                    need_weights=need_weights,
                    attend=partial(attend, layouts=(layout, layout)),
                    attend_to_memory=to_memory,
                )
            else:
                x, weights = layer(
                    visit(number, x, layout),
                    memory,
                    mask=visible_memory if memory is not None else near if is_local else visible,
                    head_mask=None
                    if head_mask is None
                    else queries.repeat(self._heads_of(number, head_mask[:, number])),
                    bias=None if bias is None else self._heads_of(number, bias),
                    rotation=near_rotation if is_local else rotation,
                    need_weights=need_weights,
                    attend=partial(attend, layouts=(queries, layout)) if memory is None else to_memory,
                    **of_pooled,
                )
            if weights is not None:
                attention.append(weights)
            if cross_weights is not None:
                cross_attention.append(cross_weights)
        x = visit(self.config.layers, x, queries)
        output = _zero_padding(queries.pad(x if self.final_norm is None else self.final_norm(x)), valid)
        pooled, logits = self._pooled_and_logits(output, valid, None if pooled_only else ids)
        return EncoderOutput(
            output,
            pooled,
            tuple(attention) if need_weights else None,
            tuple(cross_attention) or None,
            logits,
            None if pooled_only else self._token_vectors(output, valid),
        )

    def _embed(
        self, x: Tensor, token_type_ids: Tensor | None, valid: Tensor | None, layout: TokenLayout
    ) -> Tensor:
        """Return the vectors of tokens, laid out."""
        if self.embeddings is None:
            return _zero_padding(x, valid, layout)
        # Padding may hold any number, which need not be a valid id.
        types = None if token_type_ids is None else _zero_padding(token_type_ids, valid)
        embedded: Tensor = self.embeddings(_zero_padding(x, valid), types, valid, layout)
        return embedded

    def _visible(
        self,
        tokens: int,
        valid: Tensor | None,
        keys: Tensor | None,
        mask: Tensor | None,
        queries: Tensor | None = None,
        *,
        device: torch.device,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return what queries see in layers that see everything, and in local ones.

        Args:
            tokens: T.
            valid: Boolean [B, T], True = token.
            keys: Boolean [B, T], True = token that others attend to.
            mask: As it was given.
            queries: Their positions [B, Tq]; None = all T.
            device: Of the result.
        """
        seeing = valid
        if queries is not None:
            seeing = None if valid is None else valid.gather(1, queries)
            mask = None if mask is None else Padded().take(mask.expand(queries.shape[0], tokens, -1), queries)
        visible = masks.combine(
            None if seeing is None else seeing[:, :, None],
            None if keys is None else keys[:, None, :],
            masks.causal(tokens, queries, device=device) if self.config.causal else None,
            mask,
        )
        if self.config.local_window is None:
            return visible, visible
        window = masks.window(tokens, self.config.local_window, queries, device=device)
        return visible, masks.combine(visible, window)

    def _valid(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Return which tokens there are, [B, T], and which of them others attend to; None = all."""
        tokens, key_lengths = x.shape[1], self.key_lengths(x, lengths)
        valid = None if lengths is None else masks.valid_tokens(lengths, tokens)
        if key_lengths is None or key_lengths is lengths:
            return valid, valid
        return valid, masks.valid_tokens(key_lengths, tokens)

    def key_lengths(self, x: Tensor, lengths: Tensor | None) -> Tensor | None:
        """Return how many tokens of each sequence others attend to: not those that fill up a query.

        Args:
            x: Token ids [B, T], or vectors.
            lengths: Integers [B]; None = T.

        Returns:
            Integers [B]; `lengths` itself unless there is an `TokenVectors.expansion_id`.
        """
        head = self.config.token_vectors
        if head is None or head.expansion_id is None:
            return lengths
        ends = torch.arange(1, x.shape[1] + 1, device=x.device)
        kept = torch.where(x != head.expansion_id, ends, 0)
        if lengths is not None:
            kept = torch.where(ends <= lengths[:, None], kept, 0)
        last = kept.amax(1)
        # A sequence of nothing else is no query that was filled up.
        whole = torch.full_like(last, x.shape[1]) if lengths is None else lengths.to(last.dtype)
        return torch.where(last > 0, last, whole).to(torch.int32)

    def _pooled_positions(self, valid: Tensor | None, x: Tensor) -> Tensor:
        """Return the position [B, 1] of the token that is pooled of each sequence of x [B, T, …].

        Raises:
            ValueError: Others are pooled, too.
        """
        if self.config.pooled_position is None:
            raise ValueError("pooled_only needs blocks of self-attention, and one pooled token, cls or last")
        if self.config.pooled_position == "cls":
            return torch.zeros(x.shape[0], 1, dtype=torch.int64, device=x.device)
        if (unpadded := self._without_padding(x, valid)) is not None:
            return last_positions(unpadded)[:, None]
        return torch.full((x.shape[0], 1), x.shape[1] - 1, device=x.device)

    def _heads_of(self, layer: int, values: Tensor) -> Tensor:
        """Take the heads that a layer has, [B, H, …] → [B, H of the layer, …]."""
        kept = self.config.kept_heads
        return values if kept is None else values[:, list(kept[layer])]

    def _without_padding(self, x: Tensor, valid: Tensor | None) -> Tensor | None:
        """Return which tokens of x [B, T, …] the classifier may pool, Boolean [B, T]; None = all."""
        head = self.config.classifier
        if head is None or (padding_id := head.padding_id) is None:
            return valid
        return x != padding_id if valid is None else valid & (x != padding_id)

    def pooled_and_logits(
        self, output: Tensor, lengths: Tensor | None = None, ids: Tensor | None = None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Compute what follows from the output, as `forward` does, in the output's own precision.

        Args:
            output: [B, T, D], zero in padding.
            lengths: Integers [B]; None = all T.
            ids: The token ids [B, T], of which a classifier may pass by some; None = none is.

        Returns:
            The pooled vectors [B, P] and the logits [B, C], or [B, T, C] of tokens; None for those that the
            encoder does not have.
        """
        return self._pooled_and_logits(
            output, None if lengths is None else masks.valid_tokens(lengths, output.shape[1]), ids
        )

    def weigh_words(
        self,
        output: Tensor,
        lengths: Tensor | None = None,
        layout: TokenLayout | None = None,
        *,
        ids: Tensor | None = None,
    ) -> Tensor:
        """Weigh the words of the vocabulary for each sequence, in the output's own precision.

        Args:
            output: [B, T, D], zero in padding.
            lengths: Integers [B]; None = all T.
            layout: Which tokens are computed; None = all.
            ids: The token ids [B, T], which lexical weights need.

        Returns:
            [B, V], 0 or more; 0 for most words, if the encoder was trained for that.

        Raises:
            ValueError: The encoder has no such head.
        """
        tokens = output.shape[1]
        if lengths is None:
            lengths = torch.full(output.shape[:1], tokens, device=output.device)
        valid = masks.valid_tokens(lengths, tokens)
        if self.lexical is not None and ids is not None:
            lexical: Tensor = self.lexical(output, valid, ids)
            return lexical
        if self.splade is None or self.embeddings is None:
            raise ValueError("weigh_words needs config.splade, or config.lexical and ids, was None")
        table = self.embeddings.tokens.weight
        weights: Tensor = self.splade(output, valid, table, Padded() if layout is None else layout)
        return weights

    def token_vectors(self, output: Tensor, lengths: Tensor | None = None) -> Tensor | None:
        """Compute the vectors of tokens [B, T, V], likewise; None where the encoder has none."""
        return self._token_vectors(
            output, None if lengths is None else masks.valid_tokens(lengths, output.shape[1])
        )

    def _token_vectors(self, output: Tensor, valid: Tensor | None) -> Tensor | None:
        return None if self.token_head is None else self.token_head(output, valid)

    def _pooled_and_logits(
        self, output: Tensor, valid: Tensor | None, ids: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        pooled = None if self.pooler is None else self.pooler(output, valid)
        if self.classifier is None:
            return pooled, None
        return pooled, self.classifier(output, valid if ids is None else self._without_padding(ids, valid))

    def _rotations(self, tokens: int, device: torch.device) -> tuple[Rotation | None, Rotation | None]:
        """Return the rotations of layers that see everything, and of local ones."""
        if self._frequencies is None:
            return None, None
        rotation = rotation_of(self._frequencies, tokens, device=device)
        if self._local_frequencies is None:
            return rotation, rotation
        return rotation, rotation_of(self._local_frequencies, tokens, device=device)

    def _check(
        self,
        x: Tensor,
        lengths: Tensor | None,
        mask: Tensor | None,
        token_type_ids: Tensor | None,
        head_mask: Tensor | None,
    ) -> None:
        if self.embeddings is None:
            self._check_vectors(x, token_type_ids)
        else:
            self._check_ids(x, token_type_ids)
        batch, tokens = x.shape[:2]
        if tokens == 0:
            raise ValueError("T must be at least 1, was 0")
        if self.config.positions is not None and tokens > self.config.positions:
            raise ValueError(
                f"T must be at most {self.config.positions}, the model's positions, was {tokens}"
            )
        if lengths is not None:
            _check_lengths("lengths", lengths, batch, "T", tokens)
        if mask is not None:
            masks.check(mask, batch=batch, queries=tokens, keys=tokens)
        if head_mask is not None:
            shape = (batch, self.config.layers, self.config.heads)
            if head_mask.shape != shape:
                raise ValueError(
                    f"head_mask must have the shape [B, L, H] = {list(shape)}, was {list(head_mask.shape)}"
                )

    def _check_memory(
        self,
        x: Tensor,
        memory: Tensor | None,
        memory_lengths: Tensor | None,
        mask: Tensor | None,
        memory_mask: Tensor | None,
    ) -> None:
        if self.config.cross_attention is None:
            for name, value in (
                ("memory", memory),
                ("memory_lengths", memory_lengths),
                ("memory_mask", memory_mask),
            ):
                if value is not None:
                    raise ValueError(f"{name} must be None: this encoder has no cross_attention")
            return
        if memory is None:
            raise ValueError("memory must be given: the layers of this encoder attend to it")
        batch, width = len(x), self.config.d_model
        if memory.ndim != 3 or memory.shape[0] != batch or memory.shape[2] != width:
            raise ValueError(
                f"memory must have the shape [B = {batch}, S, D = {width}], was {list(memory.shape)}"
            )
        if not memory.is_floating_point():
            raise TypeError(f"memory must be floating point, was {memory.dtype}")
        keys = memory.shape[1]
        if keys == 0:
            raise ValueError("S must be at least 1, was 0")
        if memory_lengths is not None:
            _check_lengths("memory_lengths", memory_lengths, batch, "S", keys)
        if memory_mask is not None:
            masks.check(memory_mask, batch=batch, queries=x.shape[1], keys=keys, name="memory_mask")
        if mask is not None and self.config.cross_attention == "alone":
            raise ValueError(
                "mask must be None: this encoder attends to the memory alone, which memory_mask masks"
            )

    def _check_vectors(self, x: Tensor, token_type_ids: Tensor | None) -> None:
        width = self.config.d_model
        if x.ndim != 3 or x.shape[2] != width:
            raise ValueError(f"x must have the shape [B, T, D = {width}], was {list(x.shape)}")
        if not x.is_floating_point():
            raise TypeError(f"x must be floating point, was {x.dtype}")
        if token_type_ids is not None:
            raise ValueError("token_type_ids must be None: this encoder takes vectors, not token ids")

    def _check_ids(self, x: Tensor, token_type_ids: Tensor | None) -> None:
        if x.ndim != 2:
            raise ValueError(f"x must hold token ids [B, T], had the shape {list(x.shape)}")
        _check_integers("x", x)
        if token_type_ids is None:
            return
        if self.config.types == 0:
            raise ValueError("token_type_ids must be None: this encoder has no token types")
        if token_type_ids.shape != x.shape:
            raise ValueError(
                f"token_type_ids must have x's shape, {list(x.shape)}, was {list(token_type_ids.shape)}"
            )
        _check_integers("token_type_ids", token_type_ids)

    def _like(self, *, fused: bool) -> Self:
        return type(self)(dataclasses.replace(self.config, fused=fused))


Frequencies = tuple[float, ...] | None


def _frequencies_of(config: EncoderConfig) -> tuple[Frequencies, Frequencies]:
    """Return the frequencies of layers that see everything, and those of local ones where they differ."""
    if config.rotary_base is None:
        return None, None
    frequencies = config.rotary_frequencies or rotary_frequencies(config.rotary_base, config.head_size)
    local = config.local_rotary_base
    return in_fp32(frequencies), None if local is None else rotary_frequencies(local, config.head_size)


def _layout_of(lengths: Tensor | None, tokens: int, *, pack: bool) -> TokenLayout:
    return Packed(lengths, tokens) if pack and lengths is not None else Padded()


def _zero_padding(x: Tensor, valid: Tensor | None, layout: TokenLayout | None = None) -> Tensor:
    """Set the padding of x [B, T] or [B, T, D] to zero, and lay x out."""
    if layout is not None:
        x, valid = layout.pack(x), None if valid is None else layout.pack(valid)
    if valid is None:
        return x
    # A number that is not of the same type would be promoted, for which the exporter gives N another name.
    zero = torch.zeros((), dtype=x.dtype, device=x.device)
    return torch.where(valid if x.ndim == 2 else valid[..., None], x, zero)


def _check_lengths(name: str, lengths: Tensor, batch: int, letter: str, tokens: int) -> None:
    if lengths.shape != (batch,):
        raise ValueError(f"{name} must have the shape [B = {batch}], was {list(lengths.shape)}")
    _check_integers(name, lengths)
    for index, length in enumerate(lengths.tolist()):
        if not 0 <= length <= tokens:
            raise ValueError(f"{name}[{index}] must be between 0 and {letter} ({tokens}), was {length}")


def _check_integers(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"{name} must be int64 or int32, was {tensor.dtype}")
