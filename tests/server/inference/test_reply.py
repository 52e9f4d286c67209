"""Replies in pieces are what protobuf would have written."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.graphs import described

from polyhead_proto import messages as pb
from polyhead_proto.wire import read_reply
from polyhead_server.errors import TooLargeError
from polyhead_server.inference.outputs import OutputLayout, requested_outputs
from polyhead_server.inference.parameters import OutputParameters
from polyhead_server.inference.reply import (
    InferReply,
    ReplyLayout,
    check_size,
    detach,
    layout_of_reply,
    make_reply,
    memory_of,
    write_reply,
)
from polyhead_server.repository.manifest import GraphName

TIMINGS = {
    "parse_ns": 2**62,
    "tokenise_ns": 2**62,
    "queue_ns": 2**62,
    "compute_ns": 2**62,
    "serialise_ns": 2**62,
}


def laid_out(repository: Path, graph: GraphName, names: Sequence[str]) -> ReplyLayout:
    signature = described(repository, "tiny", graph)
    outputs = requested_outputs(
        [pb.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in names],
        OutputParameters(),
        signature,
    )
    return layout_of_reply(outputs, sizes={"B": 3, "T": 7}, signature=signature)


def arrays(outputs: Sequence[OutputLayout]) -> list[np.ndarray[Any, Any]]:
    chance = np.random.default_rng(0)
    return [chance.standard_normal(output.shape, np.float32) for output in outputs]


def test_the_size_is_known_before(repository: Path) -> None:
    layout = laid_out(repository, "attention", [])
    reply = make_reply(layout, dict(zip(layout.computed, arrays(layout.outputs), strict=True)), "", {}, 0)
    real = len(write_reply(replace(reply, timings=TIMINGS), streamed=True))

    needed = layout.size

    assert real <= needed <= real + 80
    check_size(layout, "", needed)
    check_size(layout, "id", needed + 2)
    with pytest.raises(
        TooLargeError, match=f"the reply needs {needed} bytes, the limit is {needed - 1}: ask for"
    ):
        check_size(layout, "", needed - 1)


def test_a_reply_that_is_kept_holds_its_own_memory_and_no_other(repository: Path) -> None:
    layout = laid_out(repository, "attention", ["output", "attention.0"])
    batch = np.ones((30, *layout.outputs[0].shape[1:]), np.float32)
    whole = np.ones(layout.outputs[1].shape, np.float32)
    of_graph = {"output": batch[6:9], "attention.0": whole}

    reply = make_reply(layout, of_graph, "id 7", {"parse_ns": 5}, 0)
    kept = detach(reply)

    for made, given_array in zip(reply.contents, of_graph.values(), strict=True):
        assert np.shares_memory(made, given_array)
    assert kept.contents[1] is whole
    assert not np.shares_memory(kept.contents[0], batch)
    np.testing.assert_array_equal(kept.contents[0], batch[6:9])
    assert (kept.request_id, kept.timings) == ("id 7", reply.timings)
    message = pb.ModelInferResponse.FromString(write_reply(reply))
    assert sorted(message.parameters) == ["parse_ns", "serialise_ns"]
    assert write_reply(kept) == write_reply(reply)


def test_memory_is_framed_where_it_lies() -> None:
    value = np.ones((2, 3), np.float32)

    memory = memory_of(value)

    assert np.shares_memory(np.frombuffer(memory, np.uint8), value)
    assert bytes(memory_of(value.T)) == value.T.tobytes()


@given(
    st.text(),
    st.dictionaries(st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=12), st.integers(0, 2**62)),
)
def test_any_id_and_all_timings_come_back(request_id: str, timings: dict[str, int]) -> None:
    signature: Any = None  # what is written does not depend on it
    reply = InferReply(
        signature=signature, header=b"", request_id=request_id, outputs=(), contents=(), timings=timings
    )

    read = pb.ModelInferResponse.FromString(write_reply(reply))

    assert read.id == request_id
    assert {name: parameter.int64_param for name, parameter in read.parameters.items()} == timings


@pytest.mark.parametrize("streamed", [False, True])
@given(st.text(max_size=20), st.lists(st.integers(0, 300), max_size=4))
def test_arrays_begin_at_multiples_of_8(streamed: bool, request_id: str, sizes: list[int]) -> None:
    contents: list[Any] = [np.full(size, 7, np.uint8) for size in sizes]
    contents.insert(1, b"abc")
    kind = pb.ModelStreamInferResponse if streamed else pb.ModelInferResponse
    signature: Any = None  # what is written does not depend on it
    reply = InferReply(
        signature=signature, header=b"", request_id=request_id, outputs=(), contents=contents, timings={}
    )

    data = write_reply(reply, streamed=streamed)

    message = kind.FromString(data)
    read = message.infer_response if isinstance(message, pb.ModelStreamInferResponse) else message
    assert (read.id, list(read.raw_output_contents)) == (request_id, [bytes(one) for one in contents])
    start = np.frombuffer(data, np.uint8).ctypes.data
    for content in read_reply(data, kind).contents:
        if len(content) and bytes(content) != b"abc":
            assert (np.frombuffer(content, np.uint8).ctypes.data - start) % 8 == 0
