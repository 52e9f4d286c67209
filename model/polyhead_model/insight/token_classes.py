"""Classes of tokens that heads attend to, read from a `tokenizer.json`. Needs no torch."""

import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TokenClass:
    """Some tokens of a vocabulary."""

    name: str
    ids: tuple[int, ...]


def token_classes(tokenizer: Mapping[str, object]) -> tuple[TokenClass, ...]:
    """Return the separators and the punctuation of a tokenizer; a class without tokens is left out.

    * separator: the special tokens that follow a text, as the post-processor says: [SEP], not [CLS].
    * punctuation: tokens of punctuation characters only, as BERT's tokenizer understands them (ASCII symbols
      too), whether or not they continue a word.

    Args:
        tokenizer: The contents of the file.
    """
    classes = (
        TokenClass(name="separator", ids=tuple(sorted(_separators(tokenizer.get("post_processor"))))),
        TokenClass(name="punctuation", ids=tuple(sorted(_punctuation(tokenizer)))),
    )
    return tuple(each for each in classes if each.ids)


def _separators(processor: object) -> set[int]:
    found: set[int] = set()
    if not isinstance(processor, dict):
        return found
    for part in _list(processor.get("processors")):  # a sequence of processors
        found |= _separators(part)
    sep = _list(processor.get("sep"))  # of BERT or RoBERTa: text and id
    found |= {number for number in sep if isinstance(number, int)}
    special = processor.get("special_tokens")  # of a template
    for template in ("single", "pair"):
        after_text = False
        for piece in _list(processor.get(template)):
            if not isinstance(piece, dict):
                continue
            after_text = after_text or "Sequence" in piece
            token = piece.get("SpecialToken")
            if after_text and isinstance(token, dict) and isinstance(special, dict):
                said = special.get(token.get("id"))
                ids = _list(said.get("ids")) if isinstance(said, dict) else []
                found |= {number for number in ids if isinstance(number, int)}
    return found


def _punctuation(tokenizer: Mapping[str, object]) -> Iterator[int]:
    model = tokenizer.get("model")
    words = model.get("vocab") if isinstance(model, dict) else None
    prefix = model.get("continuing_subword_prefix") if isinstance(model, dict) else None
    added = _list(tokenizer.get("added_tokens"))
    special = {token.get("id") for token in added if isinstance(token, dict) and token.get("special")}
    in_bytes = _has_type(tokenizer.get("pre_tokenizer"), "ByteLevel")
    entries: list[tuple[object, object]] = []
    if isinstance(words, dict):
        entries = list(words.items())
    elif isinstance(words, list):  # Unigram: pairs of token and score, indexed by id
        entries = [(_list(pair)[0] if _list(pair) else None, index) for index, pair in enumerate(words)]
    for word, number in entries:
        if isinstance(word, str) and isinstance(number, int) and number not in special:
            text = word.removeprefix(prefix) if isinstance(prefix, str) else word
            text = _decoded(text) if in_bytes else text
            if _is_punctuation(text.removeprefix("▁").strip() or word):
                yield number


def _is_punctuation(text: str) -> bool:
    return all(
        unicodedata.category(character).startswith("P")
        or ("!" <= character <= "~" and not character.isalnum())
        for character in text
    )


def _decoded(text: str) -> str:
    """Decode a word of byte-level BPE, in which a character stands for a byte."""
    try:
        return bytes(_BYTES[character] for character in text).decode()
    except (KeyError, UnicodeDecodeError):
        return text  # a part of a character


def _has_type(part: object, name: str) -> bool:
    """Return whether a pre-tokenizer is of a type, or a sequence with one that is."""
    if not isinstance(part, dict):
        return False
    return part.get("type") == name or any(_has_type(each, name) for each in _list(part.get("pretokenizers")))


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _byte_characters() -> dict[str, int]:
    """Return the byte of each character: printable Latin-1 stands for itself, the others follow from 256."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + index): byte for index, byte in enumerate(others)
    }


_BYTES = _byte_characters()
