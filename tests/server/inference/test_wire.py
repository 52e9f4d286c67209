"""Taking requests apart without copying them."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from polyhead_proto import messages as pb
from polyhead_server.errors import InvalidRequestError
from polyhead_server.inference.wire import LARGE, make_request, parse, peek, split_infer

PADDING = pb.ModelInferRequest(raw_input_contents=[bytes(LARGE)]).SerializeToString()


def _ordered(request: pb.ModelInferRequest) -> bytes:
    """The request's bytes, with its maps always in the same order."""
    return request.SerializeToString(deterministic=True)


requests = st.builds(
    lambda name, version, number, parameters, tensors, raw: pb.ModelInferRequest(
        model_name=name,
        model_version=version,
        id=number,
        parameters={key: pb.InferParameter(int64_param=value) for key, value in parameters.items()},
        inputs=[{"name": key, "shape": shape} for key, shape in tensors],
        raw_input_contents=raw,
    ),
    st.text(),
    st.text(),
    st.text(),
    st.dictionaries(st.text(), st.integers(-(2**63), 2**63 - 1), max_size=3),
    st.lists(st.tuples(st.text(), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4)), max_size=3),
    st.lists(st.binary(max_size=300), max_size=4),
)


@given(requests)
def test_a_request_is_read_as_protobuf_reads_it(request: pb.ModelInferRequest) -> None:
    payload = request.SerializeToString()

    parts = split_infer(payload)

    assert [bytes(raw) for raw in parts.contents] == list(request.raw_input_contents)
    assert parts.request_id == request.id
    rest = pb.ModelInferRequest.FromString(payload)
    rest.ClearField("id")
    rest.ClearField("raw_input_contents")
    assert parse(pb.ModelInferRequest, parts.header) == rest
    assert peek(parts)[1:] == (request.model_name, request.model_version)


@given(requests)
def test_a_request_that_comes_in_another_form_is_the_same(request: pb.ModelInferRequest) -> None:
    expected, raw = split_infer(_ordered(request)), list(request.raw_input_contents)
    rest = pb.ModelInferRequest.FromString(_ordered(request))
    del rest.raw_input_contents[:]

    made = make_request(rest, raw)

    assert (made.header, made.request_id, made.contents) == (
        expected.header,
        expected.request_id,
        expected.contents,
    )
    assert made.size == len(made.header) + sum(map(len, raw))
    views = [memoryview(one) for one in raw]
    assert make_request(rest, [b"packed", *views], kept=10**6).size == 10**6 + len(b"packed")


@given(requests, st.text(), st.lists(st.binary(max_size=300), max_size=4))
def test_the_header_is_the_same_whatever_the_data(
    request: pb.ModelInferRequest, request_id: str, raw: list[bytes]
) -> None:
    other = pb.ModelInferRequest(id=request_id, raw_input_contents=raw)
    other.MergeFrom(pb.ModelInferRequest.FromString(request.SerializeToString()))
    other.id = request_id
    del other.raw_input_contents[:]
    other.raw_input_contents.extend(raw)

    assert split_infer(_ordered(other)).header == split_infer(_ordered(request)).header


def test_an_id_is_bounded_in_bytes() -> None:
    assert split_infer(pb.ModelInferRequest(id="é" * 512).SerializeToString()).request_id == "é" * 512

    for text, size in (("i" * 1025, 1025), ("é" * 513, 1026), ("i" * 1_000_000, 1_000_000)):
        with pytest.raises(InvalidRequestError, match=f"id must have at most 1024 bytes, had {size}"):
            split_infer(pb.ModelInferRequest(id=text).SerializeToString())
        with pytest.raises(InvalidRequestError, match=f"id must have at most 1024 bytes, had {size}"):
            make_request(pb.ModelInferRequest(id=text), [])


def refusal_of(payload: bytes) -> str:
    """Why a message is refused; empty if it is not."""
    try:
        split_infer(payload)
    except InvalidRequestError as error:
        return str(error.__cause__)
    return ""


@given(st.binary(max_size=200))
def test_whatever_protobuf_refuses_is_refused(junk: bytes) -> None:
    for payload in (junk, PADDING + junk, junk + PADDING):
        try:
            expected = pb.ModelInferRequest.FromString(payload)
        except DecodeError:
            with pytest.raises(InvalidRequestError, match=r"must be a inference\.ModelInferRequest message"):
                parse(pb.ModelInferRequest, split_infer(payload).header)
        else:
            if why := refusal_of(payload):  # proto3 has no groups
                assert "wire type 3" in why
                continue
            parts = split_infer(payload)
            assert [bytes(raw) for raw in parts.contents] == list(expected.raw_input_contents)
            assert parts.request_id == expected.id
            assert peek(parts)[1:] == (expected.model_name, expected.model_version)


@pytest.mark.parametrize("junk", [b"\x38\x01", b"\x3d\x00\x00\x00\x00", b"\x18\x07"])
def test_a_field_of_another_kind_is_passed_over(junk: bytes) -> None:
    """Number 7 or 3, but not bytes: unknown fields, which protobuf keeps and no program reads."""
    parts = split_infer(PADDING + junk)

    assert [len(raw) for raw in parts.contents] == [LARGE]
    assert parts.request_id == ""


@pytest.mark.parametrize(
    "field",
    [
        pytest.param(b"\x3a\x00", id="empty raw contents"),
        pytest.param(b"\x32\x00", id="empty requested outputs"),
        pytest.param(b"\xf8\x07\x01", id="unknown integers"),
    ],
)
def test_a_request_of_many_fields_is_refused_before_they_are_kept(field: bytes) -> None:
    split_infer(field * 4096)
    with pytest.raises(InvalidRequestError, match=r"of at most 4096 fields, .* was \d+ bytes"):
        split_infer(field * 1_000_000)


def test_large_raw_contents_are_not_copied() -> None:
    payload = pb.ModelInferRequest(raw_input_contents=[bytes(LARGE), b"b"]).SerializeToString()

    raw = split_infer(payload).contents

    assert all(isinstance(entry, memoryview) and entry.obj is payload for entry in raw)


def test_unknown_fields_are_passed_over() -> None:
    unknown = b"\xf9\x07" + bytes(8) + b"\xfd\x07" + bytes(4) + b"\xf8\x07\x01"

    assert bytes(split_infer(PADDING + unknown).contents[0]) == bytes(LARGE)
