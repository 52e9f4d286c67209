"""Sentences with who belongs to whom in them, annotated.json, and which heads know it.

Each pair is `HEAD > DEPENDENT`, as in "sold > farmer", a verb and its subject. Of a coreference it is
`PRONOUN > ANTECEDENT`. `the:2` is the second "the". Punctuation is no word.

Shape letters: T tokens, W words, L layers, H heads, P pairs.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Span = tuple[int, int]
"""Where something starts and ends in a text, in characters."""

PRONOUNS = {"he", "her", "him", "it", "nobody", "she", "them", "they"}
"""Those that are subjects or objects here."""
WITH_A_NOUN_AS_HEAD = ("determiner", "adjective", "possessive")
WITH_A_DEPENDENT_NOUN = ("subject", "object", "object of a preposition")


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

    def nouns(self) -> list[int]:
        """Return the nouns that occur in any pair, by number."""
        found = {head for name in WITH_A_NOUN_AS_HEAD for head, _ in self.pairs.get(name, ())}
        found |= {dependent for name in WITH_A_DEPENDENT_NOUN for _, dependent in self.pairs.get(name, ())}
        return sorted(number for number in found if self.word(number).lower() not in PRONOUNS)


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


OFFSETS = tuple(offset for offset in range(-8, 9) if offset)


class Comparison(NamedTuple):
    """How often the best head is right about a relation, and how often the best fixed offset."""

    pairs: int
    """P."""
    heads: tuple[tuple[int, int], tuple[int, int]]
    """The layer and the number of the head that is best in each half of the sentences."""
    head: float
    """The share of pairs about which the best head of the other half is right."""
    offset: float
    """The same of the best offset."""
    gain: tuple[float, float]
    """The 95 % interval of the difference, by bootstrap over sentences."""


def compare_with_offsets(
    sentences: Sequence[Annotated], maps: Sequence[Tensor], relation: str, *, reverse: bool = False
) -> Comparison:
    """Compare heads with always looking at one offset, the baseline of Clark et al. 2019 (section 4.2).

    A head is right about a pair if, of all other words, it looks most at the second. Head and offset are
    chosen on one half of the sentences and judged on the other: else the luckiest of many heads would win.

    Args:
        sentences: The sentences.
        maps: Attention between the words of each, [L, H, W, W].
        relation: The relation.
        reverse: Whether to look from dependent to head, instead of from head to dependent.
    """
    by_head, by_offset, sentence = _right(sentences, maps, relation, reverse=reverse)
    head, offset = np.zeros(len(sentence)), np.zeros(len(sentence))
    best_heads = []
    for half in (0, 1):
        chosen_on, judged_on = sentence % 2 == half, sentence % 2 != half
        best = int(by_head[chosen_on].mean(0).argmax())
        best_heads.append(divmod(best, maps[0].shape[1]))
        head[judged_on] = by_head[judged_on, best]
        offset[judged_on] = by_offset[judged_on, by_offset[chosen_on].mean(0).argmax()]
    random, gains = np.random.default_rng(0), []
    for _ in range(1000):
        drawn = np.bincount(random.integers(len(sentences), size=len(sentences)), minlength=len(sentences))
        gains.append(np.average(head - offset, weights=drawn[sentence]))
    low, high = np.quantile(gains, (0.025, 0.975)).tolist()
    first, second = best_heads
    return Comparison(len(sentence), (first, second), float(head.mean()), float(offset.mean()), (low, high))


def _right(
    sentences: Sequence[Annotated], maps: Sequence[Tensor], relation: str, *, reverse: bool
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return whether heads [P, L · H] and offsets [P, offsets] are right, and the number of the sentence [P].

    A word with several partners is one pair: each of them is right.
    """
    by_head, by_offset, numbers = [], [], []
    for number, (sentence, between) in enumerate(zip(sentences, maps, strict=True)):
        others = between.masked_fill(torch.eye(len(sentence.words), dtype=torch.bool), -1)
        partners: dict[int, set[int]] = {}
        for pair in sentence.pairs.get(relation, ()):
            start, end = reversed(pair) if reverse else pair
            partners.setdefault(start, set()).add(end)
        for start, ends in partners.items():
            by_head.append([word in ends for word in others[:, :, start].argmax(-1).flatten().tolist()])
            by_offset.append([start + offset in ends for offset in OFFSETS])
            numbers.append(number)
    return np.array(by_head, float), np.array(by_offset, float), np.array(numbers)
