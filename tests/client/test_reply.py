"""Replies of a broken or hostile server: read as protobuf would, or refused."""

from typing import Any

import numpy as np
import pytest
from tests.mutations import mutations

from polyhead_client.errors import ServerError
from polyhead_client.inputs import prepare
from polyhead_client.parts import Assembly
from polyhead_client.reply import read_message
from polyhead_client.requested import RequestedOutputs, SelectedOutput
from polyhead_proto import messages as pb
from polyhead_proto.tensors import TensorSpec

BATCH = prepare(np.zeros((1, 3, 8), np.float32))
REQUESTED = RequestedOutputs(
    outputs=tuple(
        SelectedOutput(tensor=TensorSpec(name=name, datatype="FP32", role=role), datatype="FP32", dims=dims)
        for name, role, dims in (
            ("output", "output", ("B", "T", "D")),
            ("pooled", "pooled", ("B", "D")),
            ("attention.0", "attention", ("B", "H", "T", "T")),
        )
    )
)
ARRAYS: dict[str, Any] = {
    "output": np.arange(24, dtype=np.float32).reshape(1, 3, 8),
    "pooled": np.full((1, 8), 0.5, np.float16),
    "attention.0": np.arange(18, dtype=np.uint8).reshape(1, 2, 3, 3),
}
DATATYPES = {"output": "FP32", "pooled": "FP16", "attention.0": "UINT8"}


def reply(names: list[str], **fields: Any) -> pb.ModelInferResponse:
    return pb.ModelInferResponse(
        model_name="a",
        model_version="1",
        outputs=[{"name": name, "datatype": DATATYPES[name], "shape": ARRAYS[name].shape} for name in names],
        raw_output_contents=[ARRAYS[name].tobytes() for name in names],
        **fields,
    )


def test_a_damaged_reply_gives_the_arrays_that_it_holds_or_an_error() -> None:
    seen = {"read": 0, "refused": 0}
    whole = reply([*ARRAYS], parameters={"queue_ns": pb.InferParameter(int64_param=5)})
    for data in mutations(whole.SerializeToString(), 10_000):
        try:
            arrays = read_message(data, BATCH, REQUESTED).arrays
        except ServerError:
            seen["refused"] += 1
            continue
        seen["read"] += 1
        expected = pb.ModelInferResponse.FromString(data)
        names = [output.name for output in expected.outputs]
        raw = dict(zip(names, expected.raw_output_contents, strict=True))
        assert arrays["output"].tobytes() == raw["output"]
        assert arrays["output"].shape[:2] == (1, 3)
        assert arrays["pooled"].tobytes() == raw["pooled"]
        weights = np.frombuffer(raw["attention.0"], np.uint8) / np.float32(255)
        np.testing.assert_array_equal(arrays["attention.0"].reshape(-1), weights)
    assert min(seen.values()) > 1000, seen


@pytest.mark.parametrize("final", [False, True])
def test_a_damaged_part_is_the_part_or_an_error(final: bool) -> None:
    part = reply(["output"])
    part.parameters["part"].int64_param = 0
    part.parameters["triton_final_response"].bool_param = final
    part.outputs[0].parameters["start"].string_param = "0,0,0"
    part.outputs[0].parameters["whole"].string_param = "1,3,8"
    seen = {"read": 0, "refused": 0}
    for data in mutations(pb.ModelStreamInferResponse(infer_response=part).SerializeToString(), 10_000):
        assembly = Assembly()
        try:
            assembly.add(data)
        except ServerError:
            seen["refused"] += 1
            continue
        seen["read"] += 1
        expected = pb.ModelStreamInferResponse.FromString(data).infer_response
        assert [bytes(content) for content in assembly.contents] in ([*expected.raw_output_contents], [])
    assert min(seen.values()) > 1000, seen
