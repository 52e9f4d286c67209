"""Read whether a checkpoint says that its vectors may be cut (Matryoshka representations)."""

import re
from collections.abc import Mapping
from pathlib import Path

from polyhead_model.checkpoint_files import CheckpointError, flag

_CARD = "README.md"
_CARD_BYTES = 2**20
_TRAINED = re.compile(r"^- loss:Matryoshka(?:2d)?Loss\s*$", re.MULTILINE)
"""What sentence-transformers writes into the head of the card of a model that it trained so."""
_WIDTHS = re.compile(r'"matryoshka_dims":\s*\[([\d,\s]*)\]')
"""What it says of the loss, further down."""
_NUMBER = re.compile(r"\b\d{1,9}\b")


def read_matryoshka(path: Path, config: Mapping[str, object], *, width: int) -> tuple[int, ...] | None:
    """Return the numbers of dimensions to which vectors were trained to be cut; none for any.

    config.json says so in `matryoshka_dimensions` or `is_matryoshka` (the names that vLLM reads), the model
    card in what sentence-transformers writes there. Cards are copied between models, so what cannot be of
    this one does not count.

    Args:
        path: config.json.
        config: Its contents.
        width: P, that of pooled vectors.

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
    if found is None:
        return ()
    widths = tuple(int(number) for number in _NUMBER.findall(found[1]))
    return tuple(each for each in widths if 1 <= each <= width) or None


def _widths(name: str, given: object) -> tuple[int, ...]:
    if not isinstance(given, list) or not all(type(width) is int for width in given):
        raise CheckpointError(f"{name} must be numbers of dimensions, was {given!r}")
    return tuple(given)
