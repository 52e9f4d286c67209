"""How much faster int8 is than fp32, and what it changes, on this machine.

A trained MiniLM and an encoder of BERT-base's size, fast graphs, in process, in turn. Then MiniLM embeds news
documents that people have rated.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.compare.files import EngineFiles, prepare
from benchmarks.compare.text_load import TextTraffic
from benchmarks.encoders import BERT, MINILM, TINY_TEXTS, BenchEncoder
from benchmarks.engines.kinds import EngineModel
from benchmarks.engines.plans import BatchPlan
from benchmarks.engines.processes import CORES, EngineWorker, engine_worker
from benchmarks.page import finish, in_rounds
from benchmarks.rounds import Comparison, Condition, Want, compare, markdown_table, undisturbed
from benchmarks.sentences import natural_texts

_FP32, _INT8 = "fp32", "int8"
_SIZES = {(1, 16): 2.2, (1, 64): 2.2, (8, 64): 2.2, (4, 256): 1.9}
"""How many times as fast as fp32 int8 must be, by size (B, T)."""
_WORSE = 0.02
"""The most by which int8's correlation with people's ratings may be below that of fp32."""
_LEAST_COSINE = 0.995
_ALONE = BatchPlan(batch=1, threads=CORES)

Engines = Mapping[str, EngineWorker]
"""By precision, int8 first: it is compared with fp32."""


def run(chosen: Namespace) -> int:
    """Measure, write the page, and return 0 if every condition holds."""
    comparisons: list[Comparison] = []
    conditions: list[Condition] = []
    for encoder in (TINY_TEXTS,) if chosen.tiny else (MINILM, BERT):
        with ExitStack() as stack:
            files = prepare(encoder, chosen.models, None)
            engines = {each: stack.enter_context(_engine(files, each)) for each in (_INT8, _FP32)}
            for size, least in _SIZES.items():
                for threads in sorted({1, CORES}):
                    compared = _speed(encoder, engines, size, threads, chosen)
                    comparisons.append(compared)
                    conditions += compared.judge([Want(of=_FP32, least=least)])
            if encoder is not BERT:
                documents, ratings = natural_texts(8), np.random.default_rng(0).random((8, 8))
                if not chosen.tiny:
                    documents, ratings = rated_documents(chosen.rated_documents)
                rankings = rank(engines, documents, ratings)
    conditions += judge_rankings(rankings)
    return finish(
        chosen,
        "int8",
        "make compare PARTS=int8",
        "int8 beside fp32",
        [
            *markdown_table(_row(each) for each in comparisons),
            "all-MiniLM-L6-v2 on the 1,225 pairs of 50 news documents that people have rated (Lee, Pincombe "
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
        conditions=[*conditions, undisturbed(comparisons)],
        intro=[f"In process. {in_rounds(chosen)}"],
        facts={"comparisons": comparisons, "rankings": rankings},
    )


# ---- Speed ---------------------------------------------------------------------------------------------


@contextmanager
def _engine(files: EngineFiles, precision: str) -> Iterator[EngineWorker]:
    path = str(files.graph(precision=precision).absolute())
    model = EngineModel(kind="onnxruntime", path=path, tokenizer=str(files.tokenizer), variant=precision)
    with engine_worker(precision, model, files.folder) as worker:
        yield worker


def _speed(
    encoder: BenchEncoder, engines: Engines, size: tuple[int, int], threads: int, chosen: Namespace
) -> Comparison:
    """Run both precisions in turn."""
    (batch, tokens), plan = size, BatchPlan(batch=size[0], threads=threads)
    traffic = TextTraffic(per_call=batch, in_flight=1, tokens=tokens)
    measures = {
        name: partial(engine.measure, traffic.sequences(()), plan, per_call=batch, seconds=chosen.seconds)
        for name, engine in engines.items()
    }
    title = f"{encoder}, B × T = {batch} × {tokens}, {plan.way}"
    return compare(title, measures, chosen.rounds, spare=chosen.spare)


def _row(comparison: Comparison) -> dict[str, object]:
    return {
        "": comparison.title,
        **{f"{each}, ms": f"{comparison.median(each, 'p50_ms'):.1f}" for each in (_FP32, _INT8)},
        "× fp32": str(comparison.ratio(_INT8, _FP32)),
    }


# ---- Numbers -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """How a precision ranks pairs of rated documents: Spearman's correlations of its cosines."""

    with_people: float
    """With people's ratings."""
    with_fp32: float
    """With the cosines of fp32."""
    least_cosine: float
    """Of a document's vector with that of fp32."""


def rated_documents(folder: Path) -> tuple[list[str], NDArray[np.float64]]:
    """Return 50 news documents, and the mean rating (0 to 1) of each pair above the diagonal of [50, 50].

    They are files of the package gensim, which `make compare` downloads for them.

    Raises:
        ValueError: There are not as many ratings as documents.
    """
    documents = (folder / "lee.cor").read_text(encoding="latin-1").strip().splitlines()
    ratings = np.loadtxt(folder / "similarities0-1.txt")
    if ratings.shape != (len(documents), len(documents)):
        raise ValueError(f"{folder} must hold a rating for each pair of {len(documents)} documents")
    return documents, ratings


def rank(engines: Engines, documents: Sequence[str], ratings: NDArray[np.float64]) -> dict[str, Ranking]:
    """Rank pairs of rated documents in each precision."""
    vectors = {each: engine.embed(documents, _ALONE) for each, engine in engines.items()}
    pairs = np.triu_indices(len(documents), 1)
    similarities = {each: (found @ found.T)[pairs] for each, found in vectors.items()}

    def correlation(one: str, other: NDArray[np.floating]) -> float:
        return float(stats.spearmanr(similarities[one], other).statistic)

    return {
        each: Ranking(
            with_people=correlation(each, ratings[pairs]),
            with_fp32=correlation(each, similarities[_FP32]),
            least_cosine=float((vectors[each] * vectors[_FP32]).sum(axis=1).min()),
        )
        for each in (_FP32, _INT8)
    }


def judge_rankings(rankings: Mapping[str, Ranking]) -> list[Condition]:
    """Return whether int8 ranks documents as fp32 does, and keeps their vectors."""
    exact, seen = rankings[_FP32].with_people, rankings[_INT8].with_people
    least = rankings[_INT8].least_cosine
    return [
        Condition(
            name=f"pairs of rated documents: ranked as well as in fp32 - {_WORSE}",
            holds=seen >= exact - _WORSE,
            seen=f"{seen:.3f} beside {exact:.3f}",
        ),
        Condition(
            name=f"rated documents: every cosine with fp32 ≥ {_LEAST_COSINE}",
            holds=least >= _LEAST_COSINE,
            seen=f"{least:.4f}",
        ),
    ]
