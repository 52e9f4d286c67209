"""The ranges of pooled vectors on texts, from which their int8 and uint8 forms follow.

Shape letters: B batch, P width of pooled vectors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import normalize

from polyhead_export.batches import batches_of_sentences
from polyhead_export.tokenizers import TokenizerFile
from polyhead_model import Encoder


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The ranges that were measured."""

    texts: int
    """The number of texts."""
    ranges: Mapping[int, tuple[Sequence[float], Sequence[float]]]
    """By number of dimensions, the least and the largest value of each: of P, and of those that vectors were
    trained to be cut to, normalised again if the encoder normalises."""


def calibrate(encoder: Encoder, tokenizer: TokenizerFile, texts: Sequence[str]) -> Calibration:
    """Measure ranges in fp32 on texts with the default prompt, as sentence-transformers does.

    Args:
        encoder: An encoder that pools, in evaluation mode.
        tokenizer: For texts; longer ones are cut.
        texts: At least one.

    Raises:
        ExportError: No text gives a token.
    """
    config = encoder.config
    least: dict[int, torch.Tensor] = {}
    largest: dict[int, torch.Tensor] = {}
    for batch in batches_of_sentences(tokenizer, config, texts):
        with torch.inference_mode():
            pooled = encoder(batch[config.main_input], batch["lengths"]).pooled  # [B, P]
        for width in {config.pooled_size, *(config.matryoshka or ())}:
            cut = pooled[:, :width]
            if config.normalise and config.truncate_dim is None:
                cut = normalize(cut, dim=-1)
            lows, highs = cut.amin(0), cut.amax(0)
            least[width] = torch.minimum(least.get(width, lows), lows)
            largest[width] = torch.maximum(largest.get(width, highs), highs)
    return Calibration(
        texts=len(texts),
        ranges={width: (least[width].tolist(), largest[width].tolist()) for width in sorted(least)},
    )
