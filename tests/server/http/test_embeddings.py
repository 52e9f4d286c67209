"""Embeddings calls: OpenAI's and TEI's."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.numerics import close
from tests.server.http.conftest import OverHttp, StartHttp

from polyhead_export import export_family
from polyhead_model import Encoder, EncoderConfig

TEXTS = ["the cat sat on the mat", "a dog"]


def pooled(web: OverHttp, texts: list[str], **parameters: Any) -> Any:
    """What gRPC answers."""
    return web.running.infer("tiny-tokens", {"text": texts}, parameters=parameters)["pooled"]


def embed(web: OverHttp, given: object = TEXTS, **fields: Any) -> Any:
    """The reply of `/v1/embeddings`."""
    answered = web.post("/v1/embeddings", {"model": "tiny-tokens", "input": given, **fields})
    assert answered.status == 200, answered.body
    return answered.json


def vectors(reply: Any) -> Any:
    """The vectors of a reply, as numbers."""
    assert [one["index"] for one in reply["data"]] == list(range(len(reply["data"])))
    return np.array([one["embedding"] for one in reply["data"]], np.float32)


def test_texts_become_the_vectors_that_grpc_gives(web: OverHttp) -> None:
    reply = embed(web)

    np.testing.assert_array_equal(vectors(reply), pooled(web, TEXTS))
    assert reply["object"] == "list"
    assert reply["model"] == "tiny-tokens"
    assert reply["usage"] == {"prompt_tokens": 12, "total_tokens": 12}
    np.testing.assert_array_equal(vectors(embed(web, TEXTS[0])), pooled(web, TEXTS[:1]))


def test_base64_holds_the_same_vectors(web: OverHttp) -> None:
    reply = embed(web, encoding_format="base64", user="someone")

    found = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in reply["data"]]
    np.testing.assert_array_equal(found, pooled(web, TEXTS))


def test_token_ids_may_be_sent_instead(web: OverHttp) -> None:
    ids = [[2, 5, 6, 8, 10, 5, 11, 3], [2, 18, 7, 3]]

    reply = embed(web, ids)

    np.testing.assert_array_equal(vectors(reply), pooled(web, TEXTS))
    assert reply["usage"]["total_tokens"] == 12
    np.testing.assert_array_equal(vectors(embed(web, ids[1])), pooled(web, TEXTS[1:]))


def test_prompts_truncation_and_dimensions(web: OverHttp) -> None:
    long = "the cat sat on the mat " * 5
    rejected = web.post("/v1/embeddings", {"model": "tiny-tokens", "input": long})
    assert rejected.status == 400
    assert "16 tokens" in rejected.error
    np.testing.assert_array_equal(
        vectors(embed(web, long, truncate=True)), pooled(web, [long], truncate=True)
    )
    np.testing.assert_array_equal(
        vectors(embed(web, prompt_name="query", dimensions=16)), pooled(web, TEXTS, prompt_name="query")
    )


def test_many_inputs_take_several_requests(serve_over_http: StartHttp, repository: Path) -> None:
    web = serve_over_http(models=repository, max_batch_size=4, max_request_tokens=16)  # two of TEXTS, padded

    for given in (TEXTS * 5, [[2, 5, 6, 3], [2, 18, 7, 8, 9, 10, 3], [2, 3]] * 3):
        reply = embed(web, given)
        one_by_one = [embed(web, [each]) for each in given]
        np.testing.assert_array_equal(vectors(reply), np.concatenate([vectors(each) for each in one_by_one]))
        assert reply["usage"]["total_tokens"] == sum(each["usage"]["total_tokens"] for each in one_by_one)
    rejected = web.post("/v1/embeddings", {"model": "tiny-tokens", "input": ["a"] * 3 + ["mat " * 15]})
    assert "input[3] must be at most 16 tokens" in rejected.error


@pytest.mark.parametrize(
    ("fields", "status", "named"),
    [
        ({"model": "none"}, 404, "none"),
        ({"model": 3}, 400, "model must be a string, was 3"),
        ({"model": "tiny"}, 400, "pools tokens"),
        ({"input": None}, 400, "input"),
        ({"input": []}, 400, "input must have at least 1 item, had 0"),
        ({"input": [[]]}, 400, r"input[0]"),
        ({"input": [1, "a"]}, 400, "input[0] must be a string or an array, was 1"),
        ({"input": ["a", 5]}, 400, "input[1] must be a string, was 5"),
        ({"input": [["a"]]}, 400, "input[0][0] must be a whole number, was 'a'"),
        ({"input": [99]}, 400, "input[0] must be between 0 and 31, was 99"),
        ({"input": [-1]}, 400, "input[0] must be greater than or equal to 0, was -1"),
        ({"input": ["a"] * 2049}, 400, "input must have at most 2048 items, had 2049"),
        (
            {"input": [*["a"] * 300, "the cat sat on the mat " * 5]},
            400,
            "input[300] must be at most 16 tokens",
        ),
        (
            {"input": ["a", "private \ud800"]},
            400,
            "was not: no low surrogate in string (line 1, column 50: '\\\\ud800",
        ),
        ({"input": [[1], [1] * 40_000]}, 413, "a request must have at most 32768 tokens, had 40000"),
        ({"input": [[1] * 33]}, 400, "dimension 1 (T) of input must be at most 32, was 33"),
        ({"dimensions": 17}, 400, "dimensions must be from 1 to 16"),
        ({"encoding_format": "int8"}, 400, "encoding_format must be 'float' or 'base64', was 'int8'"),
        ({"prompt_name": "nonsense"}, 400, "prompt_name"),
        ({"temperature": 1}, 400, "temperature"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    web: OverHttp, fields: dict[str, Any], status: int, named: str
) -> None:
    answered = web.post("/v1/embeddings", {"model": "tiny-tokens", "input": "a cat", **fields})

    assert answered.status == status
    assert named in answered.error
    assert answered.json["error"]["type"] in {"invalid_request_error", "not_found_error"}


def test_an_error_names_the_field_for_programs(web: OverHttp) -> None:
    texts = [*["a"] * 300, "the cat sat on the mat " * 5]
    ours = web.post("/v1/embeddings", {"model": "tiny-tokens", "input": texts})
    theirs = web.post(
        "/v2/models/tiny-tokens/infer",
        {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [2], "data": ["a", texts[-1]]}]},
    )

    assert ours.json["error"]["param"] == "input[300]"
    assert theirs.json["fault"]["field"] == "text"
    assert theirs.json["fault"]["index"] == [1]


@pytest.mark.slow
def test_the_graph_without_vectors_of_tokens_runs_where_there_is_one(
    serve_over_http: StartHttp, tmp_path: Path
) -> None:
    config = EncoderConfig(d_model=8, heads=2, layers=1, feed_forward=8, vocabulary=20, pooling="cls")
    export_family(Encoder(config), "first", tmp_path, graphs=["pooled"])
    web = serve_over_http(models=tmp_path)

    reply = web.post("/v1/embeddings", {"model": "first", "input": [[3, 4, 5], [6]]}).json

    ids, lengths = np.array([[3, 4, 5], [6, 0, 0]]), np.array([3, 1], np.int32)
    expected = web.running.infer("first", {"input_ids": ids, "lengths": lengths})["pooled"]
    close(vectors(reply), expected)
    assert reply["model"] == "first"
    assert [model["id"] for model in web.get("/v1/models").json["data"]] == ["first"]
    metrics = web.get("/metrics").body.decode()
    assert (
        'polyhead_requests_total{code="OK",model="first.pooled",protocol="http",version="1"} 1.0' in metrics
    )


@pytest.mark.slow
def test_the_newest_version_answers_and_says_what_it_takes(
    serve_over_http: StartHttp, tmp_path: Path
) -> None:
    for version, width in ((1, 8), (2, 16)):
        config = EncoderConfig(d_model=width, heads=2, layers=1, feed_forward=8, vocabulary=20, pooling="cls")
        export_family(Encoder(config), "grown", tmp_path, version=version, graphs=["pooled"])
    web = serve_over_http(models=tmp_path, versions="all")

    answered = web.post("/v1/embeddings", {"model": "grown", "input": [[3, 4, 5]], "dimensions": 12})

    assert answered.status == 200, answered.body
    assert vectors(answered.json).shape == (1, 12)


def test_models_that_do_something_with_texts_are_listed(web: OverHttp) -> None:
    (model,) = web.get("/v1/models").json["data"]

    assert (model["id"], model["object"]) == ("tiny-tokens", "model")
    assert model["capabilities"] == ["embed", "tokenize"]
    assert model["stats"]["queue_absolute"] == 0
    (same,) = web.get("/models").json["data"]
    assert same | {"owned_by": "polyhead"} == model
    assert web.get("/v1/models/tiny-tokens").json == model
    assert web.get("/v1/models/none").status == 404


@pytest.mark.parametrize("name", ["ORG/tiny-tokens", "an-org/tiny.tokens@main"])
def test_a_family_has_the_name_of_its_checkpoint_too(web: OverHttp, name: str) -> None:
    expected = web.post("/v1/embeddings", {"model": "tiny-tokens", "input": "some words"})

    for reply in (
        web.post("/v1/embeddings", {"model": name, "input": "some words"}),
        web.post(f"/v1/embeddings?model={name}", {"input": "some words"}),
    ):
        assert reply.json == expected.json
    assert web.get(f"/v1/models/{name}").json["id"] == "tiny-tokens"


@pytest.mark.parametrize(
    "name", ["/tiny-tokens", "a/b/tiny-tokens", "../tiny-tokens", "a/..", "a/模型", f"{'a' * 97}/tiny-tokens"]
)
def test_other_paths_are_no_names(web: OverHttp, name: str) -> None:
    assert web.post("/v1/embeddings", {"model": name, "input": "some words"}).status == 404


def test_teis_call(web: OverHttp) -> None:
    answered = web.post("/embed", {"inputs": TEXTS, "truncate": True})
    raw = web.post("/embed", {"inputs": TEXTS[0], "normalize": False, "model": "tiny-tokens"})

    close(answered.json, pooled(web, TEXTS))
    np.testing.assert_allclose(np.linalg.norm(answered.json, axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(np.array(raw.json, np.float32), pooled(web, TEXTS[:1]))
    rejected = web.post("/embed", {"inputs": TEXTS, "truncation_direction": "Left"})
    assert (rejected.status, rejected.json["error_type"]) == (400, "validation")


def test_teis_call_must_name_the_model_where_there_are_several(
    serve_over_http: StartHttp, repository: Path, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / "tiny").symlink_to(repository / "tiny")

    answered = serve_over_http(models=models).post("/embed", {"inputs": TEXTS})

    assert answered.status == 400
    assert "field model" in answered.error
