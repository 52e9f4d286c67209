"""Messages taken apart without copying: as protobuf reads them, or not at all."""

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from tests.mutations import mutations

from polyhead_proto import messages as pb
from polyhead_proto.wire import MOST_FIELDS, ParsedReply, read_reply, split, write_varint

REPLY = pb.ModelInferResponse(
    model_name="minilm.attention",
    model_version="12",
    id="séven",
    parameters={name: pb.InferParameter(int64_param=2**40) for name in ("queue_ns", "compute_ns")},
    outputs=[
        {"name": "output", "datatype": "FP32", "shape": [1, 3, 8]},
        {"name": "attention.0", "datatype": "FP16", "shape": [1, 2, 3, 3]},
        {"name": "lengths", "datatype": "INT32", "shape": [1]},
    ],
    raw_output_contents=[bytes(range(96)), bytes(range(100, 136)), b"\x03\x00\x00\x00"],
)
STREAMED = pb.ModelStreamInferResponse(error_message="", infer_response=REPLY)
RAW = 6
GROUP = b"\x3b\x3c"


def protobufs(data: bytes, kind: Any) -> ParsedReply:
    """The same, as protobuf reads it."""
    message = kind.FromString(data)
    error = ""
    if isinstance(message, pb.ModelStreamInferResponse):
        error, message = message.error_message, message.infer_response
    contents = [memoryview(content) for content in message.raw_output_contents]
    message.ClearField("raw_output_contents")
    return ParsedReply(message, contents, error)


@pytest.mark.parametrize("message", [REPLY, STREAMED], ids=["unary", "streamed"])
def test_a_damaged_reply_is_read_as_protobuf_reads_it_or_refused(
    message: pb.ModelInferResponse | pb.ModelStreamInferResponse,
) -> None:
    kind, ends = type(message), {"read": 0, "refused": 0, "stricter": 0}
    for data in mutations(message.SerializeToString(), 10_000):
        try:
            expected = protobufs(data, kind)
        except DecodeError:
            expected = None
        try:
            read = read_reply(data, kind)
        except DecodeError:
            ends["refused" if expected is None else "stricter"] += 1
        else:
            assert read == expected
            ends["read"] += 1
    # Stricter of groups, and of two replies in one message of a stream.
    assert min(ends["read"], ends["refused"]) > 1000, ends
    assert ends["stricter"] < 100, ends


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\xb2", id="a tag that does not end"),
        pytest.param(b"\x32", id="no length"),
        pytest.param(b"\x32\x80", id="a length that does not end"),
        pytest.param(b"\x32\x04abc", id="a length behind the end"),
        pytest.param(b"\x32\xff\xff\xff\xff\x0f", id="a length of 4 GiB"),
        pytest.param(b"\x32" + b"\x80" * 9 + b"\x00", id="a length of ten bytes"),
        pytest.param(b"\xb2\x80\x80\x80\x80\x00\x00", id="a tag of six bytes"),
        pytest.param(b"\xb2\x80\x80\x80\x10\x00", id="a tag of 33 bits"),
        pytest.param(b"\x02\x00", id="number 0"),
        pytest.param(b"\x50" + b"\x80" * 10 + b"\x00", id="an integer of eleven bytes"),
        pytest.param(b"\x51" + bytes(7), id="seven bytes of eight"),
        pytest.param(b"\x55" + bytes(3), id="three bytes of four"),
        pytest.param(b"\x36", id="wire type 6"),
        pytest.param(b"\x37", id="wire type 7"),
        pytest.param(b"\x3c", id="the end of no group"),
    ],
)
@pytest.mark.parametrize("before", [b"", b"\x32\x01a"], ids=["first", "after another"])
def test_what_protobuf_refuses_is_refused(before: bytes, data: bytes) -> None:
    with pytest.raises(DecodeError):
        pb.ModelInferResponse.FromString(before + data)
    with pytest.raises(DecodeError):
        read_reply(before + data, pb.ModelInferResponse)


def test_groups_are_refused() -> None:
    """No writer makes them; to find the end of one takes a walk of its own."""
    assert protobufs(GROUP, pb.ModelInferResponse)
    with pytest.raises(DecodeError, match="the field at byte 3 has wire type 3, must have 0, 1, 2 or 5"):
        split(b"\x32\x01a" + GROUP, RAW)


def test_long_forms_of_short_integers_are_read() -> None:
    data = b"\xb2\x80\x80\x80\x00" + b"\x81\x80\x80\x80\x00" + b"a"
    assert read_reply(data, pb.ModelInferResponse) == protobufs(data, pb.ModelInferResponse)


def test_fields_are_counted() -> None:
    rest, (contents,) = split(b"\x32\x00" * MOST_FIELDS, RAW)
    assert (rest, len(contents)) == (b"", MOST_FIELDS)
    with pytest.raises(DecodeError, match=f"at most {MOST_FIELDS} fields are read, which end at"):
        split(b"\x32\x00" * 2**20, RAW)


def test_contents_are_views_wherever_they_stand() -> None:
    data = STREAMED.SerializeToString()
    for reply in (data, data[: -REPLY.ByteSize()] + REPLY.SerializeToString()):
        read = read_reply(reply, pb.ModelStreamInferResponse)
        assert read.contents == list(REPLY.raw_output_contents)
        assert all(content.obj is reply and content.readonly for content in read.contents)

    fields = REPLY.SerializeToString()
    (raw_at,) = (at for at in range(len(fields)) if fields.startswith(b"\x32\x60" + bytes(range(96)), at))
    turned = read_reply(fields[raw_at:] + fields[:raw_at], pb.ModelInferResponse)
    assert turned == protobufs(fields, pb.ModelInferResponse)


def test_a_stream_may_say_what_went_wrong_instead() -> None:
    said = pb.ModelStreamInferResponse(error_message="no").SerializeToString()

    assert read_reply(said, pb.ModelStreamInferResponse) == (pb.ModelInferResponse(), [], "no")
    with pytest.raises(DecodeError, match="must hold one reply, had 2"):
        read_reply(STREAMED.SerializeToString() * 2, pb.ModelStreamInferResponse)


@given(st.integers(0, 2**64 - 1))
def test_integers_are_written_as_protobuf_writes_them(value: int) -> None:
    payload = pb.StatisticDuration(count=value).SerializeToString()

    assert payload == (b"\x08" + write_varint(value) if value else b"")
