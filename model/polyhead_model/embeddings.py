"""The embeddings of token ids. Shape letters: B batch, T tokens, D d_model."""

import torch
from torch import Tensor, nn

from polyhead_model.config import EncoderConfig
from polyhead_model.norms import norm_of
from polyhead_model.packing import Padded, TokenLayout


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
        self.projection_first = config.projection_first
        normed = config.d_model if self.projection_first else width
        self.norm = norm_of(config, normed) if config.embedding_norm else None
        self.projection = (
            nn.Linear(width, config.d_model, bias=not self.projection_first)
            if config.embedding_width
            else None
        )

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
        elif self.positions is not None and isinstance(layout, Padded):
            # Not a slice, whose size would be the table's if more tokens are traced than it has rows.
            x = x + self.positions(torch.arange(input_ids.shape[1], device=input_ids.device))
        elif self.positions is not None:
            x = x + layout.at_positions(self.positions.weight[: input_ids.shape[1]])
        steps = [self.norm, self.projection]
        for step in reversed(steps) if self.projection_first else steps:
            x = x if step is None else step(x)
        return x


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
