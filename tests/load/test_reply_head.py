import numpy as np
import pytest

from polyhead_load.reply_head import read_timings
from polyhead_proto import messages as pb

TIMINGS = {"parse_ns": 1, "tokenise_ns": 0, "queue_ns": 300, "compute_ns": 2**40, "serialise_ns": 70_000}


def reply(random: np.random.Generator, timings: dict[str, int]) -> pb.ModelInferResponse:
    message = pb.ModelInferResponse(
        model_name="minilm",
        model_version="12",
        id="seven",
        outputs=[
            {"name": f"attention.{layer}", "datatype": "FP32", "shape": [1, 2, 300]} for layer in range(40)
        ],
        raw_output_contents=[random.bytes(int(size)) for size in random.integers(0, 3000, 40)],
        parameters={"another": pb.InferParameter(string_param="x")},
    )
    for name, value in timings.items():
        message.parameters[name].int64_param = value
    return message


@pytest.mark.parametrize("timings", [{}, {"compute_ns": 5}, TIMINGS])
def test_timings_are_read_wherever_they_stand(timings: dict[str, int]) -> None:
    message = reply(np.random.default_rng(1), timings)
    data = message.SerializeToString()
    tensors = pb.ModelInferResponse(raw_output_contents=message.raw_output_contents)
    message.ClearField("raw_output_contents")
    # Servers may write a message in pieces, in any order.
    turned = tensors.SerializeToString() + message.SerializeToString()

    assert read_timings(data, pb.ModelInferResponse) == timings
    assert read_timings(turned, pb.ModelInferResponse) == timings


def test_timings_are_read_from_the_last_part_of_a_stream() -> None:
    part = pb.ModelStreamInferResponse(infer_response=reply(np.random.default_rng(2), TIMINGS))

    assert read_timings(part.SerializeToString(), pb.ModelStreamInferResponse) == TIMINGS


def test_what_is_no_reply_has_no_timings() -> None:
    random = np.random.default_rng(3)
    data = reply(random, TIMINGS).SerializeToString()

    assert read_timings(b"", pb.ModelInferResponse) == {}
    assert read_timings(b"", pb.ModelStreamInferResponse) == {}
    for _ in range(200):
        assert set(read_timings(random.bytes(30), pb.ModelInferResponse)) <= set(TIMINGS)
        read_timings(data[: random.integers(len(data))], pb.ModelInferResponse)
