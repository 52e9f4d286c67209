"""The token ids of sentences on which the drift of a precision is measured."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from polyhead_export.errors import ExportError


def token_ids(
    tokenizer: Path, sentences: Sequence[str], max_tokens: int, *, prompt: str = ""
) -> list[list[int]]:
    """Return the token ids of each sentence, cut at `max_tokens`.

    Args:
        tokenizer: A `tokenizer.json`.
        sentences: Those that give no token are left out.
        max_tokens: T of the longest.
        prompt: Put before each sentence.

    Raises:
        ExportError: No sentence gives a token.
    """
    encode = Tokenizer.from_file(str(tokenizer))
    encode.no_padding()
    encode.enable_truncation(max_tokens)
    rows = [ids for text in sentences if (ids := encode.encode(prompt + text).ids)]
    if not rows:
        raise ExportError(f"{tokenizer}: sentences must give tokens, none of {len(sentences)} does")
    return rows
