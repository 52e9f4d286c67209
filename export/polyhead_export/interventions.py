"""Read and edit what flows through an encoder, at places of each sequence's own.

A place is a layer and a token, of the residual stream; or a layer, a token and a head, of what that head
gives before the output projection. Shape letters: B batch, T tokens, D d_model, H heads, K head width, L
layers, E edits, R places to read.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from polyhead_model import EncoderConfig
from polyhead_model.packing import TokenLayout, take_rows
from polyhead_model.sums import sum_last

NOTHING, ADD, REPLACE, PROJECT_OUT = range(4)
"""The modes of an edit of x by a vector v: x, x + v, v, and x - (x·v) v."""

MODES = 4
"""How many there are."""


class Interventions:
    """The edits of a forward pass, and what it is read of.

    Args:
        config: The encoder's configuration.
        inputs: The inputs of `polyhead_export.kinds.stream`, `lengths` and the main input, by name.
    """

    def __init__(self, config: EncoderConfig, inputs: Mapping[str, Tensor]) -> None:
        self._config = config
        lengths, tokens = inputs["lengths"], inputs[config.main_input].shape[1]

        def places(name: str) -> tuple[Tensor, Tensor]:
            """Return tokens, and which of them exist; 0 for the others, which may lie behind T, too."""
            positions = inputs[name]
            exist = positions < lengths[:, None]
            return torch.where(exist, positions, 0), exist

        layers, modes = (inputs[f"edit_{each}"] for each in ("layers", "modes"))
        tokens_of, exist = places("edit_tokens")
        self._edits = _Edits(modes, inputs["edit_vectors"], tokens_of, exist)
        self._edited = self._edits.by_place((tokens_of, layers), (tokens, config.layers + 1))
        names = ("layers", "heads", "modes")
        layers, self._edited_heads, modes = (inputs[f"head_edit_{each}"] for each in names)
        tokens_of, exist = places("head_edit_tokens")
        self._head_edits = _Edits(modes, inputs["head_edit_vectors"], tokens_of, exist)
        self._edits_by_head = self._head_edits.by_place(
            (tokens_of, layers, self._edited_heads), (tokens, config.layers, config.heads)
        )
        self._layers = inputs["read_layers"]
        self._tokens, self._there = places("read_tokens")
        tokens_of, self._heads_there = places("head_read_tokens")
        self._head_places = inputs["head_read_layers"], tokens_of, inputs["head_read_heads"]
        self.stream = torch.zeros(*self._layers.shape, config.d_model)
        """[B, R, D] in fp32: what was read of the stream, edits included; zero behind a sequence's end."""
        self.head_outputs = torch.zeros(*self._head_places[0].shape, config.head_size)
        """[B, R, K] in fp32: what was read of heads, likewise, and zero of those that pruning removed."""

    def at_layer(self, layer: int, x: Tensor, layout: TokenLayout) -> Tensor:
        """Edit and read the stream before a layer, x [B, T, D]; a `polyhead_model.encoder.Visit`."""
        sources = layout.rows(x, self._edits.tokens)
        x = self._edits.apply(x.flatten(0, 1), sources, layout.pack(self._edited[:, :, layer]))
        rows = take_rows(x.flatten(0, 1), layout.rows(x, self._tokens)).float()
        self.stream = torch.where(((self._layers == layer) & self._there)[..., None], rows, self.stream)
        return x

    def at_heads(self, layer: int, context: Tensor, layout: TokenLayout) -> Tensor:
        """Edit and read what the heads of a layer give, [B, T, H·K]."""
        kept = self._config.heads_of(layer)
        edited = self._edits_by_head[:, :, layer]  # [B, T, H]
        if len(kept) < self._config.heads:
            edited = edited[..., list(kept)]
        # The place of each head among those that are left; that of the first for those that are not.
        place = torch.tensor([kept.index(head) if head in kept else 0 for head in range(self._config.heads)])
        left = torch.tensor([head in kept for head in range(self._config.heads)])
        sources = layout.rows(context, self._head_edits.tokens) * len(kept) + place[self._edited_heads]
        rows = context.reshape(-1, self._config.head_size)
        by_head = self._head_edits.apply(rows, sources, layout.pack(edited))
        layers, tokens, heads = self._head_places
        numbers = layout.rows(context, tokens) * len(kept) + place[heads]
        rows = take_rows(by_head.flatten(0, 2), numbers).float()
        wanted = (layers == layer) & self._heads_there & left[heads]
        self.head_outputs = torch.where(wanted[..., None], rows, self.head_outputs)
        return by_head.flatten(2)


class _Edits:
    """Edits of vectors of one width.

    Args:
        modes: Integers [B, E].
        vectors: [B, E, W].
        tokens: Integers [B, E].
        exist: Boolean [B, E], whether there is such a token.
    """

    def __init__(self, modes: Tensor, vectors: Tensor, tokens: Tensor, exist: Tensor) -> None:
        self.tokens = tokens
        self._modes = modes
        self._vectors = vectors
        self._exist = exist

    def by_place(self, places: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
        """Find the edit of each place; of several, the last counts.

        Args:
            places: Integers [B, E] for each axis.
            sizes: Of the axes.

        Returns:
            Integers [B, *sizes]: the number of the edit among all B · E, from 1; 0 where there is none.
        """
        batch, edits = self._modes.shape
        numbers = torch.arange(1, batch * edits + 1).reshape(batch, edits)
        numbers = torch.where((self._modes != NOTHING) & self._exist, numbers, 0)
        index, count = places[0], sizes[0]
        for place, size in zip(places[1:], sizes[1:], strict=True):
            index, count = index * size + place, count * size
        none = torch.zeros(batch, count, dtype=torch.int64)
        return none.scatter_reduce(1, index, numbers, "amax").reshape(batch, *sizes)

    def apply(self, rows: Tensor, sources: Tensor, edited: Tensor) -> Tensor:
        """Edit vectors, of which those that are not edited are copied.

        What zero is added to stays as it is, too, bit by bit.

        Args:
            rows: The vectors, [X, W].
            sources: Integers [B, E], the row that each edit would change.
            edited: Integers, any shape of X items, what `by_place` found for each row.

        Returns:
            The vectors in the shape of `edited`, […, W].
        """
        x, v = take_rows(rows, sources), self._vectors.to(rows.dtype)
        along = sum_last(x.float() * v.float()).to(x.dtype)
        modes = self._modes[..., None]
        changed = torch.where(v == 0, x, x + v)
        changed = torch.where(modes == PROJECT_OUT, x - along * v, changed)
        changed = torch.where(modes == REPLACE, v, changed)
        own = torch.arange(rows.shape[0]).reshape(edited.shape)
        numbers = torch.where(edited > 0, edited + (rows.shape[0] - 1), own)
        return take_rows(torch.cat((rows, changed.flatten(0, 1))), numbers)
