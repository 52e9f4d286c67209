"""What the server tries out when it starts: also run with the oldest grpcio that it takes."""

import asyncio
import logging

import pytest
from tests.server.transport.conftest import accept_threads

from polyhead_server.errors import StartError
from polyhead_server.transport.accepted_call import AcceptedCall
from polyhead_server.transport.grpcio_check import TESTED_GRPCIO, check_grpcio
from polyhead_server.transport.unary_call import UnaryCall


def test_it_works_with_this_grpcio() -> None:
    for _ in range(20):
        asyncio.run(check_grpcio())
    assert not accept_threads()


def test_an_answer_that_is_not_the_expected_one_says_which_versions_were_tested(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(AcceptedCall, "invocation_metadata", lambda _call: ())
    caplog.set_level(logging.CRITICAL)

    with pytest.raises(StartError, match="INVALID_ARGUMENT") as caught:
        asyncio.run(check_grpcio())

    oldest, newest = TESTED_GRPCIO
    assert f"pip install 'grpcio>={oldest},<={newest}'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_calls_that_are_never_answered_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UnaryCall, "_start", lambda _call: None)
    monkeypatch.setattr("polyhead_server.transport.grpcio_check._CHECK_SECONDS", 0.2)

    with pytest.raises(StartError, match=r"took longer than 0.2 s"):
        asyncio.run(check_grpcio())
