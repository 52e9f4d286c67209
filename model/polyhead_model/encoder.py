"""The encoder: embeddings for token ids, a stack of layers, pooling."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from polyhead_model import masks
from polyhead_model.attention import Attend, MultiHeadAttention, attend_explicitly
from polyhead_model.block import Take, layer_of, take_all
from polyhead_model.config import EncoderConfig
from polyhead_model.convolution import TokenConvolution
from polyhead_model.disentangled import PositionScores, RelativePositions
from polyhead_model.embeddings import Embeddings
from polyhead_model.input_checks import check_inputs, check_memory
from polyhead_model.layer_inputs import MemoryInputs, Rotations, SequenceInputs, layout_of, zero_padding
from polyhead_model.norms import final_norm_of
from polyhead_model.packing import Padded, TokenLayout
from polyhead_model.pooling import ClassifierHead, Pooler, TokenHead, last_positions
from polyhead_model.positions import PositionVectors, RelativeBias
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
        self.layers = nn.ModuleList(layer_of(config, number) for number in range(distinct))
        self.final_norm = final_norm_of(config) if config.final_norm else None
        self.relative_bias = (
            None
            if config.relative_buckets is None or config.relative_distance is None
            else RelativeBias(
                config.heads, buckets=config.relative_buckets, distance=config.relative_distance
            )
        )
        self.relative_positions = (
            None if config.disentangled is None else RelativePositions(config, config.disentangled)
        )
        self.convolution = (
            None if config.convolution is None else TokenConvolution(config, config.convolution)
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
        self._rotations = Rotations(config)

    def layer(self, number: int) -> nn.Module:
        """Return layer `number`, which may be all of them."""
        return self.layers[0 if self.config.shared_layers else number]

    def position_vectors(self) -> list[PositionVectors]:
        """Return the keys and queries of relative positions in each layer; none where it has none."""
        if self.relative_positions is None:
            return []
        vectors = self.relative_positions()
        made = [
            next(each for each in layer.modules() if isinstance(each, MultiHeadAttention)).position_vectors(
                vectors
            )
            for layer in self.layers
        ]
        return made * self.config.layers if self.config.shared_layers else made

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
        position_vectors: Sequence[PositionVectors] | None = None,
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
            position_vectors: What the method of this name returns; None = it is called.
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
            check_inputs(
                self.config,
                x,
                lengths=lengths,
                mask=mask,
                token_type_ids=token_type_ids,
                head_mask=head_mask,
            )
            check_memory(
                self.config,
                x,
                memory=memory,
                memory_lengths=memory_lengths,
                mask=mask,
                memory_mask=memory_mask,
            )
        valid, keys = self._valid(x, lengths)  # [B, T]
        pack = pack and not (self.training and self.config.dropout > 0)  # dropout attends to padded tokens
        layout = layout_of(lengths, x.shape[1], pack=pack)
        given: dict[str, Any] = {
            "layout": layout,
            "valid": valid,
            "mask": mask,
            "head_mask": head_mask,
            "need_weights": need_weights,
            "attend": attend,
        }
        beside: SequenceInputs | MemoryInputs
        if memory is None:
            beside = SequenceInputs(
                self.config,
                x,
                keys,
                bias=None if self.relative_bias is None else self.relative_bias(x.shape[1]),
                scores=self._position_scores(x, position_vectors),
                rotations=self._rotations,
                **given,
            )
        else:
            beside = MemoryInputs(
                self.config,
                x,
                memory,
                memory_lengths=memory_lengths,
                memory_mask=memory_mask,
                pack=pack,
                **given,
            )
        positions = self._pooled_positions(valid, x) if pooled_only else None
        hidden, exist = self._embed(x, token_type_ids, valid, layout), valid
        weights: list[tuple[Tensor, ...]] = []
        for number in range(self.config.layers):
            arguments, is_last = beside.of(number), number == self.config.layers - 1
            if is_last and positions is not None and isinstance(beside, SequenceInputs):
                arguments, layout, valid = beside.of_tokens(number, positions)
            seen = visit(number, hidden, beside.layout)
            hidden, *of_layer = self.layer(number)(seen, beside.key, **arguments)
            if number == 0 and self.convolution is not None:
                lay_out = partial(_lay_out, beside.layout, arguments.get("take", take_all))
                hidden = self.convolution(hidden, zero_padding(beside.layout.pad(seen), exist), lay_out)
            weights.append(tuple(of_layer))
        hidden = visit(self.config.layers, hidden, layout)
        normed = hidden if self.final_norm is None else self.final_norm(hidden)
        output = zero_padding(layout.pad(normed), valid)
        pooled, logits = self._pooled_and_logits(output, valid, None if pooled_only else x)
        by_attention = list(zip(*weights, strict=True)) if need_weights else []
        return EncoderOutput(
            output,
            pooled,
            by_attention[0] if by_attention else None,
            by_attention[1] if len(by_attention) > 1 else None,
            logits,
            None if pooled_only else self._token_vectors(output, valid),
        )

    def _position_scores(self, x: Tensor, vectors: Sequence[PositionVectors] | None) -> PositionScores | None:
        if self.config.disentangled is None:
            return None
        vectors = self.position_vectors() if vectors is None else vectors
        return PositionScores(self.config.disentangled, vectors, x.shape[1], x.device)

    def _embed(
        self, x: Tensor, token_type_ids: Tensor | None, valid: Tensor | None, layout: TokenLayout
    ) -> Tensor:
        """Return the vectors of tokens, laid out."""
        if self.embeddings is None:
            return zero_padding(x, valid, layout)
        # Padding may hold any number, which need not be a valid id.
        types = None if token_type_ids is None else zero_padding(token_type_ids, valid)
        embedded: Tensor = self.embeddings(zero_padding(x, valid), types, valid, layout)
        return embedded

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

    def _like(self, *, fused: bool) -> Self:
        return type(self)(dataclasses.replace(self.config, fused=fused))


def _lay_out(layout: TokenLayout, take: Take, x: Tensor) -> Tensor:
    return take(layout.pack(x))
