"""Servers that take texts and answer with vectors."""

import asyncio
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from benchmarks.encoders import infer_request, text_request
from benchmarks.frame import Sample
from benchmarks.load_generator import LoadResult, closed_loop
from benchmarks.peers.contenders import Contender
from benchmarks.texts.batches import Sequences, Vectors, pad

_FEWEST_ROUNDS = 3
"""So often all texts are sent: part of a round has texts that are shorter or longer than the others."""


@dataclass(frozen=True, kw_only=True)
class TextServer:
    """A server with one encoder of texts."""

    contender: Contender
    model: str
    per_text: tuple[int, ...] = ()
    """The shape of a text within a batch."""
    max_batch: int = 2**10
    """The most texts of a call."""

    @property
    def name(self) -> str:
        """What it is called."""
        return self.contender.name

    def requests(self, sequences: Sequences, per_call: int) -> list[bytes]:
        """Return requests for the vectors of so many sequences each."""
        starts = range(0, len(sequences), per_call)
        return [self._request(sequences[start : start + per_call]) for start in starts]

    def embed(self, texts: Sequences) -> Vectors:
        """Return the vectors [B, D] of texts, each asked for by a call of its own, all at once."""
        replies = asyncio.run(self.contender.answers(self.requests(texts, 1)))
        return np.stack([np.frombuffer(reply.raw_output_contents[0], np.float32) for reply in replies])

    def measure(self, texts: Sequences, *, per_call: int, in_flight: int, seconds: float) -> Sample:
        """Keep so many calls in flight; rates are of sequences.

        Texts are sent several times: some are shorter or longer than others.
        """
        requests = self.requests(texts, per_call)
        send = partial(closed_loop, self.contender.address, requests, in_flight=in_flight)
        # Unmeasured first: caches and clocks come up to speed.
        warm = asyncio.run(send(seconds=seconds / 5))
        if isinstance(texts[0], str):
            seconds = max(seconds, _FEWEST_ROUNDS * len(requests) / warm.rate)
        load = asyncio.run(send(seconds=seconds, server=self.contender.cpu_seconds))
        return Sample.of_load(whole_rounds(load, len(requests)) if in_flight == 1 else load, per_call)

    def _request(self, sequences: Sequences) -> bytes:
        ids = [each for each in sequences if not isinstance(each, str)]
        if ids:
            return infer_request(self.model, pad(ids), {"pooled": None})
        return text_request(self.model, [each for each in sequences if isinstance(each, str)], self.per_text)


def whole_rounds(load: LoadResult, calls: int) -> LoadResult:
    """Leave out the calls after the last whole round of so many, made one at a time.

    Their texts would count more than the others.
    """
    latencies = load.latencies_ms[: len(load.latencies_ms) // calls * calls]
    return replace(load, latencies_ms=latencies, seconds=sum(latencies) / 1e3) if latencies else load
