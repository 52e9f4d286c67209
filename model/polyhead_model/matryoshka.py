"""Read whether a checkpoint says that its vectors may be cut (Matryoshka representations)."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from polyhead_model.checkpoint_files import CheckpointError, flag

_CARD = "README.md"
_CARD_BYTES = 2**20
_TRAINED = re.compile(r"^- loss:Matryoshka(?:2d)?Loss\s*$", re.MULTILINE)
"""What sentence-transformers writes into the head of the card of a model that it trained so."""
_WIDTHS = re.compile(r'"matryoshka_dims":\s*(\[[\d,\s]*\])')
"""What it says of the loss, further down."""


def read_matryoshka(path: Path, config: Mapping[str, object]) -> tuple[int, ...] | None:
    """Return the numbers of dimensions to which vectors were trained to be cut; none for any.

    config.json says so in `matryoshka_dimensions` or `is_matryoshka` (the names that vLLM reads), the model
    card in what sentence-transformers writes there.

    Args:
        path: config.json.
        config: Its contents.

    Returns:
        None if nothing says so.

    Raises:
        CheckpointError: config.json has something else there.
    """
    given = config.get("matryoshka_dimensions")
    if given is not None:
        return _widths(f"{path}: matryoshka_dimensions", given)
    if flag(path, config, "is_matryoshka", default=False):
        return ()
    card = path.parent / _CARD
    try:
        with card.open(encoding="utf-8", errors="replace") as file:
            text = file.read(_CARD_BYTES)
    except OSError:
        return None
    if not _TRAINED.search(text):
        return None
    found = _WIDTHS.search(text)
    return () if found is None else _widths(f"{card}: matryoshka_dims", json.loads(found[1]))


def _widths(name: str, given: object) -> tuple[int, ...]:
    if not isinstance(given, list) or not all(type(width) is int for width in given):
        raise CheckpointError(f"{name} must be numbers of dimensions, was {given!r}")
    return tuple(given)
