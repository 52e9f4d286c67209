"""The words of a text: which of its tokens are pieces of one, and where they are."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from polyhead_server.serving.long_texts import Truncated

OF_NO_TEXT = -1
"""What `Words.spans` has for tokens that the tokeniser has added, for those of a prompt, and for padding."""


def in_pair(spans: NDArray[np.int32], first: int, between: int) -> NDArray[np.int32]:
    """Return where tokens are in their texts of a pair that is one text.

    Args:
        spans: (T, 3): where they are in that text, see `Words.spans`.
        first: The characters of the first text.
        between: Those between the texts.

    Returns:
        (T, 3); a token that reaches out of a text is of the text alone.
    """
    found, (start, end) = spans.copy(), (spans[:, 0], spans[:, 1])
    second = end > first + between
    of_first = (start >= 0) & (start < first) & ~second
    found[second, :2] = np.stack([(start - first - between).clip(0), end - first - between], axis=1)[second]
    found[of_first, 1] = end[of_first].clip(max=first)
    found[~(second | of_first)] = OF_NO_TEXT
    return found


class Words:
    """The words of a tokeniser: which tokens are pieces of one, and where they are in texts.

    They are those of transformers' pipeline for token classification.

    One that marks the pieces that continue a word, as WordPiece does (`##s`), knows words. Of others, words
    are what spaces separate, no other white space, and an unknown token begins one.

    Args:
        tokenizer: The tokeniser.
        model: Its model's part of `tokenizer.json`.
    """

    def __init__(self, tokenizer: Tokenizer, model: Mapping[str, Any]) -> None:
        self._are_marked = bool(model.get("continuing_subword_prefix"))
        unknown = model.get("unk_token")
        self._unknown = model.get("unk_id") if unknown is None else tokenizer.token_to_id(unknown)

    def spans(
        self, given: str | tuple[str, str], encoding: Encoding | Truncated, prompt: int
    ) -> NDArray[np.int32]:
        """Locate tokens.

        Args:
            given: The text, or the two of a pair.
            encoding: What the tokeniser has made of it.
            prompt: How many characters of it, or of the first text, are those of a prompt.

        Returns:
            (T, 3): of each token where it starts and ends in its text, the prompt left out, in characters,
            and the number of its word, from 0 on; `OF_NO_TEXT` where it is in none.
        """
        texts = (given,) if isinstance(given, str) else given
        words = encoding.word_ids if self._are_marked else None
        found = np.full((len(encoding), 3), OF_NO_TEXT, np.int32)
        word, last = OF_NO_TEXT, -1
        sequences, specials = encoding.sequence_ids, encoding.special_tokens_mask
        for at, (token, (start, end)) in enumerate(zip(encoding.ids, encoding.offsets, strict=True)):
            sequence = sequences[at] or 0
            before = prompt if sequence == 0 else 0
            if specials[at] or (before and end <= before):
                continue
            if last < 0 or sequences[last] != sequences[at]:
                word += 1
            elif words is not None:
                word += words[at] != words[last]
            else:
                around = texts[sequence][max(start - 1, 0) : start + 1]
                word += start == 0 or token == self._unknown or " " in around
            found[at] = max(start - before, 0), end - before, word
            last = at
        return found
