"""Errors and their status."""

import errno

import grpc
import pytest

from polyhead_proto.names import LIMIT
from polyhead_server.errors import (
    EngineError,
    InvalidRequestError,
    ReplyTooLargeError,
    RequestError,
    TooLargeError,
    error_reply,
    listed,
    quoted,
)


def test_every_request_error_has_a_status() -> None:
    def below(error: type[RequestError]) -> set[type[RequestError]]:
        return {error}.union(*map(below, error.__subclasses__()))

    assert all(hasattr(error, "status") for error in below(RequestError) - {RequestError})


def test_a_reply_that_may_be_had_in_parts_is_distinguished_from_what_is_too_large_anyhow() -> None:
    assert error_reply(ReplyTooLargeError("a"), "7").trailers == ((LIMIT, "max_reply_bytes"),)
    assert error_reply(TooLargeError("a"), "7").trailers == ()


@pytest.mark.parametrize("error", [EngineError("/secret/path failed"), KeyError("weights"), OSError(2, "x")])
def test_what_is_ours_is_internal_and_tells_nothing_but_the_request_id(error: Exception) -> None:
    reply = error_reply(error, "abc123")

    assert reply.code is grpc.StatusCode.INTERNAL
    assert "abc123" in reply.message
    assert str(error) not in reply.message


def test_a_long_message_is_cut() -> None:
    assert len(error_reply(InvalidRequestError("x" * 9000), "7").message) == 1500


def test_a_caller_s_text_is_quoted_in_ascii_and_cut() -> None:
    assert quoted("ä\n") == r"'\xe4\n'"
    assert len(quoted("a" * 1000)) < 100


def test_long_lists_are_cut() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed(range(100)).endswith("18, 19, … (100 in all)")


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (MemoryError(), "free memory"),
        (RuntimeError("can't start new thread"), "threads or open files"),
        (OSError(errno.EMFILE, "Too many open files"), "threads or open files"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "threads or open files"),
    ],
)
def test_what_has_run_out_is_said(error: Exception, what: str) -> None:
    reply = error_reply(error, "7")

    assert reply.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert what in reply.message
