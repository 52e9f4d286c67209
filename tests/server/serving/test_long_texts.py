"""What is truncated a window at a time is what truncation makes of the whole text."""

import random
from collections.abc import Callable
from typing import Literal

import pytest
from tests.checkpoints import albert_tokenizer, bert_tokenizer, gpt2_tokenizer, roberta_tokenizer
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from polyhead_server.errors import InvalidRequestError
from polyhead_server.serving.long_texts import LongTexts

WINDOW = 128
Side = Literal["left", "right"]


def metaspace_tokenizer() -> Tokenizer:
    """A Unigram that makes one token of any amount of white space."""
    words = [("<unk>", 0.0), *((letter, -3.0) for letter in "▁abcdefghijklmnopqrstuvwxyz")]
    tokenizer = Tokenizer(models.Unigram([*words, ("▁cat", -2.0)], unk_id=0))
    tokenizer.normalizer = normalizers.Replace(Regex(r"\s+"), " ")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


def prepending_tokenizer() -> Tokenizer:
    """A tokeniser that makes the same of a text with a space before it, but for that space."""
    tokenizer = metaspace_tokenizer()
    tokenizer.normalizer = normalizers.Prepend("▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    return tokenizer


MAKE: dict[str, Callable[[], Tokenizer]] = {
    "WordPiece": bert_tokenizer,
    "Unigram": albert_tokenizer,
    "Unigram, spaces shrunk": metaspace_tokenizer,
    "Unigram, by its normaliser": prepending_tokenizer,
    "byte-level BPE": gpt2_tokenizer,
    "with a template": roberta_tokenizer,
}


def texts(seed: int) -> list[str]:
    """Texts of short and long words, and of short and long white space."""
    draw = random.Random(seed)
    spaces = [" ", " ", " ", "  ", "\n", "\n ", " " * 30, "\t" * 150, " " * 500]
    words = ["cat", "a", "the", "日本", "Éa", "dog.", "x" * 50, "[MASK]"]
    return [
        "".join(draw.choice(words) + draw.choice(spaces) for _ in range(draw.choice([2, 9, 60])))
        + draw.choice(["", " end"])
        for _ in range(20)
    ] + ["", " " * 400, "\n" * 400 + "cat", "cat" + " " * 400, "y" * 700 + " z"]


def places(text: str, offsets: list[tuple[int, int]]) -> list[tuple[int, int] | None]:
    """Where tokens are, without the white space around them: how much of it is theirs does not matter."""
    return [
        None
        if not (part := text[start:end]).strip()
        else (end - len(part.lstrip()), start + len(part.rstrip()))
        for start, end in offsets
    ]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("most", [5, 12, 40])
def test_windows_change_nothing(kind: str, side: Side, most: int) -> None:
    whole, cut = MAKE[kind](), MAKE[kind]()
    cut.enable_truncation(most, direction=side)
    long = LongTexts(whole, WINDOW, len, side, prepends=MAKE[kind] is prepending_tokenizer)

    for text in texts(most):
        ours, theirs = long.truncate(text, cut, most, 0), cut.encode(text)
        assert (ours.ids, ours.type_ids) == (theirs.ids, theirs.type_ids), text
        if long.prepends:  # what is prepended to a window has the place of a character, not of a space
            continue
        assert places(text, ours.offsets) == places(text, theirs.offsets), text
        numbers = {word: number for number, word in enumerate(dict.fromkeys(ours.word_ids))}
        theirs_numbers = {word: number for number, word in enumerate(dict.fromkeys(theirs.word_ids))}
        assert [numbers[word] for word in ours.word_ids] == [
            theirs_numbers[word] for word in theirs.word_ids
        ], text


@pytest.mark.parametrize("side", ["left", "right"])
def test_windows_change_nothing_of_pairs(side: Side) -> None:
    whole, cut = bert_tokenizer(), bert_tokenizer()
    cut.enable_truncation(15, direction=side)
    long = LongTexts(whole, WINDOW, len, side)

    for pair in zip(texts(1), texts(2)[::-1], strict=True):
        ours, theirs = long.truncate(pair, cut, 15, 0), cut.encode(*pair)
        assert (ours.ids, ours.type_ids) == (theirs.ids, theirs.type_ids), pair
        assert (ours.offsets, ours.sequence_ids) == (theirs.offsets, theirs.sequence_ids), pair


def test_characters_count_as_they_are_normalised() -> None:
    sizes = []

    def size(text: str) -> int:
        sizes.append(len(text))
        return 18 * len(text)

    cut = bert_tokenizer()
    cut.enable_truncation(8)
    made = LongTexts(bert_tokenizer(), WINDOW, size, "right").truncate("a b " * 90, cut, 8, 0)

    assert made.tokens == cut.encode("a b " * 90).tokens
    assert max(sizes) <= WINDOW


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_word_far_too_long_is_refused(side: Side) -> None:
    cut = bert_tokenizer()
    cut.enable_truncation(8, direction=side)
    long = LongTexts(bert_tokenizer(), WINDOW, len, side)

    with pytest.raises(InvalidRequestError, match=r"text\[3\] must have a space in every 1024 characters"):
        long.truncate("a " + "x" * 4000 + " b", cut, 8, 3)
    # But not where it does not matter: each of these is a token.
    assert len(long.truncate("日" * 4000, cut, 8, 0)) == 8
