"""Text to tokens as transformers does it, the family's limits kept."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from polyhead_server.errors import InvalidRequestError, RepositoryError, TooLargeError
from polyhead_server.tokeniser import Tokeniser

TEXTS = ["The cat sat on the mat.", "", "dogs", "cat " * 14, "  Big, red... unknownword!"]
LONG = "the big dog and the small cat ran on a red sofa and sat on a blue mat"


@pytest.fixture
def file(repository: Path) -> Path:
    return repository / "tiny-tokens" / "1" / "tokenizer.json"


@pytest.fixture
def tokeniser(file: Path) -> Tokeniser:
    return Tokeniser(file, max_tokens=16)


def reference(file: Path) -> Any:
    """The tokeniser as sentence-transformers uses it."""
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_file=str(file), pad_token="[PAD]")


def test_texts_are_tokenised_as_transformers_does(tokeniser: Tokeniser, file: Path) -> None:
    ours = tokeniser.encode(TEXTS, truncate=False, max_total=1000)
    theirs = reference(file)(TEXTS, padding=True, truncation=False, return_tensors="np")

    np.testing.assert_array_equal(ours.input_ids, theirs["input_ids"])
    np.testing.assert_array_equal(ours.token_type_ids, np.zeros_like(theirs["input_ids"]))
    np.testing.assert_array_equal(ours.lengths, theirs["attention_mask"].sum(axis=1))


def test_tokens_are_named_with_or_without_the_text(tokeniser: Tokeniser, file: Path) -> None:
    ours = tokeniser.encode(TEXTS, truncate=False, max_total=1000)
    theirs = [
        reference(file).convert_ids_to_tokens(row[:length])
        for row, length in zip(ours.input_ids.tolist(), ours.lengths.tolist(), strict=True)
    ]

    assert [list(row) for row in ours.tokens] == theirs
    assert tokeniser.tokens_of(ours.input_ids, ours.lengths) == theirs


def test_ids_without_a_token_have_an_empty_name(tokeniser: Tokeniser) -> None:
    assert tokeniser.tokens_of(np.array([[2, 31, 3]]), np.array([2], np.int32)) == [["[CLS]", ""]]


def test_tokens_are_left_out_when_nobody_wants_them(tokeniser: Tokeniser) -> None:
    quick = tokeniser.encode(TEXTS, truncate=False, max_total=1000, with_tokens=False)

    assert not quick.tokens
    np.testing.assert_array_equal(
        quick.input_ids, tokeniser.encode(TEXTS, truncate=False, max_total=1000).input_ids
    )


def test_a_long_text_is_cut_as_transformers_cuts_it(tokeniser: Tokeniser, file: Path) -> None:
    ours = tokeniser.encode([LONG], truncate=True, max_total=1000)
    theirs = reference(file)([LONG], truncation=True, max_length=16, return_tensors="np")

    np.testing.assert_array_equal(ours.input_ids, theirs["input_ids"])
    assert ours.tokens[0][-1] == "[SEP]"
    assert ours.lengths.tolist() == [16]


def test_a_long_text_is_refused_with_what_to_do(tokeniser: Tokeniser) -> None:
    with pytest.raises(
        InvalidRequestError,
        match=r"text\[1\] must be at most 16 tokens, was 20: "
        "shorten it or set the parameter truncate to true",
    ):
        tokeniser.encode(["cat", LONG], truncate=False, max_total=1000)


def test_a_text_of_the_limit_is_taken(tokeniser: Tokeniser) -> None:
    assert tokeniser.encode(["cat " * 14], truncate=False, max_total=1000).input_ids.shape == (1, 16)


def test_a_text_without_tokens_is_refused(tmp_path: Path) -> None:
    bare = Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    bare.pre_tokenizer = pre_tokenizers.Whitespace()
    bare.save(str(tmp_path / "tokenizer.json"))
    tokeniser = Tokeniser(tmp_path / "tokenizer.json", max_tokens=None)

    with pytest.raises(InvalidRequestError, match=r"text\[1\] must have at least 1 token, had none"):
        tokeniser.encode(["a", ""], truncate=False, max_total=1000)


def test_a_skewed_batch_is_refused_before_it_is_padded(file: Path) -> None:
    tokeniser = Tokeniser(file, max_tokens=None)

    with pytest.raises(TooLargeError, match=r"at most 1000 tokens, had 2040 \(B 20 × T 102"):
        tokeniser.encode(["cat " * 100, *["cat"] * 19], truncate=False, max_total=1000)


def test_a_file_that_is_no_tokeniser_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"version": "1.0"}))

    with pytest.raises(RepositoryError, match=r"tokenizer\.json cannot be read as a tokeniser"):
        Tokeniser(path, max_tokens=8)


def test_a_limit_without_room_for_special_tokens_is_refused(file: Path) -> None:
    with pytest.raises(
        RepositoryError, match=r"adds 2 special tokens to each text: .* more than that, was 2"
    ):
        Tokeniser(file, max_tokens=2)


def test_a_text_far_too_long_is_not_looked_at(tokeniser: Tokeniser) -> None:
    longest = 16 * 256
    with pytest.raises(
        InvalidRequestError,
        match=rf"text\[1\] must be at most 16 tokens and {longest} characters, was {longest + 1} characters",
    ):
        tokeniser.encode(["cat", "c" * (longest + 1)], truncate=False, max_total=1000)


def test_a_text_far_too_long_is_cut_all_the_same(tokeniser: Tokeniser) -> None:
    cut = tokeniser.encode(["the cat sat " * 5000], truncate=True, max_total=1000)

    assert list(cut.tokens[0]) == ["[CLS]", *["the", "cat", "sat"] * 4, "the", "cat", "[SEP]"]


def test_a_prompt_stands_before_every_text(file: Path) -> None:
    prompted = Tokeniser(file, max_tokens=16, prompt="the big ")

    for truncate, texts in ((False, ["cat", "", "red sofa"]), (True, [LONG, "c" * 10_000])):
        ours = prompted.encode(texts, truncate=truncate, max_total=1000)
        theirs = reference(file)(
            [f"the big {text}" for text in texts],
            padding=True,
            return_tensors="np",
            **({"truncation": True, "max_length": 16} if truncate else {}),
        )
        np.testing.assert_array_equal(ours.input_ids, theirs["input_ids"])
        assert list(ours.tokens[0][:3]) == ["[CLS]", "the", "big"]
    with pytest.raises(InvalidRequestError, match=r"text\[0\] must be at most 16 tokens, was 17"):
        prompted.encode(["cat " * 13], truncate=False, max_total=1000)


def test_many_texts_are_tokenised_in_portions(tokeniser: Tokeniser, file: Path) -> None:
    texts = [("cat " * (index % 5)).ljust(3000) for index in range(200)]

    ours = tokeniser.encode(texts, truncate=False, max_total=10_000)

    theirs = reference(file)(texts, padding=True, truncation=False, return_tensors="np")
    np.testing.assert_array_equal(ours.input_ids, theirs["input_ids"])
