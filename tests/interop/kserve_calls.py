"""Calls a polyhead server with an unmodified `kserve`.

    python kserve_calls.py ADDRESS GIVEN GOT

Runs in an environment of its own (kserve pins an older protobuf); `test_kserve.py` starts it against a
server with the families of `tests/conftest.py`, gives it arrays in the file GIVEN, and looks at those that it
writes to GOT.
"""

import asyncio
import sys
from typing import Any

import grpc
import numpy as np
from kserve import InferenceGRPCClient, InferInput, InferRequest
from kserve.protocol.infer_type import RequestedOutput

ADDRESS, GIVEN, GOT = sys.argv[1:]


def tensor(name: str, array: Any, *, raw: bool = True) -> Any:
    """An input as kserve's users make it. With raw data it gets the parameter `binary_data_size`."""
    datatype = {"f": "FP32", "i": "INT32", "O": "BYTES"}[array.dtype.kind]
    made = InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=raw)
    return made


async def main() -> None:
    """Makes every kind of call."""
    with np.load(GIVEN) as arrays:
        x, lengths = arrays["x"], arrays["lengths"]
        text = np.array([each.encode() for each in arrays["text"]], np.object_)
    got = {}
    async with InferenceGRPCClient(ADDRESS) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("tiny")
        assert not await client.is_model_ready("nothing")

        async def infer(model: str, inputs: list[Any], output: str, **options: Any) -> Any:
            reply = await client.infer(InferRequest(model, inputs, request_id="mine", **options))
            assert (reply.id, reply.model_name) == ("mine", model)
            return next(one.as_numpy() for one in reply.outputs if one.name == output)

        vectors = [tensor("x", x), tensor("lengths", lengths)]
        got["raw"] = await infer("tiny", vectors, "output", parameters={"binary_data_output": True})
        typed = [tensor("x", x, raw=False), tensor("lengths", lengths, raw=False)]
        got["typed"] = await infer("tiny", typed, "output")
        wanted = RequestedOutput("attention.1", {"heads": "3,0", "binary_data": True})
        got["heads"] = await infer("tiny.attention", vectors, "attention.1", request_outputs=[wanted])
        got["texts"] = await infer("tiny-tokens", [tensor("text", text)], "pooled")
        column = tensor("text", text.reshape(-1, 1), raw=False)
        got["texts_as_a_column"] = await infer("tiny-tokens", [column], "pooled")

        code = None
        try:
            await infer("tiny", [tensor("x", x[:, :, :4])], "output")
        except grpc.RpcError as error:
            code = error.code()
        assert code is grpc.StatusCode.INVALID_ARGUMENT
    np.savez(GOT, **got)


asyncio.run(main())
