"""Reading which outputs are requested, and selecting heads and queries."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.graphs import described

from polyhead_proto import messages as pb
from polyhead_server.errors import InvalidRequestError
from polyhead_server.inference.outputs import RequestedOutput, requested_outputs, select
from polyhead_server.inference.parameters import OutputParameters

WEIGHTS = np.random.default_rng(0).random((2, 4, 5, 5), np.float32)


@given(st.permutations(range(4)).flatmap(lambda p: st.integers(1, 4).map(lambda n: p[:n])), st.data())
def test_selecting_is_indexing(heads: list[int], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, 4))
    queries = range(start, data.draw(st.integers(start + 1, 5)))

    selected = select(WEIGHTS, {1: heads, 2: queries})

    np.testing.assert_array_equal(selected, WEIGHTS[:, heads][:, :, list(queries)])


def test_a_range_is_a_view() -> None:
    assert np.shares_memory(select(WEIGHTS, {1: range(1, 3), 2: range(2)}), WEIGHTS)


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
