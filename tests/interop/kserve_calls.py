"""Calls a polyhead server with an unmodified `kserve`, over gRPC and over HTTP.

    python kserve_calls.py ADDRESS URL TOKEN GIVEN GOT

Runs in an environment of its own (kserve pins an older protobuf); `test_kserve.py` starts it against servers
with the families of `tests/conftest.py`, of which the one at URL asks for the token, gives it arrays in the
file GIVEN, and looks at those that it writes to GOT.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import httpx
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

ADDRESS, URL, TOKEN, GIVEN, GOT = sys.argv[1:]

with np.load(GIVEN) as arrays:
    X, LENGTHS = arrays["x"], arrays["lengths"]
    TEXTS = np.array([each.encode() for each in arrays["text"]], np.object_)

Send = Callable[[InferRequest], Awaitable[Any]]


def tensor(name: str, array: Any, *, raw: bool = True) -> Any:
    """An input as kserve's users make it. With raw data it gets the parameter `binary_data_size`."""
    datatype = {"f": "FP32", "i": "INT32", "O": "BYTES"}[array.dtype.kind]
    made = InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=raw)
    return made


async def infer(send: Send) -> dict[str, Any]:
    """Makes every kind of request."""

    async def ask(model: str, inputs: list[Any], output: str, **options: Any) -> Any:
        reply = await send(InferRequest(model, inputs, request_id="mine", **options))
        assert (reply.id, reply.model_name) == ("mine", model)
        return next(one.as_numpy() for one in reply.outputs if one.name == output)

    raw = [tensor("x", X), tensor("lengths", LENGTHS)]
    typed = [tensor("x", X, raw=False), tensor("lengths", LENGTHS, raw=False)]
    wanted = RequestedOutput("attention.1", {"heads": "3,0", "binary_data": True})
    column = tensor("text", TEXTS.reshape(-1, 1), raw=False)
    return {
        "raw": await ask("tiny", raw, "output", parameters={"binary_data_output": True}),
        "typed": await ask("tiny", typed, "output"),
        "heads": await ask("tiny.attention", raw, "attention.1", request_outputs=[wanted]),
        "texts": await ask("tiny-tokens", [tensor("text", TEXTS)], "pooled"),
        "texts_as_a_column": await ask("tiny-tokens", [column], "pooled"),
    }


def wrong() -> InferRequest:
    """A request whose vectors are too narrow."""
    return InferRequest("tiny", [tensor("x", X[:, :, :4])])


async def call_over_grpc() -> dict[str, Any]:
    """Makes every kind of call with the client for gRPC."""
    async with InferenceGRPCClient(ADDRESS) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("tiny")
        assert not await client.is_model_ready("nothing")
        got = await infer(client.infer)
        code = None
        try:
            await client.infer(wrong())
        except grpc.RpcError as error:
            code = error.code()
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        return got


async def call_over_http() -> dict[str, Any]:
    """Makes every kind of call with the client for REST."""
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:

        def bearer(token: str = TOKEN) -> dict[str, str]:
            return {"Authorization": f"Bearer {token}"}  # to which the client adds

        async def send(request: Any, token: str = TOKEN) -> Any:
            return await client.infer(URL, request, model_name=request.model_name, headers=bearer(token))

        assert await client.is_server_live(URL)
        assert await client.is_server_ready(URL)
        assert await client.is_model_ready(URL, "tiny", headers=bearer())
        assert not await client.is_model_ready(URL, "nothing", headers=bearer())
        got = await infer(send)
        for status, request, token in ((400, wrong(), TOKEN), (403, wrong(), "another")):
            caught = None
            try:
                await send(request, token)
            except httpx.HTTPStatusError as error:
                caught = error
            assert caught is not None
            assert caught.response.status_code == status
            assert caught.response.json()["error"] in str(caught)
        return got


async def main() -> None:
    """Makes every kind of call over both."""
    over_http = {f"rest {name}": array for name, array in (await call_over_http()).items()}
    np.savez(GOT, **await call_over_grpc(), **over_http)


asyncio.run(main())
