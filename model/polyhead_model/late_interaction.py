"""Read what late interaction adds to a checkpoint (ColBERT, Khattab & Zaharia 2020, arXiv 2004.12832).

PyLate writes it into config_sentence_transformers.json. The `MultiVectorEncoder` of sentence-transformers has
it in the modules, and in the prompts.
"""

import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from polyhead_model.checkpoint_files import CheckpointError, flag, integer, read_object
from polyhead_model.tokenizer_files import TOKENIZER, mask_token, token_id

QUERY, DOCUMENT = "query", "document"
"""The names of the prompts."""

MEANS_LEFT_OUT = "scores are sums over the query's tokens, not their means"
"""What is said of a checkpoint whose own library divides them."""

_Config = Mapping[str, object]

_PYLATE: dict[str, object] = {
    "query_prefix": "[Q] ",
    "document_prefix": "[D] ",
    "query_length": 32,
    "document_length": 180,
    "skiplist_words": list(string.punctuation),
}
"""What PyLate takes where a file does not say."""


@dataclass(frozen=True, kw_only=True)
class TextForm:
    """What the name of a prompt does to the token ids of a text, beside the prompt itself."""

    prefix_id: int | None = None
    """The token id that is put after the first token."""
    max_tokens: int | None = None
    """The longest text, in tokens, that one included; None = as of any text."""
    fill_id: int | None = None
    """The token id that shorter texts are filled up with."""
    fill_to: int = 0
    """The number of tokens up to which they are."""


@dataclass(frozen=True, kw_only=True)
class LateInteraction:
    """What a checkpoint says of queries and documents."""

    forms: Mapping[str, TextForm] = field(default_factory=dict)
    """By the prompt's name."""
    skipped_ids: tuple[int, ...] = ()
    """The token ids that are not compared in documents."""
    expansion_id: int | None = None
    """The token id that fills queries up, if no token attends to it."""


def is_pylate(config: _Config) -> bool:
    """Return whether PyLate wrote config_sentence_transformers.json: it stores all of its settings."""
    return any(name in config for name in _PYLATE)


def read_pylate(path: Path, config: _Config, transformer: Path) -> LateInteraction:
    """Read what PyLate stores, with its defaults.

    Args:
        path: The file config_sentence_transformers.json.
        config: Its contents.
        transformer: The folder of tokenizer.json.

    Raises:
        CheckpointError: A value is not what it must be.
    """
    given = _PYLATE | {name: value for name, value in config.items() if value is not None}
    tokenizer = _tokenizer(transformer)
    prefixes = {name: _prefix_id(path, given, f"{name}_prefix", tokenizer) for name in (QUERY, DOCUMENT)}
    lengths = {name: _length(path, given, f"{name}_length") for name in (QUERY, DOCUMENT)}
    fills = flag(path, given, "do_query_expansion", default=True)
    fill_id = _expansion_id(path, None, transformer) if fills else None
    attended = flag(path, given, "attend_to_expansion_tokens", default=False)
    return LateInteraction(
        forms={
            QUERY: TextForm(
                prefix_id=prefixes[QUERY],
                max_tokens=lengths[QUERY],
                fill_id=fill_id,
                fill_to=lengths[QUERY] if fills else 0,
            ),
            DOCUMENT: TextForm(prefix_id=prefixes[DOCUMENT], max_tokens=lengths[DOCUMENT]),
        },
        skipped_ids=_ids(path, given["skiplist_words"], tokenizer),
        expansion_id=None if attended else fill_id,
    )


def read_multi_vector(transformer: Path, mask: Path) -> LateInteraction:
    """Read what the modules of a `MultiVectorEncoder` store.

    Args:
        transformer: The folder of its `Transformer`.
        mask: The folder of its `MultiVectorMask`.

    Raises:
        CheckpointError: A value is not what it must be, or is not supported.
    """
    path = mask / "config.json"
    config = read_object(path)
    if config.get("keep_only_token_ids"):
        raise CheckpointError(f"{path}: keep_only_token_ids must be empty: it is not supported")
    tasks = config.get("skiplist_tasks") or [DOCUMENT]
    words = config.get("skiplist_words") or []
    if words and tasks not in (DOCUMENT, [DOCUMENT]):
        raise CheckpointError(f"{path}: skiplist_tasks must be {[DOCUMENT]}, was {tasks!r}")
    skipped = _ids(path, words, _tokenizer(transformer)) if words else ()
    forms: dict[str, TextForm] = {}
    expansion_id = None
    for path in sorted(transformer.glob("sentence_*_config.json")):
        config = read_object(path)
        lengths = {
            name: None if config.get(key) is None else _length(path, config, key)
            for name, key in ((QUERY, "query_length"), (DOCUMENT, "document_length"))
        }
        forms = {name: TextForm(max_tokens=length) for name, length in lengths.items()}
        if (expansion := config.get("query_expansion")) is not None:
            if not isinstance(expansion, dict) or expansion.get("strategy") not in ("fixed", "min"):
                raise CheckpointError(
                    f"{path}: query_expansion must be an object with the strategy 'fixed' or 'min', "
                    f"was {expansion!r}"
                )
            length = _length(path, expansion, "length")
            fill_id = _expansion_id(path, expansion.get("token"), transformer)
            longest = length if expansion["strategy"] == "fixed" else lengths[QUERY]
            forms[QUERY] = TextForm(max_tokens=longest, fill_id=fill_id, fill_to=length)
            expansion_id = None if flag(path, expansion, "attend", default=False) else fill_id
    return LateInteraction(forms=forms, skipped_ids=skipped, expansion_id=expansion_id)


def _tokenizer(folder: Path) -> _Config:
    return read_object(folder / TOKENIZER)


def _length(path: Path, config: _Config, name: str) -> int:
    length = integer(path, config, name)
    if length < 1:
        raise CheckpointError(f"{path}: {name} must be at least 1, was {length}")
    return length


def _prefix_id(path: Path, config: _Config, name: str, tokenizer: _Config) -> int | None:
    if (text := config[name]) == "":
        return None
    if (number := token_id(tokenizer, text)) is None:
        raise CheckpointError(f"{path}: {name} must be one of the tokens of {TOKENIZER}, was {text!r}")
    return number


def _expansion_id(path: Path, token: object, folder: Path) -> int:
    """Return the id of the token that fills queries up; None = the mask token."""
    name = mask_token(folder) if token is None else token
    number = token_id(_tokenizer(folder), name)
    if number is None:
        raise CheckpointError(
            f"{path}: the token that fills queries up must be one of {TOKENIZER}'s, was {name!r}"
        )
    return number


def _ids(path: Path, words: object, tokenizer: _Config) -> tuple[int, ...]:
    """Return the ids of words that are tokens; others cannot be skipped."""
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise CheckpointError(f"{path}: skiplist_words must be a list of tokens, was {words!r}")
    return tuple(_known(token_id(tokenizer, word) for word in words))


def _known(ids: Iterable[int | None]) -> Iterable[int]:
    return (number for number in ids if number is not None)
