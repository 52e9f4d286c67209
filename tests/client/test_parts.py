"""Parts put together; and what is no part, or not the next one."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from polyhead_client import ServerError
from polyhead_client.parts import Assembly
from polyhead_proto import messages as pb

WHOLE = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)


def part(
    index: int,
    array: Any,
    *,
    name: str = "output",
    start: str | None = None,
    whole: str | None = None,
    final: bool = False,
    shape: Sequence[int] | None = None,
    datatype: str = "FP32",
) -> Any:
    chosen = {"start": start, "whole": whole}
    return pb.ModelStreamInferResponse(
        infer_response=pb.ModelInferResponse(
            model_name="a",
            model_version="3",
            outputs=[
                {
                    "name": name,
                    "datatype": datatype,
                    "shape": array.shape if shape is None else shape,
                    "parameters": {
                        key: pb.InferParameter(string_param=value)
                        for key, value in chosen.items()
                        if value is not None
                    },
                }
            ],
            raw_output_contents=[array.tobytes()],
            parameters={
                "part": pb.InferParameter(int64_param=index),
                "triton_final_response": pb.InferParameter(bool_param=final),
                "queue_ns": pb.InferParameter(int64_param=index),
            },
        )
    )


def add(assembly: Assembly, message: Any) -> bool:
    return assembly.add(message.SerializeToString())


FIRST = part(0, WHOLE[:1], start="0,0,0", whole="2,3,4")


@pytest.mark.parametrize(
    "messages",
    [
        [part(1, WHOLE)],
        [part(0, WHOLE), part(0, WHOLE)],
        [pb.ModelStreamInferResponse()],
        [part(0, WHOLE[:1], start="0,0,0", whole="2,3,4", final=True)],
        [FIRST, part(1, WHOLE, name="other")],
        [FIRST, part(1, WHOLE[1:], name="other", start="1,0,0", whole="2,3,4")],
        [FIRST, part(1, WHOLE[1:], start="1,0,0", whole="3,3,4")],
        [FIRST, part(1, WHOLE[1:], start="1,0,0", whole="2,3,4", datatype="INT32")],
        [FIRST, part(1, WHOLE[1:], start="0,0,0", whole="2,3,4")],
        [FIRST, part(1, WHOLE[1:], start="1,1,0", whole="2,3,4")],
        [FIRST, part(1, WHOLE[1:], start="1,0", whole="2,3,4")],
        [FIRST, part(1, WHOLE[1:], start="2,0,0", whole="2,3,4")],
        [FIRST, part(1, WHOLE, start="1,0,0", whole="2,3,4")],
        [FIRST, part(1, WHOLE[1:], start="1,0,0", whole="2,3,4", shape=[1, 3, 5])],
        [FIRST, part(1, WHOLE[:0], start="1,0,0", whole="2,3,4")],
        [part(0, WHOLE, start="0,0,0", whole="2,3,4", datatype="BYTES")],
        [part(0, WHOLE, start="0,0,0", whole="2,3,x")],
        [part(0, WHOLE, start="-1,0,0", whole="2,3,4")],
        [part(0, WHOLE, start="0,0,0", whole="999999999999,999999999999,4")],
    ],
)
def test_what_does_not_fit_together_is_refused(messages: list[Any]) -> None:
    assembly = Assembly()

    for message in messages[:-1]:
        add(assembly, message)
    with pytest.raises(ServerError):
        add(assembly, messages[-1])


def test_an_error_message_is_an_error() -> None:
    with pytest.raises(ServerError, match="INTERNAL: it broke"):
        add(Assembly(), pb.ModelStreamInferResponse(error_message="INTERNAL: it broke"))
