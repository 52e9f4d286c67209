"""What int8 changes: news documents that people have rated, ranked in both precisions.

How much faster it is, served and in process, the part `engines` measures.
"""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.compare.files import prepare
from benchmarks.encoders import MINILM, TINY_TEXTS
from benchmarks.engines.backends import Embed, EngineModel, open_engine
from benchmarks.engines.plans import BatchPlan
from benchmarks.engines.processes import CORES
from benchmarks.page import finish
from benchmarks.rounds import Condition, markdown_table
from benchmarks.sentences import natural_texts

_PRECISIONS = ("fp32", "int8")
_WORSE = 0.02
"""The most by which int8's correlation with people's ratings may be below that of fp32."""
_LEAST_COSINE = 0.995

Engines = Mapping[str, Embed]
"""By precision."""


def run(chosen: Namespace) -> int:
    """Rank documents, write the page, and return 0 if every condition holds."""
    documents, ratings = natural_texts(8), np.random.default_rng(0).random((8, 8))
    if not chosen.tiny:
        documents, ratings = rated_documents(chosen.rated_documents)
    files = prepare(TINY_TEXTS if chosen.tiny else MINILM, chosen.models, None)
    engines = {}
    for precision in _PRECISIONS:
        path, tokenizer = str(files.graph(precision=precision)), str(files.tokenizer)
        model = EngineModel(kind="onnxruntime", path=path, tokenizer=tokenizer)
        engines[precision] = open_engine(model, lanes=1, threads=CORES)
    rankings = rank(engines, documents, ratings)
    return finish(
        chosen,
        "int8",
        "make compare PARTS=int8",
        "int8 beside fp32",
        markdown_table(
            {
                "precision": precision,
                "Spearman, with people's ratings": f"{found.with_people:.4f}",
                "with fp32": f"{found.with_fp32:.4f}",
                "cosine with fp32, least": f"{found.least_cosine:.4f}",
                "mean": f"{found.mean_cosine:.4f}",
            }
            for precision, found in rankings.items()
        ),
        conditions=judge_rankings(rankings),
        intro=[
            "all-MiniLM-L6-v2 on the 1,225 pairs of 50 news documents that people have rated (Lee, Pincombe",
            "and Welsh, 2005), in process.",
        ],
        facts={"rankings": rankings},
    )


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """How a precision ranks pairs of rated documents: Spearman's correlations of its cosines."""

    with_people: float
    """With people's ratings."""
    with_fp32: float
    """With the cosines of fp32."""
    least_cosine: float
    """Of a document's vector with that of fp32."""
    mean_cosine: float


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
    alone = BatchPlan(batch=1, threads=CORES)
    vectors = {each: embed(documents, alone) for each, embed in engines.items()}
    pairs = np.triu_indices(len(documents), 1)
    similarities = {each: (found @ found.T)[pairs] for each, found in vectors.items()}

    def correlation(one: str, other: NDArray[np.floating]) -> float:
        return float(stats.spearmanr(similarities[one], other).statistic)

    return {
        each: Ranking(
            with_people=correlation(each, ratings[pairs]),
            with_fp32=correlation(each, similarities["fp32"]),
            least_cosine=float((vectors[each] * vectors["fp32"]).sum(axis=1).min()),
            mean_cosine=float((vectors[each] * vectors["fp32"]).sum(axis=1).mean()),
        )
        for each in _PRECISIONS
    }


def judge_rankings(rankings: Mapping[str, Ranking]) -> list[Condition]:
    """Return whether int8 ranks documents as fp32 does, and keeps their vectors."""
    exact, seen = rankings["fp32"].with_people, rankings["int8"].with_people
    least = rankings["int8"].least_cosine
    return [
        Condition(
            name=f"ranked as well as in fp32 - {_WORSE}",
            holds=seen >= exact - _WORSE,
            seen=f"{seen:.3f} beside {exact:.3f}",
        ),
        Condition(
            name=f"every cosine with fp32 ≥ {_LEAST_COSINE}",
            holds=least >= _LEAST_COSINE,
            seen=f"{least:.4f}",
        ),
    ]
