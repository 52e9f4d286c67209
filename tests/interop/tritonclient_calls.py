"""Calls a polyhead server with an unmodified `tritonclient`, next to `polyhead_client` in one process.

    python tritonclient_calls.py ADDRESS {polyhead,triton} TOKEN

Runs in an environment of its own (tritonclient pins an older protobuf); `test_tritonclient.py` starts
it against a server with the families of `tests/conftest.py`. The second argument is what to import first,
the third the token that opens loading and unloading; without one it is Ray, which has neither these calls
nor statistics.
"""

import asyncio
import importlib
import queue
import sys
from pathlib import Path
from typing import Any

ADDRESS, FIRST, TOKEN = sys.argv[1:]
MODULES = ["polyhead_client", "tritonclient.grpc", "tritonclient.grpc.aio"]
for name in MODULES if FIRST == "polyhead" else reversed(MODULES):
    importlib.import_module(name)

import numpy as np  # noqa: E402
import tritonclient.grpc as triton  # noqa: E402
import tritonclient.grpc.aio as triton_aio  # noqa: E402

from polyhead_client import Client  # noqa: E402

sys.path.append(str(Path(__file__).parents[2]))  # for `tests`, which is not installed here
from tests.numerics import close  # noqa: E402

X = np.random.default_rng(5).normal(size=(3, 6, 16)).astype(np.float32)
LENGTHS = np.array([6, 2, 5], np.int32)


def inputs(kind: Any = triton) -> list[Any]:
    x = kind.InferInput("x", list(X.shape), "FP32")
    x.set_data_from_numpy(X)
    lengths = kind.InferInput("lengths", [3], "INT32")
    lengths.set_data_from_numpy(LENGTHS)
    return [x, lengths]


def outputs(*names: str, kind: Any = triton) -> list[Any]:
    return [kind.InferRequestedOutput(name) for name in names]


def ask_about_server_and_models(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("tiny")
    assert client.is_model_ready("tiny.attention", "1")
    assert not client.is_model_ready("nothing")
    assert not client.is_model_ready("tiny", "7")
    extensions = set(client.get_server_metadata().extensions)
    assert "model_configuration" in extensions
    assert ("statistics" in extensions) == bool(TOKEN)

    for name, layers in [("tiny", 0), ("tiny.attention", 2)]:
        metadata = client.get_model_metadata(name)
        config = client.get_model_config(name).config
        assert metadata.name == config.name == name
        assert [output.name for output in metadata.outputs] == [
            "output",
            *(f"attention.{layer}" for layer in range(layers)),
            *(["value_norms"] if layers else []),
        ]
        assert {tensor.name for tensor in config.input} == {tensor.name for tensor in metadata.inputs}
        assert {tensor.name for tensor in config.output} == {tensor.name for tensor in metadata.outputs}
    index = client.get_model_repository_index().models
    assert {"tiny", "tiny.attention"} <= {model.name for model in index if model.state == "READY"}


def infer(client: Any, expected: Any) -> None:
    def count() -> int:
        if not TOKEN:
            fails("UNIMPLEMENTED", client.get_inference_statistics, "tiny")
            return 0
        (statistics,) = client.get_inference_statistics("tiny").model_stats
        return int(statistics.inference_stats.success.count)

    before = count()
    every = client.infer("tiny", inputs(), request_id="mine")
    assert every.get_response().id == "mine"
    assert [output.name for output in every.get_response().outputs] == ["output"]
    close(every.as_numpy("output"), expected.output)
    named = client.infer("tiny", inputs(), outputs=outputs("output"), client_timeout=120)
    close(named.as_numpy("output"), expected.output)
    assert count() == before + (2 if TOKEN else 0)

    every = client.infer("tiny.attention", inputs())
    assert every.as_numpy("attention.0").shape == (3, 4, 6, 6)
    close(every.as_numpy("output"), expected.output)
    close(every.as_numpy("attention.1"), expected.attention[1], scale=1)
    named = client.infer("tiny.attention", inputs(), outputs=outputs("attention.1"))
    assert named.as_numpy("output") is None
    close(named.as_numpy("attention.1"), expected.attention[1], scale=1)
    chosen = client.infer(
        "tiny.attention",
        inputs(),
        outputs=outputs("attention.1"),
        parameters={"heads": "3,0", "dtype": "FP16"},
    )
    close(chosen.as_numpy("attention.1"), expected.attention[1][:, [3, 0]], scale=1, extra=2**-12)


def infer_as_configured(client: Any, expected: Any) -> None:
    """With every input in the shape that the model's configuration gives it."""
    config = client.get_model_config("tiny").config
    dims = {tensor.name: list(tensor.dims) for tensor in config.input}
    assert dims == {"x": [-1, 16], "lengths": [1]}
    x, lengths = inputs()
    lengths.set_shape([3, *dims["lengths"]])
    result = client.infer("tiny", [x, lengths])
    close(result.as_numpy("output"), expected.output)


def infer_text(client: Any, polyhead: Client) -> None:
    texts = ["the cat sat", "a small dog"]
    expected: Any = polyhead.encode(texts, model="tiny-tokens")
    for shape in ([2], [2, 1]):  # the second is what the model's configuration says
        text = triton.InferInput("text", shape, "BYTES")
        text.set_data_from_numpy(np.array([each.encode() for each in texts], np.object_).reshape(shape))
        result = client.infer("tiny-tokens", [text], outputs=outputs("pooled", "tokens"))
        close(result.as_numpy("pooled"), expected.pooled)
        assert [[token.decode() for token in row] for row in result.as_numpy("tokens")] == expected.tokens


def infer_in_other_ways(client: Any, expected: Any) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    client.async_infer("tiny", inputs(), lambda result, error: answers.put((result, error)))
    result, error = answers.get(timeout=120)
    assert error is None, error
    close(result.as_numpy("output"), expected.output)

    client.start_stream(lambda result, error: answers.put((result, error)))
    for request_id in ("one", "two"):
        client.async_stream_infer("tiny", inputs(), request_id=request_id)
    for request_id in ("one", "two"):
        result, error = answers.get(timeout=120)
        assert error is None, error
        assert result.get_response().id == request_id
    client.stop_stream()
    infer_in_parts(client, expected, answers)

    async def run() -> None:
        async with triton_aio.InferenceServerClient(ADDRESS) as aio:
            result = await aio.infer("tiny", inputs(triton_aio))
            close(result.as_numpy("output"), expected.output)

    asyncio.run(run())


def infer_in_parts(client: Any, expected: Any, answers: "queue.Queue[Any]") -> None:
    """As from a decoupled model: replies until one says that it is the last."""
    client.start_stream(lambda result, error: answers.put((result, error)))
    for request_id in ("one", "two"):
        client.async_stream_infer(
            "tiny.attention",
            inputs(),
            request_id=request_id,
            parameters={"parts": True},
            enable_empty_final_response=True,
        )
    for request_id in ("one", "two"):
        parts = {}
        final = False
        while not final:
            result, error = answers.get(timeout=120)
            assert error is None, error
            reply = result.get_response()
            assert reply.id == request_id
            (output,) = reply.outputs
            parts[output.name] = result.as_numpy(output.name)
            final = reply.parameters["triton_final_response"].bool_param
        assert list(parts) == ["output", "attention.0", "attention.1", "value_norms"]
        close(parts["output"], expected.output)
        close(parts["attention.1"], expected.attention[1], scale=1)
    client.stop_stream()


def fail(client: Any) -> None:
    fails("NOT_FOUND", client.infer, "nothing", inputs())
    fails("INVALID_ARGUMENT", client.infer, "tiny", inputs()[1:])


def fails(status: str, call: Any, *arguments: Any) -> None:
    caught = None
    try:
        call(*arguments)
    except triton.InferenceServerException as error:
        caught = error
    assert caught is not None
    assert caught.status() == f"StatusCode.{status}", caught


def load_and_unload(client: Any, expected: Any) -> None:
    fails("UNAUTHENTICATED", client.unload_model, "tiny")
    bearer = {"authorization": f"Bearer {TOKEN}"}
    client.unload_model("tiny", headers=bearer)
    assert not client.is_model_ready("tiny")
    client.load_model("tiny", headers=bearer)
    assert client.is_model_ready("tiny")
    result = client.infer("tiny", inputs())
    close(result.as_numpy("output"), expected.output)


def main() -> None:
    with Client(ADDRESS) as polyhead, triton.InferenceServerClient(ADDRESS) as client:
        polyhead.wait_until_ready()
        expected = polyhead.encode(X, lengths=LENGTHS, model="tiny", attention=True)
        ask_about_server_and_models(client)
        infer(client, expected)
        infer_as_configured(client, expected)
        infer_text(client, polyhead)
        infer_in_other_ways(client, expected)
        fail(client)
        if TOKEN:
            load_and_unload(client, expected)
    sys.stdout.write("all calls worked\n")


main()
