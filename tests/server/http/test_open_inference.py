"""The Open Inference Protocol over REST: what gRPC answers, as JSON or in binary."""

import gzip
import json
import zlib
from typing import Any

import numpy as np
import pytest
from tests.server.conftest import split_strings
from tests.server.http.conftest import Answered, OverHttp, with_tensor

INFER = "/v2/models/tiny/infer"
RNG = np.random.default_rng(3)
X = RNG.standard_normal((2, 3, 16), np.float32)


def json_input(array: Any = X, name: str = "x", datatype: str = "FP32", *, flat: bool = False) -> Any:
    data = array.ravel().tolist() if flat else array.tolist()
    return {"name": name, "datatype": datatype, "shape": list(array.shape), "data": data}


def binary(array: Any = X, **fields: Any) -> tuple[bytes, dict[str, str]]:
    """A body of JSON and a binary tensor, and the headers that say so."""
    body, headers = with_tensor(array, **fields)
    return body, {**headers, "Content-Type": "application/octet-stream"}


def tensors(answered: Answered) -> dict[str, Any]:
    """The outputs of a reply, in JSON or in binary."""
    assert answered.status == 200, answered.body
    size = int(answered.headers.get("inference-header-content-length", len(answered.body)))
    found, end = {}, size
    for output in json.loads(answered.body[:size])["outputs"]:
        dtype = {"FP32": np.float32, "FP16": np.float16, "UINT8": np.uint8, "INT32": np.int32}.get(
            output["datatype"]
        )
        if (count := output.get("parameters", {}).get("binary_data_size")) is not None:
            raw = answered.body[end : end + count]
            end += count
            found[output["name"]] = (
                np.frombuffer(raw, dtype).reshape(output["shape"])
                if dtype
                else split_strings(raw, tuple(output["shape"]))
            )
        else:
            found[output["name"]] = np.array(output["data"], dtype).reshape(output["shape"])
    if size != len(answered.body):
        assert end == len(answered.body)
    return found


# ---- Inference ---------------------------------------------------------------------------------


@pytest.mark.parametrize("flat", [False, True])
def test_json_gives_what_grpc_gives(web: OverHttp, flat: bool) -> None:
    expected = web.running.infer("tiny", {"x": X})

    answered = web.post(INFER, {"id": "seven", "inputs": [json_input(flat=flat)]})

    np.testing.assert_array_equal(tensors(answered)["output"], expected["output"])
    assert answered.json["model_name"] == "tiny"
    assert answered.json["model_version"] == "1"
    assert answered.json["id"] == "seven"
    assert set(answered.json["parameters"]) == set(expected.timings)


@pytest.mark.parametrize("own", [{}, {"binary_data": False}])
def test_binary_tensors_go_both_ways(web: OverHttp, own: dict[str, bool]) -> None:
    expected = web.running.infer("tiny.attention", {"x": X}, outputs=["output", "attention.1"])
    outputs = [{"name": "output", "parameters": own}, {"name": "attention.1"}]

    body, headers = binary(parameters={"binary_data_output": True}, outputs=outputs)
    answered = web.post("/v2/models/tiny.attention/infer", body, headers)

    assert answered.headers["content-type"] == "application/octet-stream"
    assert int(answered.headers["content-length"]) == len(answered.body)
    for name, array in tensors(answered).items():
        np.testing.assert_array_equal(array, expected[name])


def test_parameters_select_as_over_grpc(web: OverHttp) -> None:
    chosen = {"heads": "0,3", "queries": 1, "dtype": "UINT8"}
    expected = web.running.infer("tiny.attention", {"x": X}, outputs={"attention.0": chosen})
    outputs = [{"name": "attention.0", "parameters": chosen}]

    answered = web.post("/v2/models/tiny.attention/infer", {"inputs": [json_input()], "outputs": outputs})

    np.testing.assert_array_equal(tensors(answered)["attention.0"], expected["attention.0"])


def test_text_is_tokenised_and_tokens_come_back(web: OverHttp) -> None:
    texts = ["the cat sat", "a dog"]
    expected = web.running.infer("tiny-tokens", {"text": texts})
    inputs = [{"name": "text", "datatype": "BYTES", "shape": [2], "data": texts}]

    found = tensors(web.post("/v2/models/tiny-tokens/infer", {"inputs": inputs}))

    assert found["tokens"].tolist() == expected["tokens"]
    assert found["lengths"].tolist() == expected["lengths"].tolist()
    np.testing.assert_array_equal(found["pooled"], expected["pooled"])


def test_half_precision_and_booleans_can_be_json(web: OverHttp) -> None:
    half = X.astype(np.float16)
    mask = np.tril(np.ones((2, 3, 3), bool))
    expected = web.running.infer("tiny-masked", {"x": half, "mask": mask})
    inputs = [json_input(half, datatype="FP16"), json_input(mask, "mask", "BOOL")]

    found = tensors(web.post("/v2/models/tiny-masked/infer", {"inputs": inputs}))

    np.testing.assert_array_equal(found["output"], expected["output"])


def test_large_json_comes_in_pieces_and_is_the_same(web: OverHttp) -> None:
    x = RNG.standard_normal((64, 64, 16), np.float32)  # more numbers than are written at once
    expected = web.running.infer("tiny", {"x": x})

    body, headers = binary(x)
    plain = web.post(INFER, body, headers)
    packed = web.post(INFER, body, {**headers, "Accept-Encoding": "gzip"})

    assert plain.headers["transfer-encoding"] == "chunked"
    assert gzip.decompress(packed.body).split(b'"outputs"')[1] == plain.body.split(b'"outputs"')[1]
    np.testing.assert_array_equal(tensors(plain)["output"], expected["output"])


@pytest.mark.parametrize(
    ("accepted", "packs"),
    [
        ("gzip", True),
        ("deflate, gzip;q=0.5", True),
        ("gzip;q=0", False),
        ("GZIP ; Q=0.000, *", False),
        ("identity", False),
    ],
)
def test_replies_are_packed_for_those_who_take_it(web: OverHttp, accepted: str, packs: bool) -> None:
    reply = web.get("/metrics", **{"Accept-Encoding": accepted})

    assert ("content-encoding" in reply.headers) is packs
    assert reply.headers["vary"] == "Accept-Encoding"


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_bodies_may_be_compressed(web: OverHttp, encoding: str, pack: Any) -> None:
    body, headers = binary(parameters={"binary_data_output": True})

    answered = web.post(INFER, pack(body), {**headers, "Content-Encoding": encoding})

    np.testing.assert_array_equal(tensors(answered)["output"], web.running.infer("tiny", {"x": X})["output"])


def test_the_version_may_be_named(web: OverHttp) -> None:
    request = {"inputs": [json_input()]}

    assert web.post("/v2/models/tiny/versions/1/infer", request).status == 200
    assert web.post("/v2/models/tiny/versions/2/infer", request).status == 404
    assert web.post("/v2/models/tiny/versions/one/infer", request).status == 400


# ---- Everything else ---------------------------------------------------------------------------


def test_health(web: OverHttp) -> None:
    assert web.get("/v2/health/live").json == {"live": True}
    assert web.get("/v2/health/ready").json == {"ready": True}
    assert web.get("/v2/models/tiny/ready").json == {"name": "tiny", "ready": True}
    assert web.get("/v2/models/tiny/versions/1/ready").status == 200
    assert web.get("/v2/models/none/ready").status == 404
    assert [web.get(path).body for path in ("/healthz", "/readyz")] == [b"ok\n"] * 2


def test_metadata_configuration_statistics_and_index(web: OverHttp) -> None:
    web.post(INFER, {"inputs": [json_input()]})

    assert web.get("/v2").json["name"] == "polyhead"
    assert "binary_tensor_data" in web.get("/v2").json["extensions"]
    metadata = web.get("/v2/models/tiny").json
    assert metadata["versions"] == ["1"]
    assert metadata["inputs"][0] == {"name": "x", "datatype": "FP32", "shape": [-1, -1, 16]}
    assert metadata["properties"]["heads"] == "4"
    config = web.get("/v2/models/tiny/versions/1/config").json
    assert config["input"][0]["data_type"] == "TYPE_FP32"
    assert config["max_batch_size"] == 256
    (statistics,) = web.get("/v2/models/tiny/stats").json["model_stats"]
    assert statistics["inference_stats"]["success"]["count"] >= 1
    assert len(web.get("/v2/models/stats").json["model_stats"]) > 1
    for body in (b"", {"ready": True}):
        index = web.post("/v2/repository/index", body).json
        assert {"name": "tiny", "version": "1", "state": "READY", "reason": ""} in index
    assert web.get("/v2/models/none").status == 404
