"""Calls a polyhead server with an unmodified `openai`.

    python openai_calls.py URL TOKEN <GIVEN >GOT

Runs in an environment of its own; `tests/test_sentences.py` starts it against a server with `minilm` that
asks for the token, gives it texts and their token ids in JSON, and looks at the vectors that it prints.
"""

import asyncio
import base64
import json
import struct
import sys
from typing import Any

import openai

URL, TOKEN = sys.argv[1:]
MODEL = "minilm"


def vectors(reply: Any) -> list[list[float]]:
    """The vectors of a reply, in the order of the inputs."""
    assert (reply.object, reply.model) == ("list", MODEL)
    assert [one.index for one in reply.data] == list(range(len(reply.data)))
    return [one.embedding for one in reply.data]


def unpack(text: Any) -> list[float]:
    """A vector in base64."""
    raw = base64.b64decode(text)
    return list(struct.unpack(f"<{len(raw) // 4}f", raw))


def embed(client: openai.OpenAI, texts: list[str], ids: list[list[int]]) -> dict[str, Any]:
    """Ask for vectors in every way."""

    def ask(given: Any, **options: Any) -> Any:
        return client.embeddings.create(model=MODEL, input=given, **options)

    every = ask(texts)  # as base64, which the package decodes
    assert every.usage.prompt_tokens == every.usage.total_tokens == sum(map(len, ids))
    assert every._request_id
    return {
        "texts": vectors(every),
        "floats": vectors(ask(texts, encoding_format="float", user="someone", dimensions=384)),
        "base64": [unpack(one) for one in vectors(ask(texts, encoding_format="base64"))],
        "one by one": [vectors(ask(text))[0] for text in texts],
        "ids": vectors(ask(ids)),
        "ids one by one": [vectors(ask(row))[0] for row in ids],
        "timed": vectors(ask(texts, timeout=120, extra_headers={"x-request-timeout": "120"})),
        "cut": vectors(ask(texts, dimensions=64)),
        "bits": vectors(ask(texts, encoding_format="float", extra_body={"output_dtype": "ubinary"})),
        "asynchronous": asyncio.run(embed_asynchronously(texts)),
    }


async def embed_asynchronously(texts: list[str]) -> list[list[float]]:
    """Ask with the asynchronous client."""
    async with openai.AsyncOpenAI(base_url=URL, api_key=TOKEN) as client:
        return vectors(await client.embeddings.create(model=MODEL, input=texts))


def fail(client: openai.OpenAI) -> None:
    """Ask for what cannot be done."""
    wrong: list[tuple[type[openai.APIStatusError], openai.OpenAI, dict[str, Any]]] = [
        (openai.NotFoundError, client, {"model": "nothing"}),
        (openai.BadRequestError, client, {"dimensions": 385}),
        (openai.BadRequestError, client, {"extra_body": {"output_dtype": "ubinary"}}),  # as base64
        (openai.BadRequestError, client, {"input": []}),
        (openai.BadRequestError, client, {"extra_body": {"normalise": False}}),
        (openai.PermissionDeniedError, client.with_options(api_key="another"), {}),
        (openai.AuthenticationError, client, {"extra_headers": {"Authorization": openai.Omit()}}),
        (
            openai.InternalServerError,  # 504
            client.with_options(max_retries=0),
            {"extra_headers": {"x-request-timeout": "0.000001"}},
        ),
    ]
    for kind, one, options in wrong:
        caught: openai.APIStatusError | None = None
        try:
            one.embeddings.create(**{"model": MODEL, "input": "a", **options})
        except openai.APIStatusError as error:
            caught = error
        assert caught is not None
        assert type(caught) is kind, (kind, caught)
        assert caught.type, caught.body


def main() -> None:
    """Make every call."""
    given = json.load(sys.stdin)
    with openai.OpenAI(base_url=URL, api_key=TOKEN) as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        assert client.models.retrieve(MODEL).owned_by == "polyhead"
        got = embed(client, given["texts"], given["ids"])
        fail(client)
    json.dump(got, sys.stdout)


main()
