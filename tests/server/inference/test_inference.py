"""Numbers over the wire, against the same graphs run in this process; and what runs on the event loop."""

import struct
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnxruntime as ort
import pytest
from tests.numerics import close
from tests.server.conftest import Gate, Result, fails
from tokenizers import Tokenizer

from polyhead_proto import messages as pb

CHANCE = np.random.default_rng(2026)
X = CHANCE.standard_normal((3, 7, 16), np.float32)
LENGTHS = np.array([7, 1, 4], np.int32)
TEXTS = ["The cat that I saw yesterday sat.", "", "dogs"]


def reference(
    repository: Path, family: str, feeds: dict[str, Any], file: str = "attention.onnx"
) -> dict[str, Any]:
    """The outputs of the family's graph, run here."""
    session = ort.InferenceSession(str(repository / family / "1" / file), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


@pytest.fixture(scope="module")
def tiny(repository: Path) -> dict[str, Any]:
    return reference(repository, "tiny", {"x": X, "lengths": LENGTHS})


def test_no_outputs_named_means_all(server: Any, tiny: dict[str, Any]) -> None:
    result = server.infer("tiny.attention", {"x": X, "lengths": LENGTHS})

    assert list(result.outputs) == ["output", "attention.0", "attention.1", "value_norms"]
    for name, expected in tiny.items():
        close(result[name], expected)


def test_the_fast_model_gives_the_same_output(server: Any, tiny: dict[str, Any]) -> None:
    close(server.infer("tiny", {"x": X, "lengths": LENGTHS})["output"], tiny["output"])


def test_outputs_come_in_the_order_asked_for(server: Any, tiny: dict[str, Any]) -> None:
    result = server.infer("tiny.attention", {"x": X, "lengths": LENGTHS}, outputs=["attention.1", "output"])

    assert list(result.outputs) == ["attention.1", "output"]
    close(result["attention.1"], tiny["attention.1"])


def test_without_lengths_every_token_counts(server: Any, repository: Path) -> None:
    expected = reference(repository, "tiny", {"x": X, "lengths": np.full(3, 7, np.int32)})

    close(server.infer("tiny", {"x": X})["output"], expected["output"])


def test_lengths_of_64_bits_and_of_0_are_taken(server: Any, repository: Path) -> None:
    lengths = np.array([7, 0, 2])
    expected = reference(repository, "tiny", {"x": X, "lengths": lengths.astype(np.int32)})

    result = server.infer("tiny", {"x": X, "lengths": lengths})

    close(result["output"], expected["output"])
    assert not result["output"][1].any()


def test_half_precision_input_is_taken(server: Any, repository: Path) -> None:
    half = X.astype(np.float16)
    expected = reference(repository, "tiny", {"x": half.astype(np.float32), "lengths": LENGTHS})

    close(server.infer("tiny", {"x": half, "lengths": LENGTHS})["output"], expected["output"])


@pytest.mark.parametrize("shape", [[3], [3, 1]], ids=str)
def test_typed_contents_are_taken(server: Any, tiny: dict[str, Any], shape: list[int]) -> None:
    request = pb.ModelInferRequest(model_name="tiny")
    request.inputs.add(name="x", datatype="FP32", shape=X.shape, contents={"fp32_contents": X.ravel()})
    request.inputs.add(name="lengths", datatype="INT32", shape=shape, contents={"int_contents": LENGTHS})

    reply = server.call("ModelInfer", request)

    close(np.frombuffer(reply.raw_output_contents[0], np.float32).reshape(X.shape), tiny["output"])


def test_nan_and_infinity_stay_in_their_sequence(server: Any, tiny: dict[str, Any]) -> None:
    x = X.copy()
    x[0, 0, 0], x[0, 1, 1] = np.nan, np.inf
    x[2, 6] = np.nan  # in padding
    result = server.infer("tiny.attention", {"x": x, "lengths": LENGTHS})

    assert np.isnan(result["output"][0]).any()
    for name, expected in tiny.items():
        close(result[name][1:], expected[1:])


def test_a_mask_is_taken_and_none_means_all(server: Any, repository: Path) -> None:
    mask = CHANCE.random((3, 7, 7)) < 0.6
    for given in (mask, None):
        full = np.ones((3, 7, 7), np.bool_) if given is None else given
        expected = reference(repository, "tiny-masked", {"x": X, "lengths": LENGTHS, "mask": full})
        inputs = {"x": X, "lengths": LENGTHS} | ({} if given is None else {"mask": given})

        result = server.infer("tiny-masked.attention", inputs)

        for name, value in expected.items():
            close(result[name], value)


def test_large_requests_and_replies_are_the_same_as_small_ones(server: Any, repository: Path) -> None:
    x = CHANCE.standard_normal((4, 300, 16), np.float32)
    lengths = np.array([300, 17, 299, 1], np.int32)
    expected = reference(repository, "tiny", {"x": x, "lengths": lengths})

    for order in (("x", "lengths"), ("lengths", "x")):
        inputs = {"x": x, "lengths": lengths}
        result = server.infer("tiny.attention", {name: inputs[name] for name in order}, id="77")
        assert result.reply.id == "77"
        for name, value in expected.items():
            close(result[name], value)


# ---- Selecting ---------------------------------------------------------------------------------


def test_heads_queries_and_dtype_of_an_output(server: Any, tiny: dict[str, Any]) -> None:
    result = server.infer(
        "tiny.attention",
        {"x": X, "lengths": LENGTHS},
        outputs={
            "attention.0": {"heads": "3,0", "queries": "0:2", "dtype": "UINT8"},
            "attention.1": {"heads": 2, "dtype": "FP16"},
            "output": {"dtype": "FP16"},
        },
    )

    assert result.datatypes == {"attention.0": "UINT8", "attention.1": "FP16", "output": "FP16"}
    picked = tiny["attention.0"][:, [3, 0], :2]
    close(result["attention.0"] / 255, picked, scale=1, extra=1 / 510)
    close(result["attention.1"], tiny["attention.1"][:, [2]], scale=1, extra=2**-12)
    np.testing.assert_allclose(result["output"], tiny["output"], atol=1e-2)


def test_request_parameters_are_the_default_of_what_they_apply_to(server: Any, tiny: dict[str, Any]) -> None:
    result = server.infer(
        "tiny.attention",
        {"x": X, "lengths": LENGTHS},
        outputs={"output": {}, "attention.0": {}, "attention.1": {"heads": "1", "dtype": "FP32"}},
        parameters={"heads": "0:2", "queries": "6", "dtype": "UINT8"},
    )

    assert result.datatypes == {"output": "FP32", "attention.0": "UINT8", "attention.1": "FP32"}
    close(result["output"], tiny["output"])
    assert result["attention.0"].shape == (3, 2, 1, 7)
    close(result["attention.1"], tiny["attention.1"][:, [1], 6:7])


def test_parameters_of_triton_s_clients_are_accepted(server: Any) -> None:
    unsigned = pb.InferParameter(uint64_param=3)
    parameters = {
        "timeout": 1_000_000,
        "priority": unsigned,
        "triton_enable_empty_final_response": True,
        "sequence_id": 0,
        "sequence_start": False,
        "sequence_end": False,
    }

    assert server.infer("tiny", {"x": X}, parameters=parameters)["output"].shape == X.shape


def test_parameters_that_other_clients_add_are_accepted(server: Any, tiny: dict[str, Any]) -> None:
    """As `kserve` and `mlserver` write them: each says what happens anyway."""
    request = server.request(
        "tiny.attention",
        {"x": X, "lengths": LENGTHS},
        outputs={
            "output": {"binary_data": True, "content_type": "np"},
            "attention.1": {"headers": "none", "heads": "1"},
        },
        parameters={"binary_data_output": True, "content_type": "np", "headers": "none", "dtype": "FP32"},
    )
    for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        tensor.parameters["binary_data_size"].int64_param = len(raw)
        tensor.parameters["content_type"].string_param = "np"
        tensor.parameters["headers"].string_param = "none"
        tensor.contents.SetInParent()  # empty, beside the raw ones

    for _ in range(2):  # the second is of a form that is known
        result = Result(server.call("ModelInfer", request))
        close(result["output"], tiny["output"])
        close(result["attention.1"], tiny["attention.1"][:, [1]])


def test_a_size_in_words_is_compared_with_every_request(server: Any) -> None:
    """Also with those whose header is known already."""
    request = server.request("tiny-tokens", {"text": ["a cat"]})
    request.inputs[0].parameters["binary_data_size"].uint64_param = len(request.raw_input_contents[0])
    assert server.call("ModelInfer", request).outputs
    request.raw_input_contents[0] = struct.pack("<I", 3) + b"cat"

    with pytest.raises(grpc.RpcError, match=r"binary_data_size of text must be the 7 bytes .*, was 9"):
        server.call("ModelInfer", request)


# ---- Text --------------------------------------------------------------------------------------


def tokenised(repository: Path) -> tuple[dict[str, Any], list[list[str]]]:
    """The texts as ids and as tokens, by the tokenizers library itself."""
    tokenizer = Tokenizer.from_file(str(repository / "tiny-tokens" / "1" / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding(pad_id=0, pad_token="")
    encodings = tokenizer.encode_batch(TEXTS)
    ids = np.array([encoding.ids for encoding in encodings])
    lengths = np.array([sum(encoding.attention_mask) for encoding in encodings], np.int32)
    return {"input_ids": ids, "lengths": lengths}, [encoding.tokens for encoding in encodings]


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "typed"])
def test_text_may_have_the_dimension_that_triton_asks_for(server: Any, raw: bool) -> None:
    request = server.request("tiny-tokens", {"text": TEXTS}, parameters={"content_type": "pd"})
    request.inputs[0].shape.append(1)
    request.inputs[0].parameters["content_type"].string_param = "str"  # as `mlserver` writes a column
    if not raw:
        del request.raw_input_contents[:]
        request.inputs[0].contents.bytes_contents.extend(text.encode() for text in TEXTS)

    result = Result(server.call("ModelInfer", request))
    expected = server.infer("tiny-tokens", {"text": TEXTS})

    assert result.outputs.keys() == expected.outputs.keys()
    assert result["lengths"].shape == (3,)
    close(result["pooled"], expected["pooled"])
    assert result["tokens"] == expected["tokens"]


def test_text_is_tokenised_and_gives_tokens_and_lengths(server: Any, repository: Path) -> None:
    inputs, names = tokenised(repository)
    expected = reference(
        repository, "tiny-tokens", {**inputs, "token_type_ids": np.zeros_like(inputs["input_ids"])}
    )

    result = server.infer("tiny-tokens.attention", {"text": TEXTS})

    weights = ["attention.0", "attention.1", "value_norms"]
    assert list(result.outputs) == ["output", "pooled", *weights, "tokens", "lengths"]
    for name, value in expected.items():
        close(result[name], value)
    assert result["tokens"] == names
    np.testing.assert_array_equal(result["lengths"], inputs["lengths"])
    assert result.timings["tokenise_ns"] > 0


def test_ids_give_the_same_as_their_text(server: Any, repository: Path) -> None:
    inputs, names = tokenised(repository)
    text = server.infer("tiny-tokens", {"text": TEXTS})

    ids = server.infer("tiny-tokens", inputs)

    for name in ("output", "pooled", "lengths"):
        np.testing.assert_array_equal(ids[name], text[name])
    assert ids["tokens"] == names
    assert "tokenise_ns" not in ids.timings


def test_token_types_count(server: Any, repository: Path) -> None:
    inputs, _ = tokenised(repository)
    types = np.ones_like(inputs["input_ids"])
    expected = reference(repository, "tiny-tokens", {**inputs, "token_type_ids": types})

    result = server.infer("tiny-tokens", {**inputs, "token_type_ids": types}, outputs=["pooled"])

    close(result["pooled"], expected["pooled"])


def test_long_text_is_cut_when_the_request_says_so(server: Any) -> None:
    result = server.infer("tiny-tokens", {"text": ["cat " * 50, "cat"]}, parameters={"truncate": True})

    assert result["lengths"].tolist() == [16, 3]
    assert result["tokens"][0][-1] == "[SEP]"


def test_tokens_alone_need_no_run(server: Any) -> None:
    before = server.call("ModelStatistics", pb.ModelStatisticsRequest(name="tiny-tokens")).model_stats[0]

    result = server.infer("tiny-tokens", {"text": ["the cat"]}, outputs=["tokens"])

    after = server.call("ModelStatistics", pb.ModelStatisticsRequest(name="tiny-tokens")).model_stats[0]
    assert result["tokens"] == [["[CLS]", "the", "cat", "[SEP]"]]
    assert result.timings["compute_ns"] == 0
    assert after.execution_count == before.execution_count
    assert after.inference_stats.success.count == before.inference_stats.success.count + 1


# ---- The reply ---------------------------------------------------------------------------------


def test_the_reply_echoes_and_times(server: Any) -> None:
    result = server.infer("tiny", {"x": X}, id="my request", model_version="1")

    assert (result.reply.id, result.reply.model_name, result.reply.model_version) == (
        "my request",
        "tiny",
        "1",
    )
    assert set(result.timings) == {"parse_ns", "queue_ns", "compute_ns", "serialise_ns"}
    assert all(value > 0 for value in result.timings.values())


# ---- The event loop ----------------------------------------------------------------------------


# ---- Memory of typed contents ----------------------------------------------------------------------


def typed(count: int) -> pb.ModelInferRequest:
    """A request with so many tokens of 16 numbers each, as typed contents."""
    contents = pb.InferTensorContents(fp32_contents=[0.5] * (count * 16))
    tensor = {"name": "x", "datatype": "FP32", "shape": (1, count, 16), "contents": contents}
    return pb.ModelInferRequest(model_name="tiny", inputs=[tensor])


def test_what_parsing_takes_is_held_as_long_as_typed_contents_are(serve: Any, gate: Gate) -> None:
    tokens = 512
    numbers = tokens * 16
    small, request = typed(1), typed(tokens)
    size = request.ByteSize()
    server = serve(max_held_bytes=size * 13)  # for one, and the bytes of another
    server.call("ModelInfer", small)  # beside nothing, whatever it takes
    budget = server.runtime.budget

    with gate.closed():
        first = server.method("ModelInfer").future(request, timeout=240)
        gate.until_held()
        assert budget.bytes > size + 16 * numbers
        with fails(grpc.StatusCode.UNAVAILABLE, "would pass the limit"):
            server.call("ModelInfer", request)
    first.result()

    assert server.counted("polyhead_drops_total", reason="memory") == 1
    assert server.counted("polyhead_drops_total", reason="loading") == 0
    server.call("ModelInfer", request)


def test_what_parsing_takes_is_free_where_contents_are_raw(serve: Any, gate: Gate) -> None:
    server = serve()
    request = server.request("tiny", {"x": X})
    size = request.ByteSize()

    with gate.closed():
        first = server.method("ModelInfer").future(request, timeout=240)
        gate.until_held()
        assert server.runtime.budget.bytes - size < 2 * X.nbytes + 1024  # the output, and the reply
    first.result()
