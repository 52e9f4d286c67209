"""How sequences are cut into batches in process, and tokenised and pooled where an engine does not do so."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

MAX_TOKENS = 256
"""What MiniLM was trained with."""

Ids: TypeAlias = list[int]
Sequences: TypeAlias = Sequence[str] | Sequence[Ids]
"""Texts, or the token ids of each sequence."""
Vectors: TypeAlias = NDArray[np.float32]
"""[B, D]."""


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """How sequences are batched and run."""

    batch: int
    by_length: bool = False
    """Sort sequences by length before they are batched; a server, which sees only those that wait, cannot
    sort them all."""
    lanes: int = 1
    """Runs at once."""
    threads: int = 1
    """Threads of one run."""

    @property
    def way(self) -> str:
        """Lanes and threads in words."""
        return f"{self.lanes} × {self.threads} thread{'s' * (self.threads > 1)}"

    def __str__(self) -> str:
        return f"{self.way}, B = {self.batch}" + (", by length" if self.by_length else "")

    def batches(self, lengths: Sequence[int]) -> list[list[int]]:
        """Return the positions of the sequences of each batch."""
        order = list(range(len(lengths)))
        if self.by_length:
            order.sort(key=lambda position: -lengths[position])
        return [order[start : start + self.batch] for start in range(0, len(order), self.batch)]


def open_tokenizer(path: str) -> Tokenizer:
    """Open a `tokenizer.json`, without the padding that it may ask for."""
    tokenizer = Tokenizer.from_file(path)
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    return tokenizer


def token_ids(tokenizer: Tokenizer, sequences: Sequences) -> list[Ids]:
    """Return the token ids of each text; those that are given stay as they are."""
    given = [each for each in sequences if not isinstance(each, str)]
    texts = [each for each in sequences if isinstance(each, str)]
    return given or [encoding.ids for encoding in tokenizer.encode_batch(texts)]


def pad(ids: Sequence[Ids]) -> dict[str, NDArray[np.generic]]:
    """Return the inputs of a graph: `input_ids` and `token_type_ids` [B, T], and `lengths` [B]."""
    lengths = np.array([len(each) for each in ids], np.int32)
    padded = np.zeros((len(ids), int(lengths.max(initial=0))), np.int64)
    for row, each in zip(padded, ids, strict=True):
        row[: len(each)] = each
    return {"input_ids": padded, "token_type_ids": np.zeros_like(padded), "lengths": lengths}


def pool(states: NDArray[np.float32], lengths: NDArray[np.integer]) -> Vectors:
    """Return the normalised means [B, D] of the first `lengths` states of each [B, T, D]."""
    valid = (np.arange(states.shape[1]) < lengths[:, None]).astype(np.float32)
    means = np.matmul(valid[:, None, :], states)[:, 0]  # the normalisation divides by the lengths, too
    vectors: Vectors = means / np.linalg.norm(means, axis=1, keepdims=True)
    return vectors


def run_in_batches(
    ids: Sequence[Ids], plan: BatchPlan, run: Callable[[Sequence[Ids]], Vectors], lanes: ThreadPoolExecutor
) -> Vectors:
    """Return the vectors of sequences in their order.

    Args:
        ids: The sequences.
        plan: How they are batched.
        run: Embeds one batch.
        lanes: As many threads as the plan has lanes.
    """
    batches = plan.batches([len(each) for each in ids])
    work = [[ids[index] for index in batch] for batch in batches]
    vectors = list(lanes.map(run, work)) if plan.lanes > 1 else [run(batch) for batch in work]
    together = np.concatenate(vectors)
    ordered = np.empty_like(together)
    ordered[np.concatenate(batches)] = together
    return ordered
