"""Vectors of the size that a store wants, over gRPC and HTTP."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.checkpoints import write_checkpoint
from tests.conftest import FAMILIES, write_tokenizer
from tests.encoders import seeded
from tests.numerics import close
from tests.server.http.conftest import OverHttp, over_http

from polyhead_client import AsyncClient, Client, InvalidRequest
from polyhead_export import ExportError, TokenizerFile, export_family, from_checkpoint
from polyhead_export.options import ExportOptions

TEXTS = ["the cat sat on the mat", "a dog", "i saw that small red house yesterday.", "!"]
TRAINED = (4, 8, 11)
CALIBRATION = ["the dog ran.", "a big blue house and a small cat", "i sat on that sofa!", "yesterday"]
"""Texts on which the ranges of vectors are measured."""


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OverHttp]:
    """A server of two families with the same weights: `cut` says that it may be cut, `raw` has vectors of any
    length and says nothing."""
    models = tmp_path_factory.mktemp("models")
    write_tokenizer(models.parent / "tokenizer.json")
    tokenizer = TokenizerFile(path=models.parent / "tokenizer.json", max_tokens=16)
    config = replace(FAMILIES["tiny-tokens"], layers=1)
    for name, one in (
        ("cut", replace(config, matryoshka=TRAINED)),
        ("raw", replace(config, normalise=False)),
    ):
        sentences = CALIBRATION if name == "cut" else ()
        export_family(seeded(one, 23), name, models, tokenizer=tokenizer, sentences=sentences)
    with over_http(models) as served:
        yield served


@pytest.fixture(scope="module")
def client(web: OverHttp) -> Iterator[Client]:
    with Client(web.running.address) as one:
        yield one


def test_the_export_says_what_vectors_were_trained_for(web: OverHttp, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "bert")
    encoder = from_checkpoint(tmp_path, "x", pooling="cls", matryoshka=(4, 8)).build().encoder
    assert encoder.config.matryoshka == (4, 8)
    with pytest.raises(ExportError, match="matryoshka must be at most 16"):
        from_checkpoint(tmp_path, "x", pooling="cls", matryoshka=(17,)).build()
    with pytest.raises(ExportError, match=r"--matryoshka, .* are for a checkpoint"):
        ExportOptions(preset="teaching", matryoshka=(4,)).sources()
    with pytest.raises(ExportError, match="sentences are for the ranges of pooled vectors"):
        export_family(encoder, "x", tmp_path, sentences=["a"])


def test_graphs_are_added_to_those_of_the_same_calibration(
    web: OverHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is measured before; and what was measured is not lost where there are no sentences."""
    models = web.running.runtime.settings.models
    assert isinstance(models, Path)
    tokenizer = TokenizerFile(path=models / "cut" / "1" / "tokenizer.json", max_tokens=16)
    encoder = seeded(replace(FAMILIES["tiny-tokens"], layers=1, matryoshka=TRAINED), 23)

    monkeypatch.setattr("polyhead_export.family.calibrate", None)
    for others in (CALIBRATION[:2], ()):
        with pytest.raises(ExportError, match="its calibration differ"):
            export_family(encoder, "cut", models, tokenizer=tokenizer, sentences=others, if_exists="add")


def first(vectors: Any, dimensions: int) -> list[list[float]]:
    """The first numbers of each vector, which then gets length 1: a loop in float64."""
    rows = []
    for vector in vectors:
        kept = [float(value) for value in vector[:dimensions]]
        length = sum(value * value for value in kept) ** 0.5
        rows.append([value / length for value in kept])
    return rows


@pytest.mark.parametrize("dimensions", [*TRAINED, 16])
def test_the_first_dimensions_have_length_1_again(client: Client, web: OverHttp, dimensions: int) -> None:
    whole: Any = client.encode(TEXTS, model="cut").pooled

    cut: Any = client.encode(TEXTS, model="cut", dimensions=dimensions)
    alone: Any = client.encode(TEXTS[2], model="cut", dimensions=dimensions, output=False).pooled
    call = {"model": "cut", "input": TEXTS, "dimensions": dimensions}
    embeddings = [one["embedding"] for one in web.post("/v1/embeddings", call).json["data"]]

    # A sum of squares, a root and a quotient, each rounded.
    np.testing.assert_allclose(cut.pooled, first(whole, dimensions), rtol=0, atol=1e-6)
    assert cut.output[0].shape[-1] == 16
    close(alone, cut.pooled[2])
    close(np.array(embeddings, np.float32), cut.pooled)
    embedded = web.post("/embed", {"model": "cut", "inputs": TEXTS, "dimensions": dimensions}).json
    close(np.array(embedded, np.float32), cut.pooled)


def test_vectors_that_have_any_length_are_only_cut_and_there_is_a_warning(
    client: Client, web: OverHttp
) -> None:
    whole: Any = client.encode(TEXTS, model="raw").pooled

    with pytest.warns(UserWarning, match="raw does not say that it was trained"):
        cut = client.encode(TEXTS, model="raw", dimensions=5).pooled

    np.testing.assert_array_equal(cut, whole[:, :5])
    assert client.model("cut").outputs["pooled"].matryoshka == TRAINED
    with pytest.warns(UserWarning, match="cut was, to 4, 8, 11 alone, trained") as warned:
        client.encode(TEXTS, model="cut", dimensions=5)
    assert warned[0].filename == __file__

    async def ask() -> None:
        async with AsyncClient(web.running.address) as other:
            await other.encode(TEXTS, model="raw", dimensions=6)

    with pytest.warns(UserWarning, match="6 dimensions may") as warned:
        asyncio.run(ask())
    assert warned[0].filename == __file__


def test_parts_of_texts_get_the_length_of_pooled_vectors(client: Client) -> None:
    """Of which metadata says whether it is 1."""
    raw, cut = (client.chunks(TEXTS[0], [(0, 7), (8, 22)], model=name) for name in ("raw", "cut"))

    assert [client.model(name).outputs["pooled"].unit for name in ("raw", "cut")] == [False, True]
    lengths = np.linalg.norm(raw, axis=1, keepdims=True)
    assert (np.abs(lengths - 1) > 0.01).all()
    np.testing.assert_allclose(cut, raw / lengths, rtol=0, atol=1e-6)


def test_what_cannot_be_cut_so_is_refused(client: Client, web: OverHttp) -> None:
    with pytest.raises(InvalidRequest, match=r"^dimensions must be between 1 and 16, was 17$"):
        client.encode(TEXTS, model="cut", dimensions=17)
    with pytest.raises(InvalidRequest, match="dimensions must be an integer, 1 or more"):
        client.encode(TEXTS, model="cut", dimensions=0)
    with pytest.raises(InvalidRequest, match="dimensions goes with pooled"):
        client.encode(TEXTS, model="cut", dimensions=4, pooled=False)
    call = {"model": "cut", "input": TEXTS, "dimensions": -1}
    assert "dimensions must be greater than or equal to 0" in web.post("/v1/embeddings", call).error
    on_tokens = {"outputs": [{"name": "output", "parameters": {"dimensions": 4}}]}
    text = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}
    answered = web.post("/v2/models/cut/infer", {"inputs": [text], **on_tokens})
    assert "parameter dimensions does not apply to output output" in answered.error


@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
@pytest.mark.parametrize("dimensions", [11, None])
def test_integers_are_those_of_sentence_transformers(
    client: Client, web: OverHttp, precision: Any, dimensions: int | None
) -> None:
    from sentence_transformers.util.quantization import quantize_embeddings

    asked: Any = {"model": "cut", "dimensions": dimensions}
    floats: Any = client.encode(TEXTS, **asked).pooled
    others: Any = client.encode(CALIBRATION, **asked).pooled

    found: Any = client.encode(TEXTS, precision=precision, **asked).pooled
    alone: Any = [client.encode(text, precision=precision, **asked).pooled for text in TEXTS]
    call = {**asked, "input": TEXTS, "output_dtype": precision}
    embeddings = [one["embedding"] for one in web.post("/v1/embeddings", call).json["data"]]

    ranges: Any = np.array([others.min(0), others.max(0)])
    expected = quantize_embeddings(floats, precision, ranges=ranges)
    assert found.dtype == expected.dtype
    # Where rounding decides, a number is in the next step; a bit is of a number of another sign.
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= ("int8" in precision)
    assert (found == expected).mean() > 0.9
    assert np.ptp(expected.astype(int)) > 100
    for vectors in (alone, embeddings):  # whatever else is in the batch
        np.testing.assert_array_equal(np.array(vectors), found)


def test_what_cannot_become_integers_is_refused(client: Client, web: OverHttp) -> None:
    with pytest.raises(InvalidRequest, match=r"which needs the ranges of vectors of 16 dimensions.* of none"):
        client.encode(TEXTS, model="raw", precision="int8")
    with (
        pytest.warns(UserWarning, match="cut was"),
        pytest.raises(InvalidRequest, match="of 4, 8, 11, 16 alone"),
    ):
        client.encode(TEXTS, model="cut", precision="int8", dimensions=6)
    with pytest.raises(InvalidRequest, match="precision must be one of int8, uint8, binary, ubinary"):
        client.encode(TEXTS, model="cut", precision="float16")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="precision goes with pooled"):
        client.encode(TEXTS, model="cut", precision="int8", pooled=False)
    refused: dict[str, dict[str, Any]] = {
        "output_dtype must be 'float', 'int8', 'uint8', 'binary' or 'ubinary'": {"output_dtype": "int4"},
        "output_dtype must be binary or ubinary": {"output_dtype": "int8", "dimensions": 5},
        "encoding_format must be float": {"output_dtype": "int8", "encoding_format": "base64"},
    }
    for named, fields in refused.items():
        assert named in web.post("/v1/embeddings", {"model": "cut", "input": TEXTS, **fields}).error
    output = {"name": "pooled", "parameters": {"dtype": "FP16", "precision": "int8"}}
    text = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}
    answered = web.post("/v2/models/cut/infer", {"inputs": [text], "outputs": [output]})
    assert "must have parameter dtype (FP16) or precision (int8), had both" in answered.error
