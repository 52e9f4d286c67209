"""Batches of inputs on which an encoder is measured in PyTorch.

Shape letters: B batch, T tokens.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from polyhead_export.kinds.fast import FastGraph
from polyhead_export.samples import sample_inputs
from polyhead_export.sentences import token_ids
from polyhead_export.tokenizers import TokenizerFile
from polyhead_model import EncoderConfig

_TOKENS_AT_ONCE = 1024
"""B·T of a batch: the gradients of BERT-base then need about 1 GB at T = 512."""


def batches_of_sentences(
    tokenizer: TokenizerFile, config: EncoderConfig, sentences: Sequence[str]
) -> list[dict[str, Tensor]]:
    """Tokenise sentences, cut to the longest text that is served, into batches of similar lengths."""
    texts = token_ids(tokenizer, sentences, tokenizer.max_tokens, prompt=tokenizer.prompt)
    rows = sorted(texts, key=len)
    batches: list[dict[str, Tensor]] = []
    while rows:
        # The longest is the last of the batch.
        size = next(n for n in range(len(rows), 0, -1) if n == 1 or n * len(rows[n - 1]) <= _TOKENS_AT_ONCE)
        batch, rows = rows[:size], rows[size:]
        ids = pad_sequence([torch.tensor(row) for row in batch], batch_first=True)
        batches.append({config.main_input: ids, "lengths": torch.tensor([len(row) for row in batch])})
    return batches


def random_batches(config: EncoderConfig, *, seed: int) -> list[dict[str, Tensor]]:
    """Return random inputs, for an encoder without a tokenizer."""
    tokens = min(64, config.positions or 64)
    names = {config.main_input, "lengths", "memory", "memory_lengths", "token_type_ids"}
    return [
        {name: value for name, value in inputs.items() if name in names}
        for part in range(8)
        for inputs in [sample_inputs(config, FastGraph(), 8, tokens, seed=seed + part)]
    ]
