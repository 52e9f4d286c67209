import numpy as np
import pytest

from polyhead_load.reply_head import NO_HEAD, Tensor, joined, read_head
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
    contents = list(message.raw_output_contents)
    after = pb.ModelInferResponse(raw_output_contents=contents)
    message.ClearField("raw_output_contents")
    # Servers may write a message in pieces, in any order.
    turned = after.SerializeToString() + message.SerializeToString()

    tensors = tuple(
        Tensor(output.name, "FP32", (1, 2, 300), len(content))
        for output, content in zip(message.outputs, contents, strict=True)
    )
    assert read_head(data, pb.ModelInferResponse) == (timings, tensors)
    assert read_head(turned, pb.ModelInferResponse) == (timings, tensors)


def test_timings_are_read_from_the_last_part_of_a_stream() -> None:
    part = pb.ModelStreamInferResponse(infer_response=reply(np.random.default_rng(2), TIMINGS))

    assert read_head(part.SerializeToString(), pb.ModelStreamInferResponse).timings == TIMINGS


def test_parts_of_an_output_are_put_together() -> None:
    parts: list[Tensor] = []
    for start in (0, 3):
        part = pb.ModelInferResponse(
            outputs=[{"name": "output", "datatype": "FP32", "shape": [1, 3, 8]}],
            raw_output_contents=[bytes(4 * 3 * 8)],
        )
        part.outputs[0].parameters["whole"].string_param = "1,6,8"
        part.outputs[0].parameters["start"].string_param = f"0,{start},0"
        parts += read_head(part.SerializeToString(), pb.ModelInferResponse).tensors

    assert joined(parts) == (Tensor("output", "FP32", (1, 6, 8), 4 * 6 * 8),)


def test_an_output_without_contents_is_one() -> None:
    message = pb.ModelInferResponse(outputs=[{"name": "output", "datatype": "FP32", "shape": [2]}])

    assert read_head(message.SerializeToString(), pb.ModelInferResponse).tensors == (
        Tensor("output", "FP32", (2,), -1),
    )


def test_what_is_no_reply_has_no_head() -> None:
    random = np.random.default_rng(3)
    data = reply(random, TIMINGS).SerializeToString()

    assert read_head(b"", pb.ModelInferResponse) == NO_HEAD
    assert read_head(b"", pb.ModelStreamInferResponse) == NO_HEAD
    for _ in range(200):
        assert set(read_head(random.bytes(30), pb.ModelInferResponse).timings) <= set(TIMINGS)
        read_head(data[: random.integers(len(data))], pb.ModelInferResponse)
