"""Text to token ids, and token ids to tokens, with the family's own `tokenizer.json`.

Shape letters: B batch, T tokens.
"""

import json
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer
from tokenizers.models import BPE

from polyhead_proto.faults import Fault
from polyhead_proto.names import TEXT, TEXT_PAIR, TRUNCATE
from polyhead_server.errors import EngineError, InvalidRequestError, RepositoryError, TooLargeError
from polyhead_server.repository.manifest import Manifest, ManifestForm
from polyhead_server.serving.expansion import (
    BERT_EXPANSION,
    MAX_COMPATIBILITY_FORM,
    check_expansion,
    steps_of,
)
from polyhead_server.serving.long_texts import LongTexts, Truncated
from polyhead_server.serving.words import OF_NO_TEXT, Words, in_pair

_MAX_CHARACTERS_PER_TOKEN = 256
"""A text with longer tokens on average is rejected without being tokenised, unless it is to be truncated."""

_MIN_CHARACTERS_PER_TOKEN = 16
"""The same where a tokeniser makes several characters of one; real text has four or five."""

_CHARACTERS_AT_ONCE = 2**17

PLAIN = ManifestForm()
"""Of texts to which nothing is done."""


@dataclass(frozen=True, kw_only=True)
class Tokenised:
    """A batch of texts as the graph takes it, padded on the right to the longest."""

    input_ids: NDArray[np.int64]
    """(B, T), zeros in padding."""
    token_type_ids: NDArray[np.int64]
    """(B, T)."""
    lengths: NDArray[np.int32]
    """(B)."""
    tokens: Sequence[Sequence[str]]
    """B lists, each of its text's own length; empty where they were not asked for."""
    spans: NDArray[np.int32] | None
    """(B, T, 3), see `Words.spans`; None where they were not asked for."""


class Tokeniser:
    """A family's tokeniser. Any thread may call its methods.

    Args:
        path: The `tokenizer.json`.
        max_tokens: The most tokens of a text or a pair, special ones and the prompt's included; None for no
            limit.
        pairs: Whether the tokeniser will be given pairs of texts.
        between: What stands between the texts of a pair, which then are one text to the tokeniser; None if
            it joins them itself.
        forms: What may be done to texts.

    Raises:
        RepositoryError: The file cannot be read as a tokeniser, it expands texts too far, or a limit
            leaves no room for text; or it lacks a token of a form.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_tokens: int | None,
        pairs: bool = False,
        between: str | None = None,
        forms: Collection[ManifestForm] = (),
    ) -> None:
        self.max_tokens = max_tokens
        self._between = between
        self._whole = _load(path)
        self.side: Literal["left", "right"] = (self._whole.truncation or {"direction": "right"})["direction"]
        # Published files often hold the limits of their training.
        self._whole.no_truncation()
        self._whole.no_padding()
        parts = json.loads(self._whole.to_str())
        self._words = Words(self._whole, parts["model"])
        expansion, self._has_compatibility_forms = check_expansion(self._whole, parts, path.name)
        self._expansion = max(1, expansion // BERT_EXPANSION)
        self._most_characters = max(_MIN_CHARACTERS_PER_TOKEN, _MAX_CHARACTERS_PER_TOKEN // self._expansion)
        """Of a text, for each token that it may have."""
        prepends = any(step["type"] == "Prepend" for step in steps_of(parts["normalizer"]))
        window = _CHARACTERS_AT_ONCE // self._expansion
        self._long = LongTexts(self._whole, window, self._size, self.side, prepends)
        self._cut: dict[int, Tokenizer] = {}
        """By the most tokens that they leave."""
        self._most: dict[int | None, int | None] = {}
        """The most tokens of a text, by the most that its form allows."""
        for form in (PLAIN, *forms):
            most = min((each for each in (form.max_tokens, max_tokens) if each is not None), default=None)
            self._most[form.max_tokens] = most
            self._check_form(form, most, path.name)
            if most is None or (room := most - (form.prefix_id is not None)) in self._cut:
                continue
            tokenizer = _load(path)
            special = tokenizer.num_special_tokens_to_add(is_pair=pairs)
            # Otherwise the library does not cut the text at all.
            if special >= room:
                raise RepositoryError(
                    f"{path.name} adds {special} special tokens to each {'pair' if pairs else 'text'}: "
                    f"the most tokens of a text must be more than that, was {room}"
                )
            tokenizer.no_padding()
            tokenizer.enable_truncation(room, direction=self.side)
            self._cut[room] = tokenizer

    def _check_form(self, form: ManifestForm, most: int | None, name: str) -> None:
        for number in (form.prefix_id, form.fill_id):
            if number is not None and self._token(number) is None:
                raise RepositoryError(f"{name} must have the tokens that are added to texts, lacks {number}")
        if most is not None and form.fill_to > most:
            raise RepositoryError(
                f"texts must be filled up to at most {most} tokens, the longest, were to {form.fill_to}"
            )

    def encode(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        prompt: str = "",
        form: ManifestForm = PLAIN,
        truncate: bool,
        max_total: int,
        with_tokens: bool = True,
        with_spans: bool = False,
    ) -> Tokenised:
        """Turn texts into token ids. Releases the GIL.

        Args:
            texts: B texts.
            pairs: B texts, each the second of a pair.
            prompt: What precedes each of `texts`; with `between`, what precedes a pair.
            form: What else is done to them.
            truncate: Cut a text that is too long, on the tokeniser's side and keeping its special tokens,
                instead of rejecting it; of a pair, the longer text first.
            max_total: The most tokens of the padded batch, B × T.
            with_tokens: Return the tokens, too.
            with_spans: Return where they are in the texts, too.

        Raises:
            InvalidRequestError: A text has too many tokens, or none at all.
            TooLargeError: The batch has too many.
            EngineError: The tokeniser failed.
        """
        is_pair, joined = pairs is not None, None
        if pairs is not None and (between := self._between) is not None:
            joined = [(len(text), len(between)) for text in texts]
            texts = [f"{text}{between}{pair}" for text, pair in zip(texts, pairs, strict=True)]
            pairs = None
        texts = [prompt + text for text in texts] if prompt else texts
        most, added = self._most[form.max_tokens], int(form.prefix_id is not None)
        cut = self._cut[most - added] if truncate and most is not None else None
        tokenizer = cut or self._whole
        portions: Iterable[tuple[list[Any], int]]
        if self._are_short([*texts, *(pairs or ())], most or max_total):
            portions = [(list(texts) if pairs is None else list(zip(texts, pairs, strict=True)), 0)]
        else:
            if cut is None:
                self._check_limits(TEXT, texts, most or max_total)
                self._check_limits(TEXT_PAIR, pairs or (), most or max_total)
            portions = self._portions(texts, pairs)
        # The fast variant leaves tokens and offsets empty.
        encode = tokenizer.encode_batch if with_tokens or with_spans else tokenizer.encode_batch_fast
        ids: list[list[int]] = []
        types: list[list[int]] = []
        tokens: list[list[str]] = []
        spans: list[NDArray[np.int32]] = []
        try:
            for portion, size in portions:
                encodings: Sequence[Encoding | Truncated]
                if cut is not None and most is not None and size > self._long.window:  # of one text or pair
                    encodings = [self._long.truncate(portion[0], cut, most - added, len(ids))]
                else:
                    encodings = encode(portion)
                self._check_lengths(len(ids), encodings, added, most, is_pair=is_pair)
                for given, encoding in zip(portion, encodings, strict=True):
                    ids.append(encoding.ids)
                    types.append(encoding.type_ids)
                    if with_tokens:
                        tokens.append(encoding.tokens)
                    if with_spans:
                        span = self._words.spans(given, encoding, len(prompt))
                        span = span if joined is None else in_pair(span, *joined[len(spans)])
                        spans.append(np.insert(span, [1] * added, OF_NO_TEXT, axis=0))
        except BaseException as error:
            _check_panic(error)
            raise
        shape = (len(texts), max(form.fill_to, added + max(map(len, ids))))
        check_total(*shape, max_total)
        if form is not PLAIN:
            self._give_form(form, ids, types, tokens)
        return Tokenised(
            input_ids=padded(ids, np.zeros(shape, np.int64)),
            token_type_ids=padded(types, np.zeros(shape, np.int64)),
            lengths=np.array(list(map(len, ids)), np.int32),
            tokens=tokens,
            spans=padded(spans, np.full((*shape, 3), OF_NO_TEXT, np.int32)) if with_spans else None,
        )

    def _give_form(
        self, form: ManifestForm, ids: list[list[int]], types: list[list[int]], tokens: list[list[str]]
    ) -> None:
        """Add what a form adds to each text, in place."""
        columns: tuple[tuple[list[list[Any]], Any, Any], ...] = (
            (ids, form.prefix_id, form.fill_id),
            (types, 0, 0),
            (tokens, self._token(form.prefix_id), self._token(form.fill_id)),
        )
        for rows, prefix, fill in columns:
            for row in rows:
                if form.prefix_id is not None:
                    row.insert(1, prefix)
                if form.fill_id is not None:
                    row.extend([fill] * (form.fill_to - len(row)))

    def _token(self, number: int | None) -> str | None:
        return None if number is None else self._whole.id_to_token(number)

    def _are_short(self, texts: Sequence[str], most: int) -> bool:
        """Return whether texts surely are within the limits, one by one and all of them at once."""
        lengths = list(map(len, texts))
        widest = MAX_COMPATIBILITY_FORM if self._has_compatibility_forms else 1
        return (
            widest * max(lengths) <= most * self._most_characters
            and widest * sum(lengths) <= self._long.window
        )

    def _check_limits(self, name: str, texts: Sequence[str], most: int) -> None:
        """Reject texts so long that tokenising them would waste memory."""
        longest = most * self._most_characters
        for index, text in enumerate(texts):
            if (size := self._size(text)) > longest:
                must = f"must be at most {most} tokens and {longest} characters"
                problem = f"{must}, was {size} characters"
                raise _too_long(name, index, problem)

    def _size(self, text: str) -> int:
        """Count a text's characters, in compatibility forms where the tokeniser makes such."""
        return len(unicodedata.normalize("NFKD", text)) if self._has_compatibility_forms else len(text)

    def _portions(self, texts: Sequence[str], pairs: Sequence[str] | None) -> Iterator[tuple[list[Any], int]]:
        """Group texts or pairs by their characters, and return how many those are, at least.

        Tokenising takes about 300 bytes of memory for each. What is too long is alone in its group.
        """
        most = self._long.window
        portion: list[Any] = []
        characters = 0
        for text, pair in zip(texts, pairs or ("",) * len(texts), strict=True):
            size = self._size(text[: most + 1]) + self._size(pair[: most + 1])
            if portion and characters + size > most:
                yield portion, characters
                portion, characters = [], 0
            portion.append(text if pairs is None else (text, pair))
            characters += size
        yield portion, characters

    def _check_lengths(
        self, start: int, encodings: Sequence[Sized], added: int, most: int | None, *, is_pair: bool
    ) -> None:
        for index, length in enumerate(map(len, encodings), start):
            if length == 0:
                problem = "must have at least 1 token, had none"
                raise InvalidRequestError(Fault(field=TEXT, index=(index,), problem=problem))
            if most is not None and length + added > most:
                problem = f"must be at most {most} tokens, was {length + added}"
                raise _too_long(TEXT, index, problem, also=TEXT_PAIR if is_pair else "")

    def divide(self, name: str, texts: Sequence[str], *, special: bool, most: int) -> Iterator[Encoding]:
        """Yield what the library makes of texts, however long each is for the family.

        Args:
            name: What messages call the texts.
            texts: B texts.
            special: Whether special tokens are added.
            most: The most tokens of all texts.

        Raises:
            InvalidRequestError: A text has too many characters.
            TooLargeError: There are too many tokens.
            EngineError: The tokeniser failed.
        """
        total, longest = 0, _CHARACTERS_AT_ONCE // self._expansion
        for index, text in enumerate(texts):
            if (size := self._size(text)) > longest:
                problem = f"must have at most {longest} characters, had {size}"
                raise InvalidRequestError(Fault(field=name, index=(index,), problem=problem))
            with _panics_as_errors():
                encoding = self._whole.encode(text, add_special_tokens=special)
            check_total(1, total := total + len(encoding), most)
            yield encoding

    def text_of(self, rows: Sequence[Sequence[int]], special: bool) -> list[str]:
        """Return the text of each of B lists of token ids, with special tokens or without.

        Raises:
            EngineError: The tokeniser failed.
        """
        with _panics_as_errors():
            return self._whole.decode_batch(rows, skip_special_tokens=not special)

    def tokens_of(self, input_ids: NDArray[np.int64], lengths: NDArray[np.int32]) -> list[list[str]]:
        """Return the tokens of each sequence, without its padding.

        Args:
            input_ids: (B, T).
            lengths: (B).
        """
        names = {int(number): self._whole.id_to_token(int(number)) or "" for number in np.unique(input_ids)}
        return [
            [names[number] for number in row[:length].tolist()]
            for row, length in zip(input_ids, lengths.tolist(), strict=True)
        ]


def padded(rows: Iterable[Any], whole: NDArray[Any]) -> NDArray[Any]:
    """Return an array of padding [B, T, …], with rows of at most T written into it."""
    for place, row in zip(whole, rows, strict=True):
        place[: len(row)] = row
    return whole


def _too_long(field: str, index: int, problem: str, *, also: str = "") -> InvalidRequestError:
    remedy = f"shorten it or set the parameter {TRUNCATE} to true"
    return InvalidRequestError(
        Fault(field=field, also=also, index=(index,), problem=problem, remedy=remedy, parameter=TRUNCATE)
    )


def check_total(batch: int, tokens: int, max_total: int, letter: str = "T") -> None:
    """Check a padded batch's tokens before memory is allocated for them; `letter` is their axis.

    Raises:
        TooLargeError: B × T is over the limit.
    """
    if batch * tokens > max_total:
        raise TooLargeError(
            f"a request must have at most {max_total} tokens, had {batch * tokens} "
            f"(B {batch} × {letter} {tokens}, padding included): send fewer or shorter sequences"
        )


def open_tokeniser(folder: Path, manifest: Manifest) -> Tokeniser | None:
    """Open the tokeniser of a version; None where it has none.

    Raises:
        RepositoryError: See `Tokeniser`.
    """
    if (file := manifest.tokenizer) is None:
        return None
    return Tokeniser(
        folder / file.file,
        max_tokens=manifest.text_max_tokens,
        pairs=file.pairs,
        between=None if file.pair_template is None else file.pair_template.between,
        forms=[*file.forms.values(), file.form or PLAIN],
    )


def _load(path: Path) -> Tokenizer:
    try:
        with _panics_as_errors():
            tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:
        raise RepositoryError(f"{path.name} cannot be read as a tokeniser") from error
    if isinstance(tokenizer.model, BPE):
        tokenizer.model.dropout = None  # noise for training
    return tokenizer


@contextmanager
def _panics_as_errors() -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        _check_panic(error)
        raise


def _check_panic(error: BaseException) -> None:
    """Turn a panic of the library, which is no `Exception`, into an `EngineError`."""
    if type(error).__name__ == "PanicException":
        raise EngineError(f"the tokeniser failed: {error}") from error
