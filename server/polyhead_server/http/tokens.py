"""Text Embeddings Inference's `/tokenize` and `/decode`."""

from collections.abc import Iterator
from typing import Any

from fastapi import Response

from polyhead_server.errors import InvalidRequestError, TooLargeError
from polyhead_server.http.caller import Caller
from polyhead_server.http.calls import write_array
from polyhead_server.http.errors import TEI
from polyhead_server.http.fields import Described, FamilyOptions, IdRows, Ids, SomeTexts
from polyhead_server.http.models import named
from polyhead_server.http.routes import INFERENCE, OfTexts, make_router
from polyhead_server.inference.templates import prompt_of
from polyhead_server.repository.signature import Signature
from polyhead_server.serving.tokeniser import Tokeniser, check_total

tokens_router = make_router(TEI, INFERENCE)
_TOKEN_BYTES = 32
"""What a character or a token costs, as bytes of other work."""


class TokenizeBody(FamilyOptions, json_schema_extra={"example": {"inputs": "A cat sat."}}):
    """What to divide into tokens."""

    inputs: SomeTexts
    """A text, or texts"""
    add_special_tokens: bool | None = None
    """Whether to add special tokens: true by default"""
    prompt_name: str | None = None
    """The prompt to put before each text"""


class DecodeBody(FamilyOptions, json_schema_extra={"example": {"ids": [5, 6, 7]}}):
    """What to make text of."""

    ids: Ids | IdRows
    """Token ids, or lists of them"""
    skip_special_tokens: bool | None = None
    """Whether to leave out special tokens: true by default"""


class SimpleToken(Described):
    """A token of a text."""

    id: int
    text: str
    special: bool
    """Whether the tokenizer has added it"""
    start: int | None
    """Its place in the text, the prompt included, in characters"""
    stop: int | None


@tokens_router.post("/tokenize", response_model=list[list[SimpleToken]])
async def tokenize(body: TokenizeBody, caller: OfTexts) -> Response:
    """Divide texts into tokens, as Text Embeddings Inference does."""
    tokeniser, signature = _tokeniser_of(caller, body)
    prompt, _ = prompt_of(body.prompt_name, signature, is_text=True)
    texts = [prompt + text for text in body.inputs]
    settings, special = caller.service.settings, body.add_special_tokens is not False
    if (size := sum(len(text.encode()) for text in texts)) > (limit := settings.max_text_bytes):
        raise TooLargeError(f"inputs must have at most {limit} bytes, had {size}")

    def content() -> Iterator[list[dict[str, Any]]]:
        encodings = tokeniser.divide("inputs", texts, special=special, most=settings.max_request_tokens)
        for text, encoding in zip(texts, encodings, strict=True):
            yield [
                {"id": number, "text": token, "special": True, "start": None, "stop": None}
                if is_special
                else {"id": number, "text": text[start:stop], "special": False, "start": start, "stop": stop}
                for number, token, is_special, (start, stop) in zip(
                    *(encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets),
                    strict=True,
                )
            ]

    return await caller.json(write_array(content()), work_bytes=_TOKEN_BYTES * sum(map(len, texts)))


@tokens_router.post("/decode", response_model=list[str])
async def decode(body: DecodeBody, caller: OfTexts) -> Response:
    """Make text of token ids, as Text Embeddings Inference does."""
    tokeniser, _ = _tokeniser_of(caller, body)
    rows: list[Any] = body.ids if isinstance(body.ids[0], list) else [body.ids]
    check_total(1, total := sum(map(len, rows)), caller.service.settings.max_request_tokens)
    special = body.skip_special_tokens is False
    texts = await caller.service.run(_TOKEN_BYTES * total, tokeniser.text_of, rows, special)
    return await caller.document(texts)


def _tokeniser_of(caller: Caller, options: FamilyOptions) -> tuple[Tokeniser, Signature]:
    model = caller.registry.find(named(caller, options, "tokenize").name)
    if model.tokeniser is None:
        raise InvalidRequestError(f"model must have a tokenizer, {model.signature.name} has none")
    return model.tokeniser, model.signature
