"""How much a tokeniser may make of a text: each of its steps may multiply it, and steps follow each other."""

import base64
import json
import math
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer

from polyhead_server.errors import RepositoryError

MOST = 64
"""Characters or tokens of one character, by the rough bound below. Published tokenisers stay below 40."""

ORDINARY = 3
"""What BERT's makes of a Chinese character, by the same measure: it and a space on either side."""

_LONGEST_TOKEN = 1024
"""Characters. The longest tokens of published vocabularies have a few hundred."""

_COMPOSED = 18
"""Characters that Unicode's compatibility forms make of one, at most: U+FDFA."""


def check_growth(tokenizer: Tokenizer, name: str) -> tuple[int, bool]:
    """Bound what a tokeniser makes of one character.

    Args:
        tokenizer: The tokeniser.
        name: Its file's name, for messages.

    Returns:
        The most characters or tokens, and whether Unicode's compatibility forms come on top of it.

    Raises:
        RepositoryError: It is more than `MOST`, or the vocabulary has a token that is far too long.
    """
    longest = max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=0)
    if longest > _LONGEST_TOKEN:
        raise RepositoryError(
            f"{name}: a token must be at most {_LONGEST_TOKEN} characters, the longest is {longest}"
        )
    parts = json.loads(tokenizer.to_str())
    steps = [*_steps(parts["normalizer"]), *_steps(parts["pre_tokenizer"])]
    templates = [step for step in _steps(parts["post_processor"]) if step["type"] == "TemplateProcessing"]
    growth = math.prod(map(_growth, steps + templates))
    if growth > MOST:
        raise RepositoryError(
            f"{name} may make {growth} characters or tokens of one character, the limit is {MOST}: "
            "look for steps that multiply a text (Replace, Prepend, ByteLevel, Metaspace), and remove some"
        )
    return growth, any(step["type"] in {"NFKC", "NFKD", "Precompiled"} for step in steps)


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    """The steps of a part of a tokeniser, one after the other."""
    if part is None:
        return
    if part["type"] != "Sequence":
        yield part
        return
    for field in ("normalizers", "pretokenizers", "processors"):
        for each in part.get(field, ()):
            yield from _steps(each)


def _growth(step: dict[str, Any]) -> int:
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
            most = ORDINARY
        case "Precompiled":
            most = math.ceil(_longest_mapping(step["precompiled_charsmap"]) / _COMPOSED)
        case "TemplateProcessing":
            most = sum("Sequence" in piece for piece in step["single"])
        case _:
            most = 1
    return max(1, most)


def _longest_mapping(charsmap: str) -> int:
    """The longest text in a map of SentencePiece's: the size of a trie, the trie, texts that end with a 0."""
    content = base64.b64decode(charsmap)
    texts = content[4 + int.from_bytes(content[:4], "little") :]
    return max(len(text.decode(errors="replace")) for text in texts.split(b"\0"))
