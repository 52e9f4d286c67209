"""`make int8`: how much faster int8 is than fp32, and what it changes, on this machine.

A trained MiniLM and an encoder of BERT-base's shape, fast graphs, in process. Each size runs both precisions
in turn; the gain is the median over turns. Then MiniLM embeds sentences of this project's documents, alone
and in batches, and news documents that people have rated.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeAlias

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from benchmarks.encoders import MINILM, trained_minilm, unpadded_inputs
from benchmarks.frame import (
    Condition,
    at_least,
    finish,
    markdown_table,
    options,
    paired_ratios,
    spell_threads,
    time_in_turn,
)
from benchmarks.in_process import CORES
from benchmarks.rated_documents import rank_correlation, rated_documents
from benchmarks.sentences import some_sentences
from benchmarks.texts.batches import Ids, open_tokenizer, token_ids
from polyhead_export import Precision, export_family, from_preset
from polyhead_model import EncoderConfig
from polyhead_server.engine.devices import on_cpu
from polyhead_server.engine.session import open_session

BERT = "bert-base"
PRECISIONS: tuple[Precision, ...] = ("fp32", "int8")
SIZES = ((1, 16), (1, 64), (8, 64), (4, 256))
LEAST = {(1, 16): 2.2, (1, 64): 2.2, (8, 64): 2.2, (4, 256): 1.9}
"""How many times as fast as fp32 int8 must be, by size (B, T)."""

_WORSE = 0.02
"""The most by which int8's correlation with people's ratings may be below that of fp32."""
_LEAST_COSINE = 0.995
_SENTENCES = 240
_BATCH = 16

Vectors: TypeAlias = NDArray[np.float32]
Samples: TypeAlias = Mapping[tuple[str, int, tuple[int, int]], Mapping[str, list[float]]]
"""The seconds of runs: by encoder, threads and size, then by precision."""


def _export(models: Path) -> dict[str, EncoderConfig]:
    """Export what is missing; return the configurations."""
    (bert,) = from_preset(BERT)
    encoders = {MINILM: trained_minilm(), BERT: bert.build()}
    for encoder, built in encoders.items():
        for precision in PRECISIONS:
            name = f"{encoder}-{precision}"
            if not (models / name).exists():
                export_family(built.encoder, name, models, precision=precision, tokenizer=built.tokenizer)
    return {encoder: built.encoder.config for encoder, built in encoders.items()}


def _measure(
    sessions: Mapping[str, ort.InferenceSession],
    config: EncoderConfig,
    size: tuple[int, int],
    seconds: float,
) -> dict[str, list[float]]:
    """Run both precisions in turn; return the seconds of each run."""
    inputs = unpadded_inputs(config, "fast", *size)
    calls = {precision: partial(session.run, None, inputs) for precision, session in sessions.items()}
    return time_in_turn(calls, seconds)


def _open(models: Path, encoder: str, precision: Precision, threads: int) -> ort.InferenceSession:
    graph = models / f"{encoder}-{precision}" / "1" / "model.onnx"
    return open_session(graph, device=on_cpu("in process"), threads=threads)


def gains(taken: Mapping[str, list[float]]) -> list[float]:
    """Return how many times as fast int8 is, by the runs of the same turn, ascending."""
    return paired_ratios(taken["fp32"], taken["int8"])


def judge(samples: Samples) -> list[Condition]:
    """Return what must hold, and what was seen."""
    return [
        at_least(
            f"{encoder}, B × T = {size[0]} × {size[1]}, {spell_threads(threads)}:",
            LEAST[size],
            "fp32",
            gains(taken),
        )
        for (encoder, threads, size), taken in samples.items()
    ]


def _embed(session: ort.InferenceSession, ids: Sequence[Sequence[int]], batch: int) -> Vectors:
    """Embed sentences in batches, in random order and padded by a random number of tokens."""
    random = np.random.default_rng(0)
    order = random.permutation(len(ids))
    vectors = np.empty((len(ids), 384), np.float32)
    for start in range(0, len(ids), batch):
        chosen = order[start : start + batch]
        tokens = max(len(ids[index]) for index in chosen) + int(random.integers(40) if batch > 1 else 0)
        padded = np.full((len(chosen), tokens), 7, np.int64)
        for row, index in zip(padded, chosen, strict=True):
            row[: len(ids[index])] = ids[index]
        lengths = np.array([len(ids[index]) for index in chosen], np.int32)
        feeds = {"input_ids": padded, "token_type_ids": np.zeros_like(padded), "lengths": lengths}
        vectors[chosen] = session.run(["pooled"], feeds)[0]
    return vectors


def _token_ids(models: Path, texts: Sequence[str]) -> list[Ids]:
    return token_ids(open_tokenizer(str(models / f"{MINILM}-fp32" / "1" / "tokenizer.json")), texts)


def _nearest(vectors: Vectors) -> NDArray[np.intp]:
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -2)
    nearest: NDArray[np.intp] = cosines.argmax(axis=1)
    return nearest


def _quality(models: Path) -> list[dict[str, object]]:
    """Embed sentences in each precision, alone and in batches."""
    ids = _token_ids(models, some_sentences(_SENTENCES))
    exact: Vectors | None = None
    rows: list[dict[str, object]] = []
    for precision in PRECISIONS:
        session = _open(models, MINILM, precision, CORES)
        alone, together = _embed(session, ids, 1), _embed(session, ids, _BATCH)
        exact = alone if exact is None else exact
        cosines = (alone * exact).sum(axis=1)
        rows.append(
            {
                "precision": precision,
                "cosine with fp32, least": f"{cosines.min():.4f}",
                "mean": f"{cosines.mean():.4f}",
                "nearest neighbour is another than in fp32": int((_nearest(alone) != _nearest(exact)).sum()),
                "moved by batch-mates": int((_nearest(together) != _nearest(alone)).sum()),
                "largest change by batch-mates": f"{np.abs(together - alone).max():.0e}",
            }
        )
    return rows


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """How a precision ranks pairs of rated documents: Spearman's correlations of its cosines."""

    with_people: float
    """With people's ratings."""
    with_fp32: float
    """With the cosines of fp32."""
    least_cosine: float
    """Of a document's vector with that of fp32."""


def _ranking(models: Path, folder: Path) -> dict[Precision, Ranking]:
    """Rank pairs of rated documents in each precision."""
    documents, ratings = rated_documents(folder)
    ids = _token_ids(models, documents)
    vectors = {each: _embed(_open(models, MINILM, each, CORES), ids, 1) for each in PRECISIONS}
    similarities = {each: vectors[each] @ vectors[each].T for each in PRECISIONS}
    return {
        each: Ranking(
            with_people=rank_correlation(similarities[each], ratings),
            with_fp32=rank_correlation(similarities[each], similarities["fp32"]),
            least_cosine=float((vectors[each] * vectors["fp32"]).sum(axis=1).min()),
        )
        for each in PRECISIONS
    }


def judge_ranking(rankings: Mapping[Precision, Ranking]) -> list[Condition]:
    """Return whether int8 ranks documents as fp32 does, and keeps their vectors."""
    exact, seen = rankings["fp32"].with_people, rankings["int8"].with_people
    least = rankings["int8"].least_cosine
    return [
        Condition(
            name=f"{MINILM}, pairs of rated documents: ranked as well as in fp32 - {_WORSE}",
            holds=seen >= exact - _WORSE,
            seen=f"{seen:.3f} beside {exact:.3f}",
        ),
        Condition(
            name=f"{MINILM}, rated documents: every cosine with fp32 ≥ {_LEAST_COSINE}",
            holds=least >= _LEAST_COSINE,
            seen=f"{least:.4f}",
        ),
    ]


def main() -> int:
    """Measure, report, and return 0 if every condition holds."""
    parser = options(__doc__, "int8", seconds=15)
    parser.add_argument("--rated-documents", type=Path, required=True, metavar="FOLDER")
    chosen = parser.parse_args()
    configs = _export(chosen.models)
    quality, rankings = _quality(chosen.models), _ranking(chosen.models, chosen.rated_documents)
    samples = {}
    for encoder, config in configs.items():
        for threads in dict.fromkeys((1, CORES)):
            sessions: dict[str, ort.InferenceSession] = {
                each: _open(chosen.models, encoder, each, threads) for each in PRECISIONS
            }
            for size in SIZES:
                samples[encoder, threads, size] = _measure(sessions, config, size, chosen.seconds)
    rows = [
        _row(encoder, threads, f"{size[0]} × {size[1]}", taken)
        for (encoder, threads, size), taken in samples.items()
    ]
    return finish(
        chosen,
        "make int8",
        "int8 beside fp32",
        [
            *markdown_table(rows),
            f"all-MiniLM-L6-v2 on {_SENTENCES} sentences of this project's documents, alone and in batches "
            f"of {_BATCH}:",
            "",
            *markdown_table(quality),
            "The same encoder on the 1,225 pairs of 50 news documents that people have rated (Lee, Pincombe "
            "and Welsh, 2005):",
            "",
            *markdown_table(
                {
                    "precision": precision,
                    "Spearman, with people's ratings": f"{found.with_people:.4f}",
                    "with fp32": f"{found.with_fp32:.4f}",
                    "cosine with fp32, least": f"{found.least_cosine:.4f}",
                }
                for precision, found in rankings.items()
            ),
        ],
        conditions=[*judge(samples), *judge_ranking(rankings)],
        intro=["In process, both precisions in turn, medians of the turns."],
        facts={"gains": rows, "quality": quality, "rankings": rankings},
    )


def _row(encoder: str, threads: int, size: str, taken: Mapping[str, list[float]]) -> dict[str, object]:
    return {
        "encoder": encoder,
        "threads": threads,
        "B × T": size,
        **{f"{precision}, ms": f"{1e3 * median(taken[precision]):.1f}" for precision in PRECISIONS},
        "× fp32": f"{median(gains(taken)):.2f}",
    }


if __name__ == "__main__":
    sys.exit(main())
