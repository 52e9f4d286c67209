"""Sentences of this project's documents."""

import re
from pathlib import Path

import numpy as np

_DOCUMENTS = Path(__file__).parent.parent / "docs"


def some_sentences(count: int) -> list[str]:
    """Return so many different sentences, the same every time."""
    every = [one for page in sorted(_DOCUMENTS.glob("*.md")) for one in split_sentences(page.read_text())]
    some: list[str] = (
        np.random.default_rng(0).choice(list(dict.fromkeys(every)), count, replace=False).tolist()
    )
    return some


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a page in Markdown, without code, tables and headings."""
    prose = "\n".join(
        line
        for line in re.sub(r"```.*?```", "", text, flags=re.S).splitlines()
        if not line.startswith(("|", "#"))
    )
    plain = re.sub(r"\s+", " ", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", prose))
    return [sentence for each in re.split(r"(?<=[.!?:]) ", plain) if 20 < len(sentence := each.strip()) < 400]
