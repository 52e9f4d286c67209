"""Cutting outputs into parts that fit, and writing them one after the other."""

import dataclasses
import json
import math
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.graphs import described

from polyhead_proto import messages as pb
from polyhead_proto.datatypes import DTYPES
from polyhead_proto.tensors import TensorSpec
from polyhead_server.errors import TooLargeError
from polyhead_server.inference.outputs import OutputLayout
from polyhead_server.inference.parts import PART_BYTES, Part, Parts, make_part, parts_of
from polyhead_server.inference.reply import write_reply
from polyhead_server.repository.signature import Signature

FIELDS = 1024 + len("tiny.attention")
TIMINGS = {"parse_ns": 1, "queue_ns": 1, "compute_ns": 1}


def laid_out(
    name: str, shape: tuple[int, ...], datatype: str = "FP32", selection: Any = None
) -> OutputLayout:
    item = 5 if datatype == "BYTES" else DTYPES[datatype].itemsize
    return OutputLayout(
        spec=TensorSpec(name=name, datatype="FP32", axes=tuple("BHTT"[: len(shape)])),
        datatype=datatype,
        selection=selection or {},
        shape=shape,
        bytes=math.prod(shape) * item,
        computed_bytes=0,
    )


@pytest.fixture(scope="module")
def signature(repository: Path) -> Signature:
    return described(repository, "tiny", "attention")


def divided(signature: Signature, *outputs: OutputLayout, part_bytes: int, total: int = 2**40) -> Parts:
    return parts_of(
        outputs, signature=signature, request_id="", part_limit=part_bytes + FIELDS, total_limit=total
    )


def written(parts: Parts, arrays: dict[str, Any]) -> Callable[[Part], Any]:
    """A function that makes and writes one part after the other, and reads it as protobuf does."""

    def write(part: Part) -> Any:
        message = write_reply(make_part(parts, part, arrays, TIMINGS, 0), streamed=True)
        return pb.ModelStreamInferResponse.FromString(message).infer_response

    return write


def test_an_output_that_fits_is_one_part(signature: Signature) -> None:
    parts = divided(
        signature, laid_out("output", (2, 3, 4)), laid_out("attention.0", (2, 3, 5, 5)), part_bytes=600
    )

    assert parts.count == 2
    assert [(part.output.spec.name, part.shape, part.is_whole, part.last) for part in parts] == [
        ("output", (2, 3, 4), True, True),
        ("attention.0", (2, 3, 5, 5), True, True),
    ]


@pytest.mark.parametrize(
    ("part_bytes", "shapes"),
    [
        (2 * 3 * 25 * 4, [(2, 3, 5, 5)]),
        (3 * 25 * 4, [(1, 3, 5, 5)] * 2),
        (3 * 25 * 4 - 1, [(1, 2, 5, 5), (1, 1, 5, 5)] * 2),
        (25 * 4 - 1, [(1, 1, 4, 5), (1, 1, 1, 5)] * 6),
        (5 * 4 - 1, [(1, 1, 1, 4), (1, 1, 1, 1)] * 30),
        (4, [(1, 1, 1, 1)] * 150),
    ],
)
def test_an_output_that_does_not_is_cut_along_the_first_axis_that_lets_it(
    signature: Signature, part_bytes: int, shapes: list[tuple[int, ...]]
) -> None:
    parts = divided(signature, laid_out("attention.0", (2, 3, 5, 5)), part_bytes=part_bytes)

    assert [part.shape for part in parts] == shapes
    assert parts.count == len(shapes)
    assert [part.last for part in parts] == [False] * (len(shapes) - 1) + [True]


@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple),
    part_bytes=st.integers(4, 600),
    datatype=st.sampled_from(["FP32", "FP16", "UINT8"]),
)
def test_parts_put_together_are_the_output(
    signature: Signature, shape: tuple[int, ...], part_bytes: int, datatype: str
) -> None:
    whole = np.random.default_rng(1).random(shape, np.float32)
    parts = divided(signature, laid_out("attention.0", shape, datatype), part_bytes=part_bytes)
    write = written(parts, {"attention.0": whole})
    contents: list[bytes] = []
    for index, part in enumerate(parts):
        message = write(part)
        (content,) = message.raw_output_contents
        (output,) = message.outputs
        assert len(content) <= part_bytes
        assert len(content) == math.prod(output.shape) * DTYPES[datatype].itemsize
        assert message.parameters["part"].int64_param == index
        assert message.parameters["parts"].int64_param == parts.count
        assert message.parameters["triton_final_response"].bool_param == (index == parts.count - 1)
        if not part.is_whole:
            start = json.loads(f"[{output.parameters['start'].string_param}]")
            assert np.ravel_multi_index(start, shape) == sum(map(len, contents)) // DTYPES[datatype].itemsize
            assert json.loads(f"[{output.parameters['whole'].string_param}]") == list(shape)
        contents.append(content)
        assert ("parse_ns" in message.parameters) == (index == parts.count - 1)

    together = np.frombuffer(b"".join(contents), DTYPES[datatype]).reshape(shape)
    expected = np.rint(whole * 255) if datatype == "UINT8" else whole.astype(DTYPES[datatype])
    np.testing.assert_array_equal(together, expected)


def test_heads_and_queries_are_chosen_before_the_cut(signature: Signature) -> None:
    whole = np.random.default_rng(2).random((2, 4, 6, 6), np.float32)
    output = laid_out("attention.0", (2, 2, 3, 6), selection={1: [3, 1], 2: range(1, 4)})
    parts = divided(signature, output, part_bytes=100)
    write = written(parts, {"attention.0": whole})

    contents = [write(part).raw_output_contents[0] for part in parts]

    together = np.frombuffer(b"".join(contents), np.float32).reshape(2, 2, 3, 6)
    np.testing.assert_array_equal(together, whole[:, [3, 1], 1:4])


def test_an_output_is_let_go_with_its_last_part(signature: Signature) -> None:
    first = np.zeros((4, 4), np.float32)
    seen = weakref.ref(first)
    parts = divided(signature, laid_out("a", (4, 4)), laid_out("b", (4, 4)), part_bytes=32)
    write = written(parts, {"a": first, "b": np.zeros((4, 4), np.float32)})
    del first
    one, other, *_ = parts

    write(one)
    assert seen() is not None
    write(other)
    assert seen() is None


def test_a_slow_reader_keeps_its_own_outputs_and_not_the_batch(signature: Signature) -> None:
    batch = np.zeros((16, 64, 32), np.float32)
    watched = weakref.ref(batch)
    whole = np.ones((2, 2), np.float32)
    arrays: dict[str, Any] = {"first": np.ones((1, 2), np.float32), "tokens": b"cat", "whole": whole}
    arrays |= {"output": batch[3:4], "attention.0": batch[3, :8, :4]}
    del batch
    parts = divided(signature, laid_out("first", (1, 2)), laid_out("output", (1, 64, 32)), part_bytes=2**20)

    written(parts, arrays)(next(iter(parts)))

    assert watched() is None
    assert arrays.keys() == {"output", "attention.0", "whole", "tokens"}
    assert arrays["whole"] is whole
    assert arrays["tokens"] == b"cat"
    assert arrays["output"].shape == (1, 64, 32)


@pytest.mark.parametrize(
    ("outputs", "limits", "message"),
    [
        ([laid_out("tokens", (2, 9), "BYTES")], {"part_bytes": 89}, "tokens needs 90 bytes in one part"),
        (
            [laid_out("output", (2, 9))],
            {"part_bytes": 3},
            "output needs 72 bytes in one part, the limit is 3",
        ),
        (
            [laid_out("output", (100, 100))],
            {"part_bytes": 400, "total": 40_000 + 100 * FIELDS - 1},
            r"in all its parts, the limit is \d+: ask for fewer outputs",
        ),
    ],
)
def test_what_cannot_be_cut_to_size_is_refused(
    signature: Signature, outputs: list[OutputLayout], limits: dict[str, int], message: str
) -> None:
    with pytest.raises(TooLargeError, match=message):
        divided(signature, *outputs, **limits)


def test_parts_are_small_where_messages_may_be_large(signature: Signature) -> None:
    text = laid_out("tokens", (PART_BYTES, 2), "BYTES")
    fits, larger = laid_out("output", (1, PART_BYTES // 4, 1)), laid_out("attention.0", (1, 3, 1024, 1024))

    parts = list(divided(signature, text, fits, larger, part_bytes=2**26))

    assert [part.shape for part in parts if part.output is larger] == [
        (1, 1, 768, 1024),
        (1, 1, 256, 1024),
    ] * 3
    assert [part.is_whole for part in parts if part.output is not larger] == [True, True]


def test_a_parts_fields_take_less_than_is_reserved(signature: Signature) -> None:
    largest = 2**15
    output = laid_out("attention.1000000", (largest,) * 4)
    parts = Parts(signature=signature, request_id="", outputs=[output], part_bytes=4, count=2**62)
    part = dataclasses.replace(next(iter(parts)), number=2**62)

    message = written(parts, {output.spec.name: np.zeros((1, 1, 1, 1), np.float32)})(part)

    assert message.ByteSize() + 200 < 1024
