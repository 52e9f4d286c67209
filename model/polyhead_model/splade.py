"""Heads that say how much each word of the vocabulary says of a text.

SPLADE's finds words that a text does not have, too (Formal et al. 2021); lexical weights are of its own
tokens.

Shape letters: B batch, T tokens, D d_model, V vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead_model.block import activation_of
from polyhead_model.config import EncoderConfig
from polyhead_model.norms import layer_norm_of
from polyhead_model.packing import TokenLayout
from polyhead_model.pooling import apply_linear, apply_norm
from polyhead_model.sums import sum_tokens
from polyhead_model.task_heads import LexicalWeights, Splade


class SpladeHead(nn.Module):
    """A masked language model's head, whose logits of all tokens are pooled to one number for each word.

    The matrix that gives the logits is that of the token embeddings.
    """

    def __init__(self, encoder: EncoderConfig, config: Splade) -> None:
        super().__init__()
        self.config = config
        self.longest = encoder.positions
        self.activation = activation_of(encoder.activation)
        self.linear = nn.Linear(encoder.d_model, encoder.d_model)
        self.norm = layer_norm_of(encoder, encoder.d_model)
        self.bias = nn.Parameter(torch.zeros(encoder.vocabulary or 0))

    def forward(self, output: Tensor, valid: Tensor, embeddings: Tensor, layout: TokenLayout) -> Tensor:
        """Weigh the words of the vocabulary, in the precision of the output.

        Args:
            output: [B, T, D].
            valid: Boolean [B, T], True = token.
            embeddings: Those of the vocabulary, [V, D].
            layout: Which tokens the logits are computed for.

        Returns:
            [B, V], 0 or more; zeros where a sequence has no tokens.
        """
        packed = layout.pack(output)
        # As rows, like pooled vectors, whose products no quantisation touches.
        x = packed.flatten(0, 1)
        x = apply_norm(self.activation(apply_linear(x, self.linear)), self.norm)
        # D words at once, as the logits of all would take as much memory as many layers; in 64 parts at most.
        weights, step = [], max(x.shape[1], -(-len(self.bias) // 64))
        for start in range(0, len(self.bias), step):
            words = slice(start, start + step)
            logits = F.linear(x, embeddings[words].to(x.dtype), self.bias[words].to(x.dtype))
            logits = layout.pad(logits.reshape(*packed.shape[:2], -1))  # [B, T, D words]
            logits = torch.where(valid[..., None], logits, 0.0)
            if self.config.pooling == "sum":
                of_tokens = self._of_logits(logits)
                weights.append(sum_tokens(of_tokens, valid.to(logits.dtype), self.longest))
            else:  # of what grows with the logits
                weights.append(self._of_logits(logits.amax(1)))
        return torch.cat(weights, dim=1)

    def _of_logits(self, logits: Tensor) -> Tensor:
        weights = torch.log1p(torch.relu(logits))
        return torch.log1p(weights) if self.config.log_twice else weights


class LexicalHead(nn.Module):
    """A weight for each token of a text, and for each word of the vocabulary the largest of its tokens."""

    def __init__(self, encoder: EncoderConfig, config: LexicalWeights) -> None:
        super().__init__()
        self.config = config
        self.vocabulary = encoder.vocabulary or 0
        self.linear = nn.Linear(encoder.d_model, 1)

    def forward(self, output: Tensor, valid: Tensor, ids: Tensor) -> Tensor:
        """Weigh the words of the vocabulary, in the precision of the output.

        Args:
            output: [B, T, D].
            valid: Boolean [B, T], True = token.
            ids: Integers [B, T], in padding any.

        Returns:
            [B, V], 0 or more; zeros where a sequence has no tokens.
        """
        # As rows, like pooled vectors, whose products no quantisation touches.
        weights = torch.relu(apply_linear(output.flatten(0, 1), self.linear)).reshape(valid.shape)
        for number in self.config.skipped_ids:
            valid = valid & (ids != number)
        words = torch.where(valid, ids, 0)
        found = weights.new_zeros(ids.shape[0], self.vocabulary)
        return found.scatter_reduce(1, words, torch.where(valid, weights, 0.0), "amax")
