"""Replies read without their contents, and compared with the first."""

import numpy as np
import pytest

from polyhead_load.replies import NO_HEADER, ReplyCheck, ReplyTensor, join_parts, read_header
from polyhead_proto import messages as pb

TOKEN_AXES = {"output": [1], "attention.0": [2, 3], "tokens": [1]}

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
        ReplyTensor(output.name, "FP32", (1, 2, 300), len(content))
        for output, content in zip(message.outputs, contents, strict=True)
    )
    assert read_header(data, pb.ModelInferResponse) == (timings, tensors)
    assert read_header(turned, pb.ModelInferResponse) == (timings, tensors)


def test_timings_are_read_from_the_last_part_of_a_stream() -> None:
    part = pb.ModelStreamInferResponse(infer_response=reply(np.random.default_rng(2), TIMINGS))

    assert read_header(part.SerializeToString(), pb.ModelStreamInferResponse).timings == TIMINGS


def test_parts_of_an_output_are_put_together() -> None:
    parts: list[ReplyTensor] = []
    for start in (0, 3):
        part = pb.ModelInferResponse(
            outputs=[{"name": "output", "datatype": "FP32", "shape": [1, 3, 8]}],
            raw_output_contents=[bytes(4 * 3 * 8)],
        )
        part.outputs[0].parameters["whole"].string_param = "1,6,8"
        part.outputs[0].parameters["start"].string_param = f"0,{start},0"
        parts += read_header(part.SerializeToString(), pb.ModelInferResponse).tensors

    assert join_parts(parts) == (ReplyTensor("output", "FP32", (1, 6, 8), 4 * 6 * 8),)


def test_what_is_no_reply_has_no_head() -> None:
    random = np.random.default_rng(3)
    data = reply(random, TIMINGS).SerializeToString()

    assert read_header(b"", pb.ModelInferResponse) == NO_HEADER
    assert read_header(b"", pb.ModelStreamInferResponse) == NO_HEADER
    for _ in range(200):
        assert set(read_header(random.bytes(30), pb.ModelInferResponse).timings) <= set(TIMINGS)
        read_header(data[: random.integers(len(data))], pb.ModelInferResponse)


def outputs(tokens: int, *, width: int = 8, attention: bool = False) -> list[ReplyTensor]:
    found = [ReplyTensor("output", "FP32", (1, tokens, width), 4 * tokens * width)]
    if attention:
        found.append(ReplyTensor("attention.0", "FP16", (1, 2, tokens, tokens), 2 * 2 * tokens * tokens))
    return found


def text(tokens: int, size: int) -> list[ReplyTensor]:
    return [*outputs(tokens), ReplyTensor("tokens", "BYTES", (1, tokens), size)]


@pytest.mark.parametrize("attention", [False, True])
def test_replies_differ_in_t_alone(attention: bool) -> None:
    check = ReplyCheck(TOKEN_AXES)
    pooled = ReplyTensor("pooled", "FP32", (1, 8), 32)

    for number, tokens in enumerate([5, 5, 9, 1, 8]):
        for _ in range(2):
            assert check.fault(number, [*outputs(tokens, attention=attention), pooled]) is None
    # The same request has the same T.
    assert check.fault(4, [*outputs(9, attention=attention), pooled]) is not None
    wide = ReplyTensor("pooled", "FP32", (1, 9), 36)
    assert check.fault(5, [*outputs(9, attention=attention), wide]) is not None


def test_the_same_text_has_the_same_tokens() -> None:
    check = ReplyCheck(TOKEN_AXES)

    for number, (tokens, size) in enumerate([(5, 40), (7, 60), (7, 61)]):
        assert check.fault(number, text(tokens, size)) is None
    assert check.fault(0, text(5, 40)) is None
    assert check.fault(0, text(5, 41)) is not None


@pytest.mark.parametrize(
    ("tensors", "fault"),
    [
        ([], "must have outputs, has none"),
        (
            outputs(5, width=9),
            r"must be like output FP32 \[1, 5, 8\] \(160 bytes\), was output FP32 \[1, 5, 9\]",
        ),
        (outputs(5, attention=True), "must be like"),
        ([ReplyTensor("outcome", "FP32", (1, 5, 8), 160)], "must be like"),
        ([ReplyTensor("output", "FP16", (1, 5, 8), 80)], "must be like"),
        ([ReplyTensor("output", "FP32", (1, 5, 8), 159)], "does not fit its shape"),
        (
            [ReplyTensor("output", "FP32", (1, 5, 8), None)],
            r"output FP32 \[1, 5, 8\] without contents does not fit",
        ),
        ([ReplyTensor("output", "FP33", (1, 5, 8), 160)], "unknown datatype 'FP33'"),
        ([ReplyTensor("output", "FP32", (1, -5, -8), 160)], r"must have a shape, was \[1, -5, -8\]"),
        ([ReplyTensor("output", "BYTES", (1, 5), 19)], "does not fit its shape"),
    ],
)
def test_anything_else_is_a_fault(tensors: list[ReplyTensor], fault: str) -> None:
    check = ReplyCheck(TOKEN_AXES)
    assert check.fault(0, outputs(5)) is None

    with pytest.raises(ValueError, match=fault):
        raise ValueError(check.fault(1, tensors))
    assert check.fault(1, outputs(5)) is None
