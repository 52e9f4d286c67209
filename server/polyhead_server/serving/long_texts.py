"""Tokenise as much of a very long text as truncation keeps, a window at a time.

How long a text is in tokens only its tokeniser knows: of a million spaces it may make none. So nothing is cut
before it is tokenised, and memory is that of one window. Windows end before a space, where words end.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from tokenizers import Encoding, Tokenizer

from polyhead_proto.faults import Fault
from polyhead_proto.names import TEXT
from polyhead_server.errors import InvalidRequestError

_BREAK = re.compile(r"(?<=\S) (?=.)", re.DOTALL)

_LONGEST_WORD = 8
"""Windows. Of a word longer than one window, few tokens can be made, so it takes less memory."""


@dataclass(frozen=True)
class Truncated:
    """A long text or pair, with the fields of an `Encoding`."""

    ids: list[int]
    type_ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]
    word_ids: list[int | None]
    sequence_ids: list[int | None]
    special_tokens_mask: list[int]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class LongTexts:
    """Truncates texts of more than one window.

    Args:
        whole: The tokeniser, which does not truncate.
        window: The most characters of a window.
        size: Counts the characters of a text as the tokeniser normalises it.
        side: Where texts are cut.
        prepends: Whether the normaliser puts before a text what it makes of a space.
    """

    whole: Tokenizer
    window: int
    size: Callable[[str], int]
    side: Literal["left", "right"]
    prepends: bool = False

    def truncate(self, given: str | tuple[str, str], cut: Tokenizer, most: int, index: int) -> Truncated:
        """Tokenise a text, or the two of a pair, as a tokeniser that truncates would do.

        Args:
            given: The text, or the two.
            cut: The tokeniser that truncates.
            most: The most tokens that it leaves.
            index: Which of the texts it is, for errors.

        Raises:
            InvalidRequestError: A word of a text is far too long.
        """
        texts = (given,) if isinstance(given, str) else given
        parts: list[list[tuple[int, Encoding]]] = [[] for _ in texts]
        needed = most
        # Of a pair, which text is the longer one decides what is cut.
        for number in sorted(range(len(texts)), key=lambda number: len(texts[number])):
            parts[number] = self._encode(texts[number], needed, index)
            needed = max(most, sum(len(part) for _, part in parts[number]) + 1)
        merged = [Encoding.merge([part for _, part in windows], growing_offsets=False) for windows in parts]
        made = cut.post_process(merged[0], merged[1] if len(merged) > 1 else None)
        # The library mixes up what joined windows have of these.
        sequences = _sequences(made.special_tokens_mask, is_second=not len(merged[0]))
        offsets: list[tuple[int, int]] = [(0, 0)] * len(made)
        words: list[int | None] = [None] * len(made)
        for number, windows in enumerate(parts):
            places, named = _places(windows)
            kept = [at for at, sequence in enumerate(sequences) if sequence == number]
            first = len(places) - len(kept) if self.side == "left" else 0
            for at, place in enumerate(kept, first):
                offsets[place], words[place] = places[at], named[at]
        return Truncated(
            ids=made.ids,
            type_ids=made.type_ids,
            tokens=made.tokens,
            offsets=offsets,
            word_ids=words,
            sequence_ids=sequences,
            special_tokens_mask=made.special_tokens_mask,
        )

    def _encode(self, text: str, most: int, index: int) -> list[tuple[int, Encoding]]:
        """Return windows with at least `most` tokens if the text has them, in order: start, and tokens."""
        windows: list[tuple[int, Encoding]] = []
        start, end, found, window = 0, len(text), 0, self.window
        while (start < end and found < most) or not windows:
            first, last, is_at_break = self._next(text, start, end, window)
            at = first + (self.prepends and first > 0 and text[first] == " ")
            content = text[at:last]
            encoding = self.whole.encode(content, add_special_tokens=False)
            is_space = content.isspace()
            # The tokens at the end of half a word may not be those of the whole one.
            if not (is_at_break or is_space) and found + len(encoding) < 2 * most:
                if window >= _LONGEST_WORD * self.window:
                    must = f"must have a space in every {window} characters to be truncated"
                    problem = f"{must}, had none from character {first} on"
                    raise InvalidRequestError(Fault(field=TEXT, index=(index,), problem=problem))
                window *= 2
                continue
            window, rest = self.window, 0
            # Of white space of which any amount gives the same tokens, one is left for the next window.
            if is_space and not is_at_break and self._shrinks(content, encoding):
                rest = 1
            else:
                windows.append((at, encoding))
                found += len(encoding)
            start, end = (start, first + rest) if self.side == "left" else (last - rest, end)
        return windows[::-1] if self.side == "left" else windows

    def _shrinks(self, space: str, encoding: Encoding) -> bool:
        half = self.whole.encode(space[len(space) // 2 :], add_special_tokens=False)
        return bool(half.ids == encoding.ids)

    def _next(self, text: str, start: int, end: int, window: int) -> tuple[int, int, bool]:
        """Return where the next window begins and ends, and whether that is at the end of a word."""
        is_left = self.side == "left"
        length = min(window, end - start)
        while (
            size := self.size(text[end - length : end] if is_left else text[start : start + length])
        ) > window:
            length = length * window // size
        if end - start <= length:
            return start, end, True
        if is_left:
            found = _BREAK.search(text, end - length, end)
            return (end - length, end, False) if found is None else (found.start(), end, True)
        *_, at = (None, *(found.start() for found in _BREAK.finditer(text, start + 1, start + length)))
        return (start, start + length, False) if at is None else (start, at, True)


def _sequences(specials: Sequence[int], *, is_second: bool) -> list[int | None]:
    """Return the number of each token's text, between whose texts is a special token; None of that.

    Args:
        specials: (T), whether tokens are special.
        is_second: Whether all tokens are of the second text.
    """
    numbers: list[int | None] = []
    number = int(is_second)
    for special in specials:
        if special and numbers and numbers[-1] is not None:
            number = 1
        numbers.append(None if special else number)
    return numbers


def _places(
    windows: Sequence[tuple[int, Encoding]],
) -> tuple[list[tuple[int, int]], list[int | None]]:
    """Return the offsets of all tokens in the text, and the numbers of their words."""
    offsets: list[tuple[int, int]] = []
    words: list[int | None] = []
    for number, (begin, encoding) in enumerate(windows):
        offsets += [(begin + start, begin + end) for start, end in encoding.offsets]
        words += [None if word is None else (number << 32) + word for word in encoding.word_ids]
    return offsets, words
