"""Parsing large requests without copying them."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from polyhead_proto import messages as pb
from polyhead_server.errors import InvalidRequestError
from polyhead_server.service.wire import LARGE, parse_infer, write_varint

PADDING = pb.ModelInferRequest(raw_input_contents=[bytes(LARGE)]).SerializeToString()

requests = st.builds(
    lambda name, number, parameters, tensors, raw: pb.ModelInferRequest(
        model_name=name,
        id=number,
        parameters={key: pb.InferParameter(int64_param=value) for key, value in parameters.items()},
        inputs=[{"name": key, "shape": shape} for key, shape in tensors],
        raw_input_contents=raw,
    ),
    st.text(),
    st.text(),
    st.dictionaries(st.text(), st.integers(-(2**63), 2**63 - 1), max_size=3),
    st.lists(st.tuples(st.text(), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4)), max_size=3),
    st.lists(st.binary(max_size=300), max_size=4),
)


@given(requests)
def test_a_large_request_is_parsed_as_protobuf_parses_it(request: pb.ModelInferRequest) -> None:
    payload = request.SerializeToString()

    small, large = parse_infer(payload), parse_infer(payload + PADDING)

    assert list(small.raw) == list(request.raw_input_contents)
    assert [bytes(raw) for raw in large.raw] == [*request.raw_input_contents, bytes(LARGE)]
    rest = pb.ModelInferRequest.FromString(payload)
    del rest.raw_input_contents[:]
    assert large.message == rest


@given(st.binary(max_size=200))
def test_whatever_protobuf_refuses_is_refused_large_or_small(junk: bytes) -> None:
    for payload in (junk, PADDING + junk, junk + PADDING):
        try:
            expected = pb.ModelInferRequest.FromString(payload)
        except DecodeError:
            with pytest.raises(InvalidRequestError, match=r"must be a inference\.ModelInferRequest message"):
                parse_infer(payload)
        else:
            assert [bytes(raw) for raw in parse_infer(payload).raw] == list(expected.raw_input_contents)


def test_large_raw_contents_are_not_copied() -> None:
    payload = pb.ModelInferRequest(raw_input_contents=[bytes(LARGE), b"b"]).SerializeToString()

    raw = parse_infer(payload).raw

    assert all(isinstance(entry, memoryview) and entry.obj is payload for entry in raw)


def test_unknown_fields_are_passed_over() -> None:
    unknown = b"\xf9\x07" + bytes(8) + b"\xfd\x07" + bytes(4) + b"\xf8\x07\x01" + b"\xfb\x07\xfc\x07"

    assert bytes(parse_infer(PADDING + unknown).raw[0]) == bytes(LARGE)


@given(st.integers(0, 2**63))
def test_integers_are_written_as_protobuf_writes_them(value: int) -> None:
    payload = pb.StatisticDuration(count=value).SerializeToString()

    assert payload == (b"\x08" + write_varint(value) if value else b"")
