"""Texts on which an encoder is measured before it is exported, as batches of its inputs.

Shape letters: B batch, T tokens.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from tokenizers import Tokenizer
from torch import Tensor

from polyhead_export.errors import ExportError
from polyhead_export.kinds.fast import FastGraph
from polyhead_export.samples import sample_inputs
from polyhead_model import EncoderConfig

if TYPE_CHECKING:
    from polyhead_export.family import TokenizerFile

_TOKENS_AT_ONCE = 1024
"""B·T of a batch: the gradients of BERT-base then need about 1 GB at T = 512."""


def read_texts(file: Path) -> list[str]:
    """Read a file with a text on each line, without blank lines.

    Raises:
        ExportError: The file is not UTF-8, or has no texts.
        OSError: The file cannot be read.
    """
    try:
        lines = file.read_bytes().decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ExportError(f"--texts must be UTF-8 text, {file} is not: {error.reason}") from None
    texts = [line.strip() for line in lines if line.strip()]
    if not texts:
        raise ExportError(f"--texts must have texts, one a line, {file} has none")
    return texts


def batches_of_texts(
    tokenizer: "TokenizerFile", config: EncoderConfig, texts: Sequence[str]
) -> list[dict[str, Tensor]]:
    """Tokenise texts, truncated to the longest that is served, into batches of similar lengths.

    Raises:
        ExportError: The tokenizer cannot be used.
    """
    try:
        library = Tokenizer.from_file(str(tokenizer.path))
        library.no_padding()
        library.enable_truncation(tokenizer.max_tokens)
        encodings = library.encode_batch([tokenizer.prompt + text for text in texts])
    except Exception as error:  # the library raises no other type
        raise ExportError(f"{tokenizer.path}: cannot be used as a tokenizer: {error}") from error
    rows = sorted((encoding for encoding in encodings if encoding.ids), key=len)
    batches: list[dict[str, Tensor]] = []
    while rows:
        # The longest is the last of the batch.
        size = next(n for n in range(len(rows), 0, -1) if n == 1 or n * len(rows[n - 1]) <= _TOKENS_AT_ONCE)
        batch, rows = rows[:size], rows[size:]
        ids, types = (torch.zeros(size, len(batch[-1]), dtype=torch.int64) for _ in range(2))
        for row, encoding in enumerate(batch):
            ids[row, : len(encoding)] = torch.tensor(encoding.ids)
            types[row, : len(encoding)] = torch.tensor(encoding.type_ids)
        lengths = torch.tensor([len(encoding) for encoding in batch])
        batches.append(
            {config.main_input: ids, "lengths": lengths} | ({"token_type_ids": types} if config.types else {})
        )
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
