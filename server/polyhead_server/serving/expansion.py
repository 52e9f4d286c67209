"""Bound how far a tokeniser may expand a text: each of its steps may multiply it, one after the other."""

import base64
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer

from polyhead_server.errors import RepositoryError

MAX_EXPANSION = 64
"""Characters or tokens of one character, by the rough bound below. Published tokenisers stay below 40."""

BERT_EXPANSION = 3
"""BERT's bound for one character, by the same measure: a Chinese one, with a space on either side."""

_MAX_TOKEN_CHARACTERS = 1024
"""The longest tokens of published vocabularies have a few hundred."""

MAX_COMPATIBILITY_FORM = 18
"""The most characters that a Unicode compatibility form makes of one: U+FDFA."""


def check_expansion(tokenizer: Tokenizer, parts: Mapping[str, Any], name: str) -> tuple[int, bool]:
    """Bound what a tokeniser makes of one character.

    Args:
        tokenizer: The tokeniser.
        parts: It as JSON.
        name: Its file's name, for messages.

    Returns:
        The most characters or tokens, and whether Unicode's compatibility forms add to that.

    Raises:
        RepositoryError: It is more than `MAX_EXPANSION`, or a token of the vocabulary is far too long.
    """
    longest = max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=0)
    if longest > _MAX_TOKEN_CHARACTERS:
        raise RepositoryError(
            f"{name}: a token must be at most {_MAX_TOKEN_CHARACTERS} characters, the longest is {longest}"
        )
    steps = [*steps_of(parts["normalizer"]), *steps_of(parts["pre_tokenizer"])]
    templates = [step for step in steps_of(parts["post_processor"]) if step["type"] == "TemplateProcessing"]
    expansion = math.prod(map(_expansion, steps + templates))
    if expansion > MAX_EXPANSION:
        raise RepositoryError(
            f"{name} may make {expansion} characters or tokens of one character, the limit is "
            f"{MAX_EXPANSION}: look for steps that multiply a text (Replace, Prepend, ByteLevel, Metaspace), "
            "and remove some"
        )
    return expansion, any(step["type"] in {"NFKC", "NFKD", "Precompiled"} for step in steps)


def steps_of(part: Any) -> Iterator[dict[str, Any]]:
    """Yield the steps of a part of a tokeniser, in order."""
    if part is None:
        return
    if part["type"] != "Sequence":
        yield part
        return
    for field in ("normalizers", "pretokenizers", "processors"):
        for each in part.get(field, ()):
            yield from steps_of(each)


def _expansion(step: dict[str, Any]) -> int:
    match step["type"]:
        case "Replace" if pattern := step["pattern"].get("String"):
            most = math.ceil(len(step["content"]) / len(pattern))
        case "Replace":  # an expression may match between any two characters, and at both ends
            most = 1 + 2 * len(step["content"])
        case "Prepend":
            most = 1 + len(step["prepend"])
        case "ByteLevel":  # a character for each byte
            most = 4
        case "Metaspace":  # one before each piece
            most = 2
        case "BertNormalizer":
            most = BERT_EXPANSION
        case "Precompiled":
            most = math.ceil(_longest_mapping(step["precompiled_charsmap"]) / MAX_COMPATIBILITY_FORM)
        case "TemplateProcessing":
            most = max(_repetitions(step["single"]), _repetitions(step["pair"]))
        case _:
            most = 1
    return max(1, most)


def _repetitions(template: list[dict[str, Any]]) -> int:
    """Return how often a template has the same text."""
    return max(
        Counter(piece["Sequence"]["id"] for piece in template if "Sequence" in piece).values(), default=0
    )


def _longest_mapping(charsmap: str) -> int:
    """Return the longest text of a SentencePiece map: a trie's size, the trie, texts that end with a 0."""
    content = base64.b64decode(charsmap)
    texts = content[4 + int.from_bytes(content[:4], "little") :]
    return max(len(text.decode(errors="replace")) for text in texts.split(b"\0"))
