"""Replies that do not fit into one message come in parts, without a word from the caller."""

import threading
from typing import Any

import grpc
import numpy as np
import pytest
from tests.client.conftest import Connect, FakeServer
from tests.client.encodings import assert_same
from tests.client.test_parts import part

from polyhead_client import Client, InvalidRequest, PolyheadError, ServerError, TooLarge, Unavailable
from polyhead_proto.names import PUSHBACK

X = np.random.default_rng(8).normal(size=(2, 40, 16)).astype(np.float32)


@pytest.fixture
def client(connect: Connect, small_server: str) -> Client:
    client = connect(small_server)
    client.wait_until_ready(timeout=240)
    return client


@pytest.fixture
def large(connect: Connect, real_server: str) -> Client:
    client = connect(real_server)
    client.wait_until_ready(timeout=240)
    return client


def count(client: Client, model: str) -> tuple[int, int]:
    (statistics,) = client.statistics(model)
    return statistics.durations["success"].count, statistics.durations["fail"].count


@pytest.mark.parametrize("dtype", [None, "FP16", "UINT8"])
def test_a_large_reply_is_what_a_small_one_would_be(client: Client, large: Client, dtype: Any) -> None:
    before = count(client, "tiny.attention")
    options: dict[str, Any] = {"model": "tiny", "attention": True, "dtype": dtype, "lengths": [40, 17]}

    parts = client.encode(X, **options)

    # It knew, and did not ask in vain.
    after = count(client, "tiny.attention")
    assert (after[0] - before[0], after[1] - before[1]) == (1, 0)
    assert_same(parts, large.encode(X, **options))
    assert (parts.model, list(parts.attention)) == ("tiny.attention", [0, 1])
    assert parts.timings.compute_ns is not None


def test_ragged_sequences_heads_and_queries(client: Client, large: Client) -> None:
    sequences = [X[0], X[1, :13]]
    options: dict[str, Any] = {"model": "tiny", "attention": [1], "heads": [2, 0], "queries": range(35)}

    assert_same(client.encode(sequences, **options), large.encode(sequences, **options))


def test_of_texts_the_server_says_that_they_are_too_large(client: Client, large: Client) -> None:
    texts = ["the cat sat on the mat and a dog ran"] * 40

    parts, whole = (each.encode(texts, model="tiny-tokens", attention=True) for each in (client, large))

    assert_same(parts, whole)


def test_a_text_that_is_too_long_is_not_asked_for_in_parts(client: Client) -> None:
    before = count(client, "tiny-tokens")

    with pytest.raises(TooLarge, match="text") as caught:
        client.encode("the cat " * (5 << 17), model="tiny-tokens")

    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert caught.value.limit is None
    after = count(client, "tiny-tokens")
    assert (after[0] - before[0], after[1] - before[1]) == (0, 1)


def test_what_is_too_large_even_in_parts_is_refused(client: Client) -> None:
    with pytest.raises(TooLarge, match=r"in all its parts, the limit is 400000") as caught:
        client.encode(np.zeros((2, 120, 16), np.float32), model="tiny", attention=True)
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert caught.value.request_id


def test_other_refusals_of_a_stream_are_what_they_are_elsewhere(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="heads"):
        client.encode(X, model="tiny", attention=True, heads=range(5))


SMALL = np.ones((1, 30, 4), np.float32)
OUTPUT = part(0, SMALL)
ATTENTION = part(1, np.ones((1, 3, 30, 30), np.float32), name="attention.0", final=True)


@pytest.fixture
def play(connect: Connect, fake: FakeServer) -> Any:
    """Plays a script where a reply must come in parts: the client to encode with, and the server."""
    fake.properties = {"max_reply_bytes": "1024", "max_stream_reply_bytes": "100000"}

    def start(script: Any) -> tuple[Client, FakeServer]:
        fake.script = script
        return connect(fake.target), fake

    return start


def test_a_reply_of_some_mebibytes_comes_in_parts_though_it_fits_into_a_message(
    connect: Connect, fake: FakeServer
) -> None:
    x, weights = np.ones((1, 700, 4), np.float32), np.ones((1, 3, 700, 700), np.float32)
    fake.properties = {"max_stream_reply_bytes": str(1 << 30)}
    fake.script = lambda *_: [part(0, x), part(1, weights, name="attention.0", final=True)]
    client = connect(fake.target)

    large = client.encode(x, model="vectors", attention=[0])
    client.encode(x[:, :100], model="vectors", attention=[0])

    np.testing.assert_array_equal(large.attention[0], weights)
    assert (fake.count("ModelStreamInfer"), fake.count("ModelInfer")) == (1, 1)


def test_a_stream_that_ends_too_early_is_an_error(play: Any) -> None:
    client, _ = play(lambda *_: [OUTPUT])

    with pytest.raises(ServerError, match="ended the stream before the last part"):
        client.encode(SMALL, model="vectors", attention=[0])


@pytest.mark.parametrize("times", [3, 4])
def test_a_reply_that_breaks_off_is_fetched_again(play: Any, times: int) -> None:
    def script(number: int, context: Any) -> Any:
        yield OUTPUT
        if number <= times:
            context.abort(grpc.StatusCode.UNAVAILABLE, "going away")
        yield ATTENTION

    client, fake = play(script)

    if times == 3:
        assert client.encode(SMALL, model="vectors", attention=[0]).attention[0].shape == (1, 3, 30, 30)
    else:
        with pytest.raises(Unavailable, match="going away"):
            client.encode(SMALL, model="vectors", attention=[0])
    assert fake.count("ModelStreamInfer") == 4


@pytest.mark.parametrize(("code", "pushback"), [("INTERNAL", "1"), ("UNAVAILABLE", "-1")])
def test_a_reply_that_breaks_off_for_good_is_not_fetched_again(play: Any, code: str, pushback: str) -> None:
    def script(_number: int, context: Any) -> Any:
        yield OUTPUT
        context.set_trailing_metadata(((PUSHBACK, pushback),))
        context.abort(grpc.StatusCode[code], "it failed for good")

    client, fake = play(script)

    with pytest.raises(PolyheadError, match="failed for good") as caught:
        client.encode(SMALL, model="vectors", attention=[0])
    assert caught.value.code is grpc.StatusCode[code]
    assert fake.count("ModelStreamInfer") == 1


def test_the_stream_is_closed_when_the_reply_is_there(play: Any) -> None:
    closed = threading.Event()

    def script(_number: int, context: Any) -> Any:
        context.add_callback(closed.set)
        yield OUTPUT
        yield ATTENTION
        closed.wait(120)

    client, _ = play(script)
    client.encode(SMALL, model="vectors", attention=[0])

    assert closed.wait(120)
