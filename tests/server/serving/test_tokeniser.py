"""Text to tokens as transformers does it, the family's limits kept."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from polyhead_server.errors import EngineError, InvalidRequestError, RepositoryError, TooLargeError
from polyhead_server.serving.tokeniser import Tokeniser
from polyhead_server.serving.words import in_pair

TEXTS = ["The cat sat on the mat.", "", "dogs", "cat " * 14, "  Big, red... unknownword!"]
Changed = Callable[[dict[str, Any]], Path]

LONG = "the big dog and the small cat ran on a red sofa and sat on a blue mat"


@pytest.fixture
def file(repository: Path) -> Path:
    return repository / "tiny-tokens" / "1" / "tokenizer.json"


@pytest.fixture
def tokeniser(file: Path) -> Tokeniser:
    return Tokeniser(file, max_tokens=16)


@pytest.fixture
def changed(file: Path, tmp_path: Path) -> Changed:
    """Writes the file with other parts."""

    def change(parts: dict[str, Any]) -> Path:
        path = tmp_path / "tokenizer.json"
        path.write_text(json.dumps(json.loads(file.read_text()) | parts))
        return path

    return change


def reference(file: Path) -> Any:
    """The tokeniser as sentence-transformers uses it."""
    from transformers import PreTrainedTokenizerFast

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


def test_a_long_text_is_refused_with_what_to_do(tokeniser: Tokeniser) -> None:
    with pytest.raises(
        InvalidRequestError,
        match=r"text\[1\] must be at most 16 tokens, was 20: "
        "shorten it or set the parameter truncate to true",
    ):
        tokeniser.encode(["cat", LONG], truncate=False, max_total=1000)
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


@pytest.mark.parametrize(
    "text",
    [
        " " * 70_000 + "the cat sat",
        "\t\n" * 150_000 + "the cat " + " " * 300_000 + "sat",
        (" " * 300).join(LONG.split()),
        "the\0" + "\0" * 5000 + " cat sat on a red sofa",
        "x" * 150_000 + " the cat",
    ],
)
def test_what_a_tokeniser_drops_does_not_count(tokeniser: Tokeniser, file: Path, text: str) -> None:
    ours = tokeniser.encode([text, "cat"], truncate=True, max_total=1000, with_spans=True)
    theirs = reference(file)(text, truncation=True, max_length=16, return_offsets_mapping=True)

    length = ours.lengths[0]
    assert ours.input_ids[0, :length].tolist() == theirs["input_ids"]
    assert ours.spans is not None
    assert ours.spans[0, 1 : length - 1, :2].tolist() == [list(at) for at in theirs["offset_mapping"][1:-1]]


def test_text_is_cut_on_the_side_of_the_file(changed: Changed) -> None:
    side = {"direction": "Left", "max_length": 512, "strategy": "LongestFirst", "stride": 0}
    tokeniser = Tokeniser(changed({"truncation": side}), max_tokens=6, pairs=True)

    texts = ["the big dog and the small cat", "cat sat " * 40_000]
    ours = tokeniser.encode(texts, truncate=True, max_total=100)

    assert [list(row) for row in ours.tokens] == [
        ["[CLS]", "and", "the", "small", "cat", "[SEP]"],
        ["[CLS]", *["cat", "sat"] * 2, "[SEP]"],
    ]


def test_dropout_is_off(tmp_path: Path) -> None:
    """It merges at random, for training."""
    merges = [("a", "b"), ("ab", "ab")]
    noisy = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2, "abab": 3}, merges, dropout=0.9))
    noisy.save(str(tmp_path / "tokenizer.json"))

    made = Tokeniser(tmp_path / "tokenizer.json", max_tokens=64).encode(
        ["ab" * 40], truncate=False, max_total=100
    )
    assert made.input_ids.tolist() == [[3] * 20]


def test_a_prompt_stands_before_every_text(file: Path) -> None:
    tokeniser = Tokeniser(file, max_tokens=16)

    for truncate, texts in ((False, ["cat", "", "red sofa"]), (True, [LONG, "c" * 10_000])):
        ours = tokeniser.encode(texts, prompt="the big ", truncate=truncate, max_total=1000)
        theirs = reference(file)(
            [f"the big {text}" for text in texts],
            padding=True,
            return_tensors="np",
            **({"truncation": True, "max_length": 16} if truncate else {}),
        )
        np.testing.assert_array_equal(ours.input_ids, theirs["input_ids"])
        assert list(ours.tokens[0][:3]) == ["[CLS]", "the", "big"]
    with pytest.raises(InvalidRequestError, match=r"text\[0\] must be at most 16 tokens, was 17"):
        tokeniser.encode(["cat " * 13], prompt="the big ", truncate=False, max_total=1000)


PAIRS = [
    ("the cat", "a dog sat"),
    ("", "red"),
    (LONG, "mat"),
    ("mat", LONG),
    (LONG, LONG + " mat"),
    ("cat " * 8, "dog " * 9),
    ("", ""),
]


@pytest.mark.parametrize("truncate", [True, False])
def test_pairs_are_tokenised_as_transformers_does(file: Path, truncate: bool) -> None:
    tokeniser = Tokeniser(file, max_tokens=16 if truncate else None, pairs=True)
    first, second = map(list, zip(*PAIRS, strict=True))

    ours = tokeniser.encode(first, second, prompt="the ", truncate=truncate, max_total=1000)

    theirs = reference(file)(
        [f"the {text}" for text in first],
        second,
        padding=True,
        return_tensors="np",
        return_token_type_ids=True,
        **({"truncation": True, "max_length": 16} if truncate else {}),
    )
    np.testing.assert_array_equal(ours.input_ids, theirs["input_ids"])
    np.testing.assert_array_equal(ours.token_type_ids, theirs["token_type_ids"])
    assert ours.token_type_ids[0].tolist()[:9] == [0] * 5 + [1] * 4
    np.testing.assert_array_equal(ours.lengths, theirs["attention_mask"].sum(axis=1))
    assert [len(row) for row in ours.tokens] == ours.lengths.tolist()


def test_a_long_pair_is_refused_with_what_to_do(file: Path) -> None:
    tokeniser = Tokeniser(file, max_tokens=16, pairs=True)

    with pytest.raises(
        InvalidRequestError,
        match=r"text\[1\] and text_pair\[1\] must be at most 16 tokens, was 18: shorten it ",
    ):
        tokeniser.encode(["cat", "cat " * 7], ["dog", "dog " * 8], truncate=False, max_total=1000)
    with pytest.raises(InvalidRequestError, match=r"text_pair\[0\] must be at most 16 tokens and 4096 char"):
        tokeniser.encode(["cat"], ["c" * 5000], truncate=False, max_total=1000)
    with pytest.raises(
        RepositoryError, match=r"adds 3 special tokens to each pair: .* more than that, was 3"
    ):
        Tokeniser(file, max_tokens=3, pairs=True)


SUFFIX: dict[str, Any] = {
    "type": "TemplateProcessing",
    "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "end", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
    "special_tokens": {"end": {"id": "end", "ids": [3, 2], "tokens": ["[SEP]", "[CLS]"]}},
}
BEFORE, BETWEEN = "big red ", " on the "


@pytest.mark.parametrize("truncate", [True, False])
def test_pairs_that_are_one_text(changed: Changed, truncate: bool) -> None:
    """A template's suffix, of several tokens, is kept, and tokens are where they are in their own texts."""
    file = changed({"post_processor": SUFFIX})
    tokeniser = Tokeniser(file, max_tokens=16 if truncate else None, between=BETWEEN)
    pairs = [*PAIRS, ("a dog", "sat " * 70_000)] if truncate else PAIRS
    first, second = map(list, zip(*pairs, strict=True))

    ours = tokeniser.encode(first, second, prompt=BEFORE, truncate=truncate, max_total=1000, with_spans=True)

    whole = Tokenizer.from_file(str(file))
    whole.no_padding()
    whole.no_truncation()
    assert ours.spans is not None
    for row, (one, other) in enumerate(pairs):
        ids = whole.encode(BEFORE + one + BETWEEN + other).ids
        expected = [*ids[:14], 3, 2] if truncate and len(ids) > 16 else ids
        length = int(ours.lengths[row])
        assert ours.input_ids[row, :length].tolist() == expected
        alone, behind = (
            [[*at] for at in whole.encode(text, add_special_tokens=False).offsets] for text in (one, other)
        )
        found = ours.spans[row, :length, :2].tolist()
        nothing = [[-1, -1]]
        assert found == (nothing * 2 + alone + nothing * 2 + behind)[: length - 2] + nothing * 2


def test_a_token_that_reaches_out_of_a_text_is_of_the_text_alone() -> None:
    spans = np.array([[0, 2, 0], [2, 5, 1], [5, 7, 2], [6, 10, 3], [10, 12, 4], [-1] * 3], np.int32)

    assert in_pair(spans, first=4, between=4).tolist() == [
        [0, 2, 0],
        [2, 4, 1],
        [-1] * 3,
        [0, 2, 3],
        [2, 4, 4],
        [-1] * 3,
    ]


def test_many_pairs_are_tokenised_in_portions(file: Path) -> None:
    tokeniser = Tokeniser(file, max_tokens=None, pairs=True)
    first = ["cat ".ljust(3000)] * 100
    second = [("dog " * (index % 5)).ljust(3000) for index in range(100)]

    ours = tokeniser.encode(first, second, truncate=False, max_total=10_000)

    theirs = reference(file)(first, second, padding=True, truncation=False, return_tensors="np")
    np.testing.assert_array_equal(ours.input_ids, theirs["input_ids"])


# ---- What a tokeniser may make of a text --------------------------------------------------------


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def chain(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(steps)}


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
SPACES = {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": True}
BERT = {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
    "strip_accents": None,
    "lowercase": True,
}
TWICE: dict[str, Any] = {
    "type": "TemplateProcessing",
    "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 65,
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
    "special_tokens": {},
}


def charsmap(longest: int) -> str:
    return base64.b64encode(bytes((4, 0, 0, 0)) + bytes(4) + b"a" * longest + b"\0b\0").decode()


MULTIPLY: dict[str, dict[str, Any]] = {
    "a long replacement": {"normalizer": replace({"String": "a"}, "b" * 65)},
    "an expression that matches nothing": {"normalizer": replace({"Regex": "(?=a)"}, "b" * 32)},
    "replacements in a row": {"normalizer": chain(*[replace({"String": "a"}, "aa")] * 7)},
    "nested": {"normalizer": chain(chain(*[replace({"String": "a"}, "aa")] * 4), *[chain(BYTES)] * 2)},
    "prefixes": {"normalizer": chain(*[{"type": "Prepend", "prepend": "a"}] * 7)},
    "bytes of bytes": {"normalizer": chain(*[BYTES] * 4)},
    "spaces around spaces": {"normalizer": chain(*[BERT] * 4)},
    "a map of characters": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap(2000)}},
    "pieces of pieces": {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [SPACES] * 7}},
    "a text many times": {"post_processor": TWICE},
}


@pytest.mark.parametrize("what", MULTIPLY)
def test_a_tokeniser_that_multiplies_a_text_is_refused(changed: Changed, what: str) -> None:
    with pytest.raises(RepositoryError, match="characters or tokens of one character, the limit is 64"):
        Tokeniser(changed(MULTIPLY[what]), max_tokens=16)


def test_a_tokeniser_with_endless_tokens_is_refused(file: Path, changed: Changed) -> None:
    model = json.loads(file.read_text())["model"]
    model["vocab"]["a" * 1025] = 31

    with pytest.raises(RepositoryError, match="a token must be at most 1024 characters, the longest is 1025"):
        Tokeniser(changed({"model": model}), max_tokens=16)


@pytest.mark.parametrize(
    "parts",
    [
        # As XLM-RoBERTa, CLIP, DeBERTa and RoBERTa have them.
        {"normalizer": replace({"Regex": " {2,}"}, "▁"), "pre_tokenizer": SPACES},
        {
            "normalizer": chain({"type": "NFC"}, replace({"Regex": "\\s+"}, " "), {"type": "Lowercase"}),
            "pre_tokenizer": BYTES,
        },
        {
            "normalizer": chain({"type": "NFKC"}, replace({"Regex": " {2,}"}, " ")),
            "pre_tokenizer": SPACES,
        },
        {"normalizer": None, "pre_tokenizer": BYTES, "post_processor": BYTES},
    ],
)
def test_published_kinds_of_tokenisers_are_taken(changed: Changed, parts: dict[str, Any]) -> None:
    path = changed(parts)
    words = ["the cat sat on the mat and the dog ran " * 40]

    ours = Tokeniser(path, max_tokens=2000).encode(words, truncate=False, max_total=2000)
    theirs = reference(path)(words, truncation=False, return_tensors="np")
    np.testing.assert_array_equal(ours.input_ids, theirs["input_ids"])


def test_characters_that_unicode_spells_out_count_as_that(changed: Changed) -> None:
    tokeniser = Tokeniser(changed({"normalizer": {"type": "NFKC"}}), max_tokens=16)
    text = "\ufdfa" * 300  # 18 characters each

    with pytest.raises(InvalidRequestError, match="16 tokens and 4096 characters, was 5400 characters"):
        tokeniser.encode([text], truncate=False, max_total=1000)
    assert tokeniser.encode([text], truncate=True, max_total=1000).input_ids.shape[1] <= 16


# ---- Broken files, on some of which the library panics --------------------------------------------


def precompiled(charsmap: str) -> dict[str, Any]:
    return {"normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap}}


@pytest.mark.parametrize("parts", [{"model": None}, precompiled("AAAA"), precompiled("not base64")])
def test_a_file_that_is_no_tokeniser_is_refused(changed: Changed, parts: dict[str, Any]) -> None:
    with pytest.raises(RepositoryError, match=r"tokenizer\.json cannot be read as a tokeniser"):
        Tokeniser(changed(parts), max_tokens=16)


def test_a_panic_on_a_text_is_an_error_of_the_model(changed: Changed) -> None:
    path = changed(precompiled(base64.b64encode(b"\x04\0\0\0\xff\xff\xff\x7fabc").decode()))

    with pytest.raises(EngineError, match="the tokeniser failed: index out of bounds"):
        Tokeniser(path, max_tokens=16).encode(["cat"], truncate=False, max_total=100)
