"""Concurrent calls of `encode` that share a request, against a made-up server and a real one."""

import asyncio
import math
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from tests.client.conftest import Connect, FakeServer, vectors
from tests.client.encodings import assert_same

from polyhead_client import (
    AsyncClient,
    Cancelled,
    Client,
    DeadlineExceeded,
    Encoding,
    InvalidRequest,
    ServerError,
    Unavailable,
)

D, H, L = 4, 3, 2
RANDOM = np.random.default_rng(5)
WRONG = 1e6
"""A value that `refusing` refuses."""


class Gate:
    """A server that answers inference requests only while it is open."""

    def __init__(self, fake: FakeServer) -> None:
        self.fake = fake
        self.open = threading.Event()
        self._usual = fake.answers["ModelInfer"]
        fake.answers["ModelInfer"] = self._answer

    def _answer(self, request: Any, context: grpc.ServicerContext) -> Any:
        ended = threading.Event()
        context.add_callback(ended.set)
        while not self.open.wait(0.01) and not ended.is_set():
            pass
        return self._usual(request, context)

    async def arrived(self, count: int) -> None:
        """Waits until so many requests have come."""
        async with asyncio.timeout(240):
            while self.fake.count("ModelInfer") < count:  # noqa: ASYNC110 - from other threads
                await asyncio.sleep(0.001)

    @property
    def sizes(self) -> list[int]:
        """The sequences of each request."""
        return [
            int(request.inputs[0].shape[0]) for name, request, _ in self.fake.calls if name == "ModelInfer"
        ]


PATIENCE = "polyhead_client.waiting._PATIENCE_SECONDS"


@pytest.fixture
def gate(fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """No call is overdue because the machine was busy."""
    monkeypatch.setattr(PATIENCE, 3600.0)
    return Gate(fake)


@asynccontextmanager
async def busy(gate: Gate, **options: Any) -> AsyncIterator[AsyncClient]:
    """A client that knows what a call costs, with two requests under way; the gate is closed."""
    async with AsyncClient(gate.fake.target, **options) as client:
        gate.open.set()
        await client.encode(vectors(3, D), model="vectors")
        gate.open.clear()
        first = [asyncio.create_task(client.encode(vectors(3, D), model="vectors")) for _ in range(2)]
        await gate.arrived(3)
        yield client
        gate.open.set()
        await asyncio.gather(*first, return_exceptions=True)


def call(client: AsyncClient, x: Any, **options: Any) -> "asyncio.Task[Encoding]":
    return asyncio.create_task(client.encode(x, model="vectors", **options))


async def begun() -> None:
    """Returns when the tasks that were created wait."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_calls_wait_while_two_requests_are_under_way_and_then_share_one(gate: Gate) -> None:
    async with busy(gate) as client:
        inputs = [vectors(length, D) for length in (3, 1, 7, 7, 2, 3, 9, 4, 5, 6)]
        tasks = [call(client, x) for x in inputs]
        await begun()
        assert gate.sizes == [1, 1, 1]
        gate.open.set()
        results = await asyncio.gather(*tasks)
        # A view would keep the rows of all callers in memory.
        assert sum(encoding.output.base is None for encoding in results) > 1
        for x, encoding in zip(inputs, results, strict=True):
            np.testing.assert_array_equal(encoding.output, 2 * x)
            assert encoding.lengths == len(x)
            assert encoding.timings.total_ns > 0
            assert encoding.timings.compute_ns == 3000
    assert sum(gate.sizes) == 13
    assert max(gate.sizes) > 3


async def test_nothing_is_joined_where_it_is_turned_off(gate: Gate) -> None:
    async with busy(gate, coalesce=False) as client:
        tasks = [call(client, vectors(3, D)) for _ in range(5)]
        await gate.arrived(8)
        gate.open.set()
        await asyncio.gather(*tasks)
    assert gate.sizes == [1] * 8


def form_of(index: int) -> tuple[Any, dict[str, Any]]:
    """Inputs of one of many forms, and options."""
    length = int(RANDOM.integers(1, 9))
    lengths = RANDOM.integers(1, 9, size=int(RANDOM.integers(1, 4)))
    ragged = [vectors(n, D) for n in lengths]
    attention = {"attention": [1, 0], "heads": [2, 0], "dtype": "FP16"}
    masks = [RANDOM.random((n, n)) > 0.5 for n in lengths]
    words = [" ".join(RANDOM.choice(["a", "cat", "sat"], n)) for n in lengths]
    ids = [RANDOM.integers(0, 30, n) for n in lengths]
    forms: list[tuple[Any, dict[str, Any]]] = [
        (vectors(length, D), {"model": "vectors"}),
        (vectors(2, length, D), {"model": "vectors"}),
        (vectors(2, length, D), {"model": "vectors", "lengths": [1, length]}),
        (vectors(length, D).astype(np.float16), {"model": "vectors"}),
        (ragged, {"model": "vectors"}),
        (ragged, {"model": "vectors", "mask": masks}),
        (ragged, {"model": "vectors", **attention}),
        (vectors(3, length, D), {"model": "vectors", **attention, "queries": [0]}),
        (words, {"model": "words"}),
        (words[0], {"model": "words", "attention": True, "output": False}),
        (words[0], {"model": "words", "attention": 0, "queries": [0]}),
        (ids, {"model": "words", "token_type_ids": ids}),
        (ids[0], {"model": "words", "pooled": True}),
        (ids[0].tolist(), {"model": "words", "attention": True, "dtype": "UINT8"}),
        (ragged, {"model": "vectors", "attention": [1], "queries": [0]}),
        (words[0], {"model": "words", "attention": True, "queries": [0]}),
        (vectors(length, D), {"model": "vectors", "attention": 0, "weighted": True}),
        (words, {"model": "words", **INSIGHT, "head_mix": RANDOM.random((L, H))}),
        (ragged, {"model": "vectors", **INSIGHT}),
        (words[0], {"model": "words", "head_mask": RANDOM.random((L, H))}),
        (vectors(length, D), {"model": "vectors", "head_mask": RANDOM.random((L, H))}),
    ]
    return forms[index]


INSIGHT = {"scores": True, "rollout": True, "top": 2, "thumbnails": True, "layers": [1]}
FORMS = 21


def test_every_caller_gets_what_it_would_get_alone(connect: Connect, fake: FakeServer) -> None:
    """32 callers of all forms, at random."""
    fake.graphs, fake.head_mask = ["", "attention", "rows", "insight"], True
    calls = [form_of(index) for index in RANDOM.integers(0, FORMS, 600)]
    alone = connect(fake.target, coalesce=False)
    expected = [alone.encode(x, **options) for x, options in calls]
    requests = fake.count("ModelInfer")
    client = connect(fake.target)

    with ThreadPoolExecutor(32) as callers:
        results = list(callers.map(lambda each: client.encode(each[0], **each[1]), calls))

    for result, encoding in zip(results, expected, strict=True):
        assert_same(result, encoding, atol=2e-5)
    assert fake.count("ModelInfer") - requests < requests  # some were joined


def refusing(code: grpc.StatusCode, usual: Any) -> Any:
    """An answer that refuses requests with a value that is wrong, and names the sequence."""

    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        shape = request.inputs[0].shape
        x = np.frombuffer(request.raw_input_contents[0], np.float32).reshape(shape)
        for index in np.flatnonzero((x == WRONG).any((1, 2))):
            context.abort(code, f"x[{index}] is wrong")
        return usual(request, context)

    return answer


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidRequest),
        (grpc.StatusCode.INTERNAL, ServerError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Exception),
        (grpc.StatusCode.DEADLINE_EXCEEDED, DeadlineExceeded),
    ],
)
async def test_an_error_is_that_of_its_caller_alone(gate: Gate, code: grpc.StatusCode, kind: Any) -> None:
    gate.fake.answers["ModelInfer"] = refusing(code, gate.fake.answers["ModelInfer"])

    async with busy(gate) as client:
        good = [vectors(3, D) for _ in range(8)]
        bad = np.full((3, D), WRONG, np.float32)
        tasks = [call(client, x) for x in (*good[:5], bad, *good[5:])]
        await begun()
        gate.open.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        error = results.pop(5)
        assert isinstance(error, kind)
        assert "x[0] is wrong" in (getattr(error, "details", "") or "")
        for x, encoding in zip(good, results, strict=True):
            assert isinstance(encoding, Encoding)
            np.testing.assert_array_equal(encoding.output, 2 * x)
    assert max(gate.sizes) > 1


def is_joined(request: Any) -> bool:
    return int(request.inputs[0].shape[0]) > 1


async def test_an_outage_reaches_each_caller_and_not_asked_about_again(gate: Gate) -> None:
    gate.fake.fail(
        "ModelInfer", grpc.StatusCode.UNAVAILABLE, "the queue is full", when=is_joined, pushback="70"
    )

    async with busy(gate, options=[("grpc.enable_retries", 0)]) as client:
        tasks = [call(client, vectors(3, D)) for _ in range(6)]
        await begun()
        gate.open.set()
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [error for error in errors if isinstance(error, Unavailable)]
        assert len(refused) == len(set(map(id, refused))) > 1
        assert all("the queue is full" in str(error) for error in refused)
        assert {error.retry_after for error in refused} == {0.07}
    assert sum(gate.sizes) == 9


async def test_a_patient_client_is_patient_with_joined_calls(gate: Gate) -> None:
    gate.fake.fail("ModelInfer", grpc.StatusCode.UNAVAILABLE, when=is_joined, times=4, pushback="1")

    async with busy(gate, patient=True, options=[("grpc.enable_retries", 0)]) as client:
        inputs = [vectors(3, D) for _ in range(12)]
        tasks = [call(client, x) for x in inputs]
        await begun()
        gate.open.set()
        for x, encoding in zip(inputs, await asyncio.gather(*tasks), strict=True):
            np.testing.assert_array_equal(encoding.output, 2 * x)
    assert sum(gate.sizes) > 3 + 12, "none was refused"


async def test_a_call_that_waits_ends_at_its_own_deadline(gate: Gate) -> None:
    async with busy(gate) as client:
        short, long = call(client, vectors(3, D), timeout=0.05), call(client, vectors(3, D))
        with pytest.raises(DeadlineExceeded, match=r"did not answer ModelInfer within 0\.05 s") as caught:
            await short
        assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
        gate.open.set()
        assert (await long).lengths == 3
    assert sum(gate.sizes) <= 5


@pytest.mark.parametrize("longest", [5000.0, None], ids=str)
async def test_a_request_has_the_latest_deadline(gate: Gate, longest: float | None) -> None:
    left, usual = [], gate.fake.answers["ModelInfer"]

    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        if is_joined(request):
            left.append(context.time_remaining())
        return usual(request, context)

    gate.fake.answers["ModelInfer"] = answer
    async with busy(gate) as client:
        tasks = [call(client, vectors(3, D), timeout=timeout) for timeout in (500.0, longest, 900.0) * 2]
        await begun()
        gate.open.set()
        await asyncio.gather(*tasks)

    assert 4000 < (left[0] or math.inf) <= (longest or math.inf)


@pytest.mark.parametrize(("tokens", "options"), [(3000, {}), (300, {"attention": True})], ids=str)
async def test_large_calls_are_sent_at_once(gate: Gate, tokens: int, options: dict[str, Any]) -> None:
    """A thousand tokens are known to take 1 ms; attention of 300, of 3 heads and 2 layers, is 2 MB."""
    async with AsyncClient(gate.fake.target) as client:
        gate.open.set()
        await call(client, vectors(3, D), **options)
        gate.open.clear()
        tasks = [call(client, vectors(tokens, D), **options) for _ in range(5)]
        await gate.arrived(6)
        gate.open.set()
        await asyncio.gather(*tasks)

    assert gate.sizes == [1] * 6


@pytest.mark.parametrize("limit", [{"max_batch_size": "3"}, {"max_request_tokens": "11"}], ids=str)
async def test_the_limits_of_the_server_are_kept(gate: Gate, limit: dict[str, str]) -> None:
    gate.fake.properties = limit
    async with busy(gate) as client:
        tasks = [call(client, vectors(3, D)) for _ in range(10)]
        await begun()
        gate.open.set()
        await asyncio.gather(*tasks)

    assert max(gate.sizes) == 3


def test_a_server_that_tells_no_timings_gets_no_joined_requests(fake: FakeServer) -> None:
    usual = fake.answers["ModelInfer"]

    def answer(request: Any, context: Any) -> Any:
        reply = usual(request, context)
        reply.parameters.clear()
        return reply

    fake.answers["ModelInfer"] = answer
    with Client(fake.target) as client, ThreadPoolExecutor(16) as callers:
        list(callers.map(lambda _: client.encode(vectors(3, D), model="vectors"), range(64)))
    assert fake.count("ModelInfer") == 64


def test_a_call_does_not_wait_for_requests_that_are_stuck(
    connect: Connect, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PATIENCE, 0.1)
    client = connect(gate.fake.target, timeout=60)
    with ThreadPoolExecutor(8) as callers:
        gate.open.set()
        client.encode(vectors(3, D), model="vectors")
        gate.open.clear()
        calls = [callers.submit(client.encode, vectors(3, D), model="vectors") for _ in range(8)]
        asyncio.run(gate.arrived(4))
        gate.open.set()
        assert [call.result(120).lengths for call in calls] == [3] * 8


async def test_callers_that_leave_at_any_time_disturb_no_others(gate: Gate) -> None:
    """Also one that leaves just when its turn comes: nobody waits for it, as no patience ends here."""
    gate.open.set()
    async with asyncio.timeout(240), AsyncClient(gate.fake.target, timeout=None) as client:
        for _ in range(300):
            others, leaving = ([vectors(3, D) for _ in range(RANDOM.integers(3))] for _ in range(2))
            tasks, cancelled = ([call(client, x) for x in each] for each in (others, leaving))
            for _ in range(RANDOM.integers(12)):
                await asyncio.sleep(0)
            for task in cancelled:
                task.cancel()
            for x, encoding in zip(others, await asyncio.gather(*tasks), strict=True):
                np.testing.assert_array_equal(encoding.output, 2 * x)


async def test_a_request_is_cancelled_with_its_last_caller(gate: Gate) -> None:
    usual = gate.fake.answers["ModelInfer"]
    ended, came = threading.Event(), threading.Event()

    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        if request.inputs[0].shape[0] > 1:
            context.add_callback(ended.set)
            came.set()
            ended.wait(120)
        return usual(request, context)

    gate.fake.answers["ModelInfer"] = answer

    async with busy(gate) as client:
        tasks = [call(client, vectors(3, D), timeout=None) for _ in range(8)]
        await begun()
        gate.open.set()
        assert await asyncio.to_thread(came.wait, 120)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert await asyncio.to_thread(ended.wait, 120)
        assert (await client.encode(vectors(3, D), model="vectors")).lengths == 3


async def test_closing_ends_the_calls_that_wait(gate: Gate) -> None:
    async with busy(gate) as client:
        tasks = [call(client, vectors(3, D), timeout=None) for _ in range(4)]
        await begun()
        await client.close()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [Cancelled] * 4


def test_closing_ends_the_calls_of_threads(gate: Gate) -> None:
    client = Client(gate.fake.target, timeout=60)
    gate.open.set()
    client.encode(vectors(3, D), model="vectors")
    gate.open.clear()
    with ThreadPoolExecutor(12) as callers:
        calls = [callers.submit(client.encode, vectors(3, D), model="vectors") for _ in range(12)]
        asyncio.run(gate.arrived(3))
        client.close()
        errors = [call.exception(120) for call in calls]
    assert {type(error) for error in errors} <= {Cancelled, RuntimeError}


def test_a_loop_that_ends_takes_the_calls_with_it(gate: Gate) -> None:
    async def run() -> None:
        client = AsyncClient(gate.fake.target)
        gate.open.set()
        await client.encode(vectors(3, D), model="vectors")
        gate.open.clear()
        tasks = [call(client, vectors(3, D), timeout=None) for _ in range(8)]
        await gate.arrived(3)
        assert not any(task.done() for task in tasks)

    asyncio.run(run())
    gate.open.set()
