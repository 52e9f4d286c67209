"""Calls a polyhead server with an unmodified `tritonclient.http`.

    python tritonclient_http_calls.py ADDRESS TOKEN GIVEN GOT

Runs in an environment of its own; `test_tritonclient.py` starts it against a server with the families of
`tests/conftest.py` that asks for the token, gives it arrays in the file GIVEN, and looks at those that it
writes to GOT.
"""

import asyncio
import itertools
import sys
from typing import Any

import numpy as np
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio

ADDRESS, TOKEN, GIVEN, GOT = sys.argv[1:]
ENCODINGS = (None, "gzip", "deflate")

with np.load(GIVEN) as arrays:
    X, LENGTHS = arrays["x"], arrays["lengths"]
    TEXTS = np.array([each.encode() for each in arrays["text"]], np.object_)


def bearer(token: str = TOKEN) -> dict[str, str]:
    """Headers, to which the client adds its own."""
    return {"Authorization": f"Bearer {token}"}


def tensor(name: str, datatype: str, array: Any, binary: bool = True) -> Any:
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def vectors(binary: bool = True) -> list[Any]:
    return [tensor("x", "FP32", X, binary), tensor("lengths", "INT32", LENGTHS, binary)]


def output(name: str, binary: bool = True) -> list[Any]:
    return [triton.InferRequestedOutput(name, binary_data=binary)]


def ask_about_server_and_models(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("tiny", headers=bearer())
    assert client.is_model_ready("tiny.attention", "1", headers=bearer())
    assert not client.is_model_ready("nothing", headers=bearer())
    assert not client.is_model_ready("tiny", "7", headers=bearer())
    extensions = {"statistics", "model_configuration", "binary_tensor_data"}
    assert extensions <= set(client.get_server_metadata(headers=bearer())["extensions"])

    metadata = client.get_model_metadata("tiny.attention", headers=bearer())
    config = client.get_model_config("tiny.attention", "1", headers=bearer())
    assert metadata["name"] == config["name"] == "tiny.attention"
    names = ["output", "attention.0", "attention.1", "value_norms"]
    assert [tensor["name"] for tensor in metadata["outputs"]] == names
    assert [tensor["name"] for tensor in config["output"]] == names
    dims = {tensor["name"]: tensor["dims"] for tensor in config["input"]}
    assert dims == {"x": [-1, 16], "lengths": [1]}
    index = client.get_model_repository_index(headers=bearer())
    assert {"tiny", "tiny.attention"} <= {model["name"] for model in index if model["state"] == "READY"}


def count(client: Any) -> int:
    (statistics,) = client.get_inference_statistics("tiny", headers=bearer())["model_stats"]
    return int(statistics["inference_stats"]["success"]["count"])


def infer(client: Any, got: dict[str, Any]) -> None:
    before = count(client)
    for binary_in, binary_out in itertools.product((True, False), repeat=2):
        result = client.infer(
            "tiny", vectors(binary_in), "1", output("output", binary_out), request_id="mine", headers=bearer()
        )
        assert result.get_response()["id"] == "mine"
        assert ("data" in result.get_output("output")) is not binary_out
        got[f"vectors {binary_in} {binary_out}"] = result.as_numpy("output")
    assert count(client) == before + 4
    for sent, accepted in itertools.product(ENCODINGS, repeat=2):
        got[f"encoded {sent} {accepted}"] = client.infer(
            "tiny",
            vectors(),
            headers=bearer(),
            request_compression_algorithm=sent,
            response_compression_algorithm=accepted,
        ).as_numpy("output")
    for binary in (True, False):
        for dtype in ("FP32", "FP16", "UINT8"):
            chosen = {"heads": "3,0", "queries": "1:3", "dtype": dtype}
            result = client.infer(
                "tiny.attention",
                vectors(),
                outputs=output("attention.1", binary),
                parameters=chosen,
                headers=bearer(),
                priority=1,
                timeout=30_000_000,
            )
            got[f"weights {dtype} {binary}"] = result.as_numpy("attention.1")
        text = [tensor("text", "BYTES", TEXTS.reshape(-1, 1) if binary else TEXTS, binary)]
        wanted = output("pooled", binary) + output("tokens", binary)
        result = client.infer("tiny-tokens", text, outputs=wanted, headers=bearer())
        got[f"pooled {binary}"] = result.as_numpy("pooled")
        got[f"tokens {binary}"] = np.char.decode(result.as_numpy("tokens").astype(bytes))


def infer_at_once(client: Any, got: dict[str, Any]) -> None:
    asked = [client.async_infer("tiny", vectors(), headers=bearer()) for _ in range(8)]
    for index, one in enumerate(asked):
        got[f"vectors at once {index}"] = one.get_result(timeout=120).as_numpy("output")

    async def run() -> None:
        async with triton_aio.InferenceServerClient(ADDRESS) as aio:
            assert await aio.is_server_ready()
            # It does not decompress these, though it asks for gzip.
            metadata = await aio.get_model_metadata("tiny.attention", headers=bearer())
            config = await aio.get_model_config("tiny.attention", headers=bearer())
            assert metadata["name"] == config["name"] == "tiny.attention"
            assert await aio.get_model_repository_index(headers=bearer())
            assert (await aio.get_inference_statistics(headers=bearer()))["model_stats"]
            result = await aio.infer("tiny", vectors(), headers=bearer())
            got["vectors with asyncio"] = result.as_numpy("output")

    asyncio.run(run())


def fail(client: Any) -> None:
    reason = None
    try:
        client.register_system_shared_memory("mine", "/mine", 8, headers=bearer())
    except triton.InferenceServerException as error:
        reason = error.message()
    assert reason == "shared memory is not offered: send the tensors in the request"
    for status, model, inputs, headers in (
        ("404", "nothing", vectors(), bearer()),
        ("400", "tiny", vectors()[1:], bearer()),
        ("401", "tiny", vectors(), {}),
        ("403", "tiny", vectors(), bearer("another")),
    ):
        caught = None
        try:
            client.infer(model, inputs, headers=headers)
        except triton.InferenceServerException as error:
            caught = error
        assert caught is not None
        assert caught.status() == status, caught
        assert caught.message()


def main() -> None:
    got: dict[str, Any] = {}
    with triton.InferenceServerClient(ADDRESS, concurrency=4) as client:
        ask_about_server_and_models(client)
        infer(client, got)
        infer_at_once(client, got)
        fail(client)
    np.savez(GOT, **got)


main()
