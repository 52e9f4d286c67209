"""Read a corpus: a file with one text a line."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from polyhead_client import InvalidRequest


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """The texts of a file, without blank lines."""

    texts: list[str]
    lines: list[int]
    """The number of each text's line, from 1."""

    def located(self, message: str) -> str:
        """Name lines in an error message about texts, such as `text[7]`."""
        return re.sub(r"\btext\[(\d+)\]", lambda match: f"line {self.lines[int(match[1])]}", message)


def check_texts(texts: Sequence[str]) -> None:
    """Check the texts of a corpus.

    Raises:
        InvalidRequest: They are not a list of texts, or there is none.
    """
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise InvalidRequest(f"corpus must be a list of texts, was {type(texts).__name__}")
    if not texts:
        raise InvalidRequest("corpus must have a text, was empty")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidRequest(f"corpus[{index}] must be a text, was {type(text).__name__}")


def read_corpus(path: Path) -> Corpus:
    """Read a file.

    Raises:
        InvalidRequest: The file is not UTF-8 text, or has no texts.
        OSError: The file cannot be read.
    """
    try:
        decoded = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"TEXTFILE must be UTF-8 text, {path} is not: {error.reason}") from None
    if "\0" in decoded:
        raise InvalidRequest(f"TEXTFILE must be UTF-8 text, {path} is binary")
    numbered = ((number, text.strip()) for number, text in enumerate(decoded.split("\n"), 1))
    texts = [(number, text) for number, text in numbered if text]
    if not texts:
        raise InvalidRequest(f"TEXTFILE must have texts, one a line, {path} has none")
    return Corpus(texts=[text for _, text in texts], lines=[number for number, _ in texts])
