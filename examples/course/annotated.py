"""Sentences with who belongs to whom in them: annotated.json, and what of an attention map concerns them.

Each pair is `HEAD > DEPENDENT`, as in "sold > farmer", a verb and its subject. Of a coreference it is
`PRONOUN > ANTECEDENT`. `the:2` is the second "the". Punctuation is no word.

Shape letters: T tokens, W words, L layers, H heads.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

Span = tuple[int, int]
"""Where something starts and ends in a text, in characters."""


@dataclass(frozen=True, kw_only=True)
class Annotated:
    """A sentence."""

    text: str
    words: tuple[Span, ...]
    """Where each of its W words is."""
    pairs: dict[str, tuple[tuple[int, int], ...]]
    """Of each relation, pairs of words by number: head and dependent, or pronoun and antecedent."""

    def word(self, number: int) -> str:
        """Return a word by its number."""
        return self.text[slice(*self.words[number])]


def read_annotated(path: Path = Path(__file__).parent / "annotated.json") -> list[Annotated]:
    """Read the sentences.

    Raises:
        ValueError: A pair names a word that is not in its sentence.
    """
    return [_sentence(**sentence) for sentence in json.loads(path.read_text())]


def _sentence(text: str, **relations: list[str]) -> Annotated:
    words = tuple(match.span() for match in re.finditer(r"\w+", text))
    spelled = [text[slice(*span)] for span in words]

    def number(name: str) -> int:
        word, _, occurrence = name.partition(":")
        found = [index for index, each in enumerate(spelled) if each == word]
        which = int(occurrence or 1) - 1
        if which >= len(found):
            raise ValueError(f"a pair must name words of its sentence, was {name!r} in {text!r}")
        return found[which]

    pairs = {
        relation: tuple(
            (number(head), number(dependent)) for head, dependent in (p.split(" > ") for p in names)
        )
        for relation, names in relations.items()
    }
    return Annotated(text=text, words=words, pairs=pairs)


def between_words(attention: Tensor, offsets: Sequence[Span], words: Sequence[Span]) -> Tensor:
    """Turn attention between tokens into attention between words, as Clark et al. 2019 (section 4.1) do.

    A word gets the sum of what its tokens get, and gives the mean of what its tokens give. Tokens of no word,
    such as [CLS] and punctuation, are left out.

    Args:
        attention: [L, H, T, T].
        offsets: Where each token is in the text.
        words: Where each word is.

    Returns:
        [L, H, W, W].
    """
    belongs = torch.tensor(
        [
            [float(start < end and first <= start and end <= last) for start, end in offsets]
            for first, last in words
        ]
    )  # [W, T]
    mean = belongs / belongs.sum(1, keepdim=True)
    return mean @ attention @ belongs.T
