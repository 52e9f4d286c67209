"""News documents whose similarities people have rated: Lee, Pincombe and Welsh, 2005.

The 50 documents and the mean rating of each pair (0 to 1) are files of the package gensim, which
`make int8` downloads for them.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

DOCUMENTS, RATINGS = "lee.cor", "similarities0-1.txt"


def rated_documents(folder: Path) -> tuple[list[str], NDArray[np.float64]]:
    """Return the documents, and the rating of each pair above the diagonal of [50, 50].

    Raises:
        ValueError: There are not as many ratings as documents.
    """
    documents = (folder / DOCUMENTS).read_text(encoding="latin-1").strip().splitlines()
    ratings = np.loadtxt(folder / RATINGS)
    if ratings.shape != (len(documents), len(documents)):
        raise ValueError(f"{folder} must hold a rating for each pair of {len(documents)} documents")
    return documents, ratings


def rank_correlation(one: NDArray[np.floating], other: NDArray[np.floating]) -> float:
    """Return Spearman's correlation of two similarities, each [n, n], over the pairs above the diagonal."""
    pairs = np.triu_indices(len(one), 1)
    return float(stats.spearmanr(one[pairs], other[pairs]).statistic)
