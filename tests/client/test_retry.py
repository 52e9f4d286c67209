"""Patient clients ride out a server that is away, loading or full."""

import grpc
import pytest
from tests.client.conftest import Connect, FakeServer

from polyhead_client import Cancelled, Client, PolyheadError, Unavailable
from polyhead_client.calls import Deadline, NextMessage, Operation, Sleep, Stream
from polyhead_client.retry import retrying
from polyhead_proto import RPCS

MORE_THAN_GRPC_TRIES = 9
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


@pytest.fixture
def patient(connect: Connect, fake: FakeServer) -> Client:
    return connect(fake.target, patient=True)


@pytest.mark.parametrize(
    ("rpc", "code"),
    [("ModelInfer", "UNAVAILABLE"), ("ModelMetadata", "UNAVAILABLE"), ("ModelInfer", "CANCELLED")],
)
def test_every_call_of_an_operation_is_made_again(
    patient: Client, fake: FakeServer, rpc: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyhead_client.retry._LONGEST_PAUSE_S", 0.01)
    monkeypatch.setattr("polyhead_client.retry._FIRST_PAUSE_S", 0.01)
    fake.fail(rpc, grpc.StatusCode[code], times=MORE_THAN_GRPC_TRIES)

    assert patient.encode("a", model="words").model == "words"
    assert fake.count(rpc) == MORE_THAN_GRPC_TRIES + 1


def test_the_servers_own_words_are_passed_on_when_no_time_is_left(connect: Connect, fake: FakeServer) -> None:
    fake.fail("ServerMetadata", UNAVAILABLE, "not now", pushback="3600000")
    # gRPC's own retries would wait for that.
    patient = connect(fake.target, patient=True, timeout=100, options=[("grpc.enable_retries", 0)])

    with pytest.raises(Unavailable, match=f"{fake.target} is unavailable: not now") as caught:
        patient.metadata()
    assert caught.value.retry_after == 3600


@pytest.mark.parametrize("pushback", ["-1", "never"])
def test_what_will_not_get_better_is_not_waited_for(patient: Client, fake: FakeServer, pushback: str) -> None:
    fake.fail("ServerMetadata", UNAVAILABLE, "not now", pushback=pushback)

    with pytest.raises(Unavailable, match="not now") as caught:
        patient.metadata(timeout=None)
    assert caught.value.retry_after is not None
    assert caught.value.retry_after < 0
    assert fake.count("ServerMetadata") == 1


def test_other_errors_and_probes_are_not_tried_again(patient: Client, fake: FakeServer) -> None:
    for rpc, code in (("ServerMetadata", "INTERNAL"), ("ServerReady", "UNAVAILABLE")):
        fake.fail(rpc, grpc.StatusCode[code])

    with pytest.raises(PolyheadError, match="what went wrong"):
        patient.metadata()
    assert not patient.ready()
    assert (fake.count("ServerMetadata"), fake.count("ServerReady")) == (1, 1)


def test_what_the_client_calls_off_itself_is_not_tried_again(fake: FakeServer) -> None:
    with Client(fake.target, patient=True) as client:
        fake.answers["ServerMetadata"] = lambda *_: client.close()

        with pytest.raises(Cancelled):
            client.metadata()
    assert fake.count("ServerMetadata") == 1


def test_an_impatient_client_says_when_to_come_back(client: Client, fake: FakeServer) -> None:
    fake.fail("ServerMetadata", UNAVAILABLE, "not now", pushback="-1")
    fake.fail("ModelStatistics", UNAVAILABLE)

    for call, expected in ((client.metadata, -0.001), (client.statistics, None)):
        with pytest.raises(Unavailable) as caught:
            call()
        assert caught.value.retry_after == expected


def test_options_of_the_caller_win(connect: Connect, fake: FakeServer) -> None:
    fake.fail("ServerMetadata", UNAVAILABLE)
    client = connect(fake.target, options=[("grpc.enable_retries", 0)])

    with pytest.raises(Unavailable):
        client.metadata()
    assert fake.count("ServerMetadata") == 1


def test_a_stream_is_retried_until_its_first_message() -> None:
    stream = Stream(rpc=RPCS["ModelStreamInfer"], data=b"", deadline=Deadline.after(None))

    def read_two() -> Operation[bytes]:
        first = yield stream
        return first + (yield NextMessage(stream=stream))

    operation = retrying(read_two())
    assert next(operation) is stream
    assert isinstance(operation.throw(Unavailable("away")), Sleep)
    assert operation.send(b"") is stream
    assert operation.send(b"first") == NextMessage(stream=stream)
    with pytest.raises(Unavailable, match="gone"):
        operation.throw(Unavailable("gone"))
