"""The token ids of sentences on which the drift of a precision is measured."""

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.models import BPE

from polyhead_export.errors import ExportError
from polyhead_export.tokenizers import TokenizerFile


def token_ids(
    tokenizer: TokenizerFile, sentences: Sequence[str], max_tokens: int, *, prompt: str = ""
) -> list[list[int]]:
    """Return the token ids of each sentence, cut at `max_tokens`.

    Args:
        tokenizer: The family's.
        sentences: Those that give no token are left out.
        max_tokens: T of the longest.
        prompt: Put before each sentence.

    Raises:
        ExportError: No sentence gives a token.
    """
    encode = Tokenizer.from_str(tokenizer.text())
    if isinstance(encode.model, BPE):
        encode.model.dropout = None  # noise for training
    encode.no_padding()
    encode.enable_truncation(max_tokens, direction=(encode.truncation or {"direction": "right"})["direction"])
    rows = [ids for text in sentences if (ids := encode.encode(prompt + text).ids)]
    if not rows:
        raise ExportError(f"{tokenizer.path}: sentences must give tokens, none of {len(sentences)} does")
    return rows
