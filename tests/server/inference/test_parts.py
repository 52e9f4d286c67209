"""Cutting outputs into parts that fit, and writing them one after the other."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyhead_proto import messages as pb
from polyhead_proto.datatypes import DTYPES
from polyhead_server.errors import TooLargeError
from polyhead_server.inference.outputs import Planned, Wanted
from polyhead_server.inference.parameters import Selection
from polyhead_server.inference.parts import Parts, PartWriter, plan_parts, write_part_head
from polyhead_server.repository import read_manifest
from polyhead_server.repository.signature import Signature, TensorSpec, signature_of

FIELDS = 1024 + len("tiny.attention")


def planned(name: str, shape: tuple[int, ...], datatype: str = "FP32", **selected: Any) -> Planned:
    queries = selected.pop("queries", None)
    item = 5 if datatype == "BYTES" else DTYPES[datatype].itemsize
    return Planned(
        computed_bytes=0,
        wanted=Wanted(
            spec=TensorSpec(name=name, datatype="FP32", axes=tuple("BHTT"[: len(shape)])),
            heads=selected.pop("heads", None),
            selection=Selection(),
            datatype=datatype,
        ),
        shape=shape,
        queries=queries,
        bytes=math.prod(shape) * item,
    )


@pytest.fixture(scope="module")
def signature(repository: Path) -> Signature:
    return signature_of(read_manifest(repository / "tiny" / "1", family="tiny", version=1), "attention")


def plan(signature: Signature, *outputs: Planned, room: int, total: int = 2**40) -> Parts:
    return plan_parts(
        outputs, signature=signature, request_id="", part_limit=room + FIELDS, total_limit=total
    )


def test_an_output_that_fits_is_one_part(signature: Signature) -> None:
    parts = plan(signature, planned("output", (2, 3, 4)), planned("attention.0", (2, 3, 5, 5)), room=600)

    assert parts.count == 2
    assert [(part.output.wanted.spec.name, part.shape, part.is_whole, part.last) for part in parts] == [
        ("output", (2, 3, 4), True, True),
        ("attention.0", (2, 3, 5, 5), True, True),
    ]


@pytest.mark.parametrize(
    ("room", "shapes"),
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
    signature: Signature, room: int, shapes: list[tuple[int, ...]]
) -> None:
    parts = plan(signature, planned("attention.0", (2, 3, 5, 5)), room=room)

    assert [part.shape for part in parts] == shapes
    assert parts.count == len(shapes)
    assert [part.last for part in parts] == [False] * (len(shapes) - 1) + [True]


@settings(deadline=None, derandomize=True)
@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple),
    room=st.integers(4, 600),
    datatype=st.sampled_from(["FP32", "FP16", "UINT8"]),
)
def test_parts_put_together_are_the_output(
    signature: Signature, shape: tuple[int, ...], room: int, datatype: str
) -> None:
    whole = np.random.default_rng(1).random(shape, np.float32)
    parts = plan(signature, planned("attention.0", shape, datatype), room=room)
    writer = PartWriter({"attention.0": whole})
    contents: list[bytes] = []
    for index, part in enumerate(parts):
        head = pb.ModelInferResponse.FromString(
            write_part_head(part, signature, index=index, count=parts.count)
        )
        message = pb.ModelInferResponse.FromString(b"".join(writer.write(part)))
        (content,) = message.raw_output_contents
        (output,) = head.outputs
        assert len(content) <= room
        assert len(content) == math.prod(output.shape) * DTYPES[datatype].itemsize
        assert head.parameters["part"].int64_param == index
        assert head.parameters["parts"].int64_param == parts.count
        assert head.parameters["triton_final_response"].bool_param == (index == parts.count - 1)
        if not part.is_whole:
            start = json.loads(f"[{output.parameters['start'].string_param}]")
            assert np.ravel_multi_index(start, shape) == sum(map(len, contents)) // DTYPES[datatype].itemsize
            assert json.loads(f"[{output.parameters['whole'].string_param}]") == list(shape)
        contents.append(content)

    together = np.frombuffer(b"".join(contents), DTYPES[datatype]).reshape(shape)
    expected = np.rint(whole * 255) if datatype == "UINT8" else whole.astype(DTYPES[datatype])
    np.testing.assert_array_equal(together, expected)


def test_heads_and_queries_are_chosen_before_the_cut(signature: Signature) -> None:
    whole = np.random.default_rng(2).random((2, 4, 6, 6), np.float32)
    output = planned("attention.0", (2, 2, 3, 6), heads=[3, 1], queries=range(1, 4))
    parts = plan(signature, output, room=100)
    writer = PartWriter({"attention.0": whole})

    contents = [
        pb.ModelInferResponse.FromString(b"".join(writer.write(part))).raw_output_contents[0]
        for part in parts
    ]

    together = np.frombuffer(b"".join(contents), np.float32).reshape(2, 2, 3, 6)
    np.testing.assert_array_equal(together, whole[:, [3, 1], 1:4])


def test_an_output_is_let_go_with_its_last_part(signature: Signature) -> None:
    import weakref

    first = np.zeros((4, 4), np.float32)
    seen = weakref.ref(first)
    writer = PartWriter({"a": first, "b": np.zeros((4, 4), np.float32)})
    del first
    parts = iter(plan(signature, planned("a", (4, 4)), planned("b", (4, 4)), room=32))

    writer.write(next(parts))
    assert seen() is not None
    writer.write(next(parts))
    assert seen() is None


@pytest.mark.parametrize(
    ("outputs", "limits", "message"),
    [
        ([planned("tokens", (2, 9), "BYTES")], {"room": 89}, "tokens needs 90 bytes in one part"),
        ([planned("output", (2, 9))], {"room": 3}, "output needs 72 bytes in one part, the limit is 3"),
        (
            [planned("output", (100, 100))],
            {"room": 400, "total": 40_000 + 100 * FIELDS - 1},
            r"in all its parts, the limit is \d+: ask for fewer outputs",
        ),
    ],
)
def test_what_cannot_be_cut_to_size_is_refused(
    signature: Signature, outputs: list[Planned], limits: dict[str, int], message: str
) -> None:
    with pytest.raises(TooLargeError, match=message):
        plan(signature, *outputs, **limits)


def test_a_parts_fields_take_less_than_is_reserved(signature: Signature) -> None:
    largest = 2**15
    output = planned("attention.1000000", (largest,) * 4)
    part = next(iter(Parts(outputs=[output], room=4, count=2**62)))

    head = write_part_head(part, signature, index=2**62, count=2**62)

    assert len(head) + 200 < 1024
