"""Reading which outputs are requested, selecting heads and queries, and converting."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.graphs import described

from polyhead_proto import messages as pb
from polyhead_proto.outputs.pooled import VectorPrecision
from polyhead_server.errors import InvalidRequestError
from polyhead_server.inference.outputs import (
    RequestedOutput,
    convert,
    normalised,
    quantised,
    requested_outputs,
    select,
)
from polyhead_server.inference.parameters import OutputParameters

VECTORS = np.random.default_rng(3).normal(size=(50, 19)).astype(np.float32)
RANGES: Any = np.array([VECTORS[:20].min(0), VECTORS[:20].max(0)])
WEIGHTS = np.random.default_rng(0).random((2, 4, 5, 5), np.float32)


@given(st.permutations(range(4)).flatmap(lambda p: st.integers(1, 4).map(lambda n: p[:n])), st.data())
def test_selecting_is_indexing(heads: list[int], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, 4))
    queries = range(start, data.draw(st.integers(start + 1, 5)))

    selected = select(WEIGHTS, {1: heads, 2: queries})

    np.testing.assert_array_equal(selected, WEIGHTS[:, heads][:, :, list(queries)])


def test_a_range_is_a_view() -> None:
    assert np.shares_memory(select(WEIGHTS, {1: range(1, 3), 2: range(2)}), WEIGHTS)


def test_half_precision_is_numpy_s_and_overflow_is_infinite() -> None:
    np.testing.assert_array_equal(convert(WEIGHTS, "FP16"), WEIGHTS.astype(np.float16))
    assert np.isposinf(convert(np.array([1e30], np.float32), "FP16"))


def test_bytes_are_off_by_half_a_step_at_most() -> None:
    scaled = convert(WEIGHTS, "UINT8")

    assert scaled.dtype == np.uint8
    assert np.abs(scaled / 255 - WEIGHTS).max() <= 1 / 510 + 1e-7


def test_bytes_of_what_is_no_weight_stay_in_range() -> None:
    odd = np.array([np.nan, -1, 2, np.inf, -np.inf, 0, 1], np.float32)

    assert convert(odd, "UINT8").tolist() == [0, 0, 255, 255, 0, 0, 255]


def test_full_precision_is_not_copied() -> None:
    assert convert(WEIGHTS, "FP32") is WEIGHTS


def requested(
    repository: Path, own: dict[str, dict[str, str | int]], **default: Any
) -> dict[str, RequestedOutput]:
    """The outputs that a request names with parameters of their own, by name."""
    signature = described(repository, "tiny-tokens")
    outputs = [
        pb.ModelInferRequest.InferRequestedOutputTensor(
            name=name,
            parameters={
                key: pb.InferParameter(int64_param=value)
                if isinstance(value, int)
                else pb.InferParameter(string_param=value)
                for key, value in parameters.items()
            },
        )
        for name, parameters in own.items()
    ]
    return {one.spec.name: one for one in requested_outputs(outputs, OutputParameters(**default), signature)}


def test_spans_come_only_to_requests_that_name_them(repository: Path) -> None:
    assert list(requested(repository, {})) == ["output", "pooled", "tokens", "lengths"]
    assert list(requested(repository, {"spans": {}})) == ["spans"]


def test_an_outputs_own_datatype_or_precision_stands_for_both_defaults(repository: Path) -> None:
    own = requested(repository, {"pooled": {"precision": "binary"}, "output": {}}, dtype="FP16")
    assert [own["pooled"].datatype, own["output"].datatype] == ["INT8", "FP16"]
    own = requested(repository, {"pooled": {"dtype": "FP16"}}, precision="binary")
    assert (own["pooled"].datatype, own["pooled"].precision) == ("FP16", None)
    both: dict[str, Any] = {"dtype": "FP16", "precision": "binary"}
    with pytest.raises(InvalidRequestError, match="output pooled must have parameter dtype"):
        requested(repository, {"pooled": both})
    with pytest.raises(InvalidRequestError, match="output pooled must have parameter dtype"):
        requested(repository, {"pooled": {}}, **both)


# ---- Vectors in fewer bits ---------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("precision", get_args(VectorPrecision))
def test_they_are_those_of_sentence_transformers(precision: VectorPrecision) -> None:
    from sentence_transformers.util.quantization import quantize_embeddings

    expected = quantize_embeddings(VECTORS, precision, ranges=RANGES)

    found = quantised(VECTORS, precision, RANGES if "int8" in precision else None)

    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_what_is_out_of_range_or_constant_stays_in_8_bits() -> None:
    odd = np.array([[np.nan, np.inf, -np.inf, 3, 7]], np.float32)
    ranges = np.array([[0, 0, 0, 3, 3], [1, 1, 1, 3, 3]], np.float32)

    assert quantised(odd, "uint8", ranges).tolist() == [[0, 255, 0, 0, 4]]
    assert quantised(odd, "int8", ranges).tolist() == [[-128, 127, -128, -128, -124]]
    assert quantised(odd, "binary", None).tolist() == [[0b01011000 - 128]]


def test_zeros_have_no_direction() -> None:
    found = normalised(np.array([[0, 0], [3, -4]], np.float32))

    np.testing.assert_array_equal(found, np.array([[0, 0], [0.6, -0.8]], np.float32))
