"""Texts of this project's documents."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_DOCUMENTS = Path(__file__).parent.parent / "docs"
_PASSAGES = 4
"""Of so many paragraphs, one is a text as a whole."""
_LONGEST = 900
"""Characters of a text, which have below 256 tokens, the most that MiniLM was trained with."""


def natural_texts(count: int) -> list[str]:
    """Return so many different texts whose lengths are those of real text, the same every time.

    They are what is searched for and found: sentences, and passages of several. Their lengths are about
    log-normal, with a median of about 20 tokens.
    """
    pages = [page.read_text() for page in sorted(_DOCUMENTS.glob("*.md"))]
    paragraphs = [paragraph for page in pages for paragraph in split_paragraphs(page)]
    sentences = [sentence for paragraph in paragraphs for sentence in _sentences(paragraph)]
    every = [text for text in (*sentences, *paragraphs[::_PASSAGES]) if 0 < len(text) <= _LONGEST]
    some = np.random.default_rng(0).choice(list(dict.fromkeys(every)), count, replace=False)
    return list(map(str, some))


def share_of_tokens(lengths: Sequence[int] | NDArray[np.integer], batch: int) -> float:
    """Return which share of the tokens in padded batches exists.

    Args:
        lengths: T of each sequence, in the order in which they are batched.
        batch: Sequences of each batch; the last may have fewer.
    """
    batches = [lengths[start : start + batch] for start in range(0, len(lengths), batch)]
    return float(sum(map(sum, batches)) / sum(len(each) * max(each) for each in batches))


def split_paragraphs(text: str) -> list[str]:
    """Return the paragraphs and the points of a page in Markdown, without code, tables and headings."""
    without_code = re.sub(r"```.*?```", "", text, flags=re.S)
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[*-]|\d+\.) )", without_code)
    prose = (block.strip() for block in blocks)
    return [_plain(re.sub(r"^([*-]|\d+\.) ", "", block)) for block in prose if block and block[0] not in "|#"]


def _plain(text: str) -> str:
    """Return text without links and line breaks."""
    return re.sub(r"\s+", " ", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text))


def _sentences(plain: str) -> list[str]:
    return re.split(r"(?<=[.!?:]) ", plain)
