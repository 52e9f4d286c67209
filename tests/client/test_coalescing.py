"""Concurrent calls of `encode` that share a request, against a made-up server and a real one."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray
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
from polyhead_client.calls import Call, Join, Operation
from polyhead_client.operations import Operations
from polyhead_proto import messages as pb

if TYPE_CHECKING:
    from tests.client.conftest import Connect, FakeServer

D, H, L = 4, 3, 2
RANDOM = np.random.default_rng(5)
NO_CONTEXT: Any = None
WRONG = 1e6
"""A value that `refusing` refuses."""


def vectors(*shape: int) -> NDArray[np.float32]:
    return RANDOM.normal(size=shape).astype(np.float32)


class Gate:
    """A server that answers inference requests only while it is open."""

    def __init__(self, fake: "FakeServer") -> None:
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


PATIENCE = "polyhead_client.coalescing._PATIENCE_SECONDS"


@pytest.fixture
def gate(fake: "FakeServer", monkeypatch: pytest.MonkeyPatch) -> Gate:
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


def test_calls_wait_while_two_requests_are_under_way_and_then_share_one(gate: Gate) -> None:
    async def run() -> None:
        async with busy(gate) as client:
            inputs = [vectors(length, D) for length in (3, 1, 7, 7, 2, 3, 9, 4, 5, 6)]
            tasks = [call(client, x) for x in inputs]
            await begun()
            assert gate.sizes == [1, 1, 1]
            gate.open.set()
            for x, encoding in zip(inputs, await asyncio.gather(*tasks), strict=True):
                np.testing.assert_array_equal(encoding.output, 2 * x)
                assert encoding.lengths == len(x)
                assert encoding.timings.total_ns > 0
                assert encoding.timings.compute_ns == 3000

    asyncio.run(run())
    assert sum(gate.sizes) == 13
    assert max(gate.sizes) > 3


def test_nothing_is_joined_where_it_is_turned_off(gate: Gate) -> None:
    async def run() -> None:
        async with busy(gate, coalesce=False) as client:
            tasks = [call(client, vectors(3, D)) for _ in range(5)]
            await gate.arrived(8)
            gate.open.set()
            await asyncio.gather(*tasks)

    asyncio.run(run())
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


def test_every_caller_gets_what_it_would_get_alone(connect: "Connect", fake: "FakeServer") -> None:
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
def test_an_error_is_that_of_its_caller_alone(gate: Gate, code: grpc.StatusCode, kind: Any) -> None:
    gate.fake.answers["ModelInfer"] = refusing(code, gate.fake.answers["ModelInfer"])

    async def run() -> None:
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

    asyncio.run(run())
    assert max(gate.sizes) > 1


def is_joined(request: Any) -> bool:
    return int(request.inputs[0].shape[0]) > 1


def test_an_outage_reaches_each_caller_and_not_asked_about_again(gate: Gate) -> None:
    gate.fake.fail(
        "ModelInfer", grpc.StatusCode.UNAVAILABLE, "the queue is full", when=is_joined, pushback="70"
    )

    async def run() -> None:
        async with busy(gate, options=[("grpc.enable_retries", 0)]) as client:
            tasks = [call(client, vectors(3, D)) for _ in range(6)]
            await begun()
            gate.open.set()
            errors = await asyncio.gather(*tasks, return_exceptions=True)
            refused = [error for error in errors if isinstance(error, Unavailable)]
            assert len(refused) == len(set(map(id, refused))) > 1
            assert all("the queue is full" in str(error) for error in refused)
            assert {error.retry_after for error in refused} == {0.07}

    asyncio.run(run())
    assert sum(gate.sizes) == 9


def test_a_patient_client_is_patient_with_joined_calls(gate: Gate) -> None:
    gate.fake.fail("ModelInfer", grpc.StatusCode.UNAVAILABLE, when=is_joined, times=4, pushback="1")

    async def run() -> None:
        async with busy(gate, patient=True, options=[("grpc.enable_retries", 0)]) as client:
            inputs = [vectors(3, D) for _ in range(12)]
            tasks = [call(client, x) for x in inputs]
            await begun()
            gate.open.set()
            for x, encoding in zip(inputs, await asyncio.gather(*tasks), strict=True):
                np.testing.assert_array_equal(encoding.output, 2 * x)

    asyncio.run(run())
    assert sum(gate.sizes) > 3 + 12, "none was refused"


def test_a_call_that_waits_ends_at_its_own_deadline(gate: Gate) -> None:
    async def run() -> None:
        async with busy(gate) as client:
            short, long = call(client, vectors(3, D), timeout=0.05), call(client, vectors(3, D))
            with pytest.raises(DeadlineExceeded, match=r"did not answer ModelInfer within 0\.05 s") as caught:
                await short
            assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
            gate.open.set()
            assert (await long).lengths == 3

    asyncio.run(run())
    assert sum(gate.sizes) <= 5


class Steps:
    """Operations that are driven by hand, with the answers of a made-up server."""

    def __init__(self, fake: "FakeServer", *, compute_ns: int = 3000, timeout: float | None = None) -> None:
        self.fake = fake
        self.compute_ns = compute_ns
        self.senders: list[Operation[None]] = []
        self.cancelled: list[Operation[None]] = []
        self.woken: list[Any] = []
        self._begun: list[Step] = []
        self._operations = Operations("anywhere:1", timeout, self._start)
        self.finish(self.begin(vectors(3, D)))

    def _start(self, operation: Operation[None]) -> Callable[[], None]:
        self.senders.append(operation)
        return lambda: self.cancelled.append(operation)

    def begin(self, x: Any, **options: Any) -> "Step":
        """Starts a call, up to its inference request or its wait."""
        operation = self._operations.encode(x, model="vectors", **options)
        action = next(operation)
        while isinstance(action, Call) and action.rpc.name != "ModelInfer":
            action = operation.send(self.reply(action))
        step = Step(operation, action)
        self._begun.append(step)  # an operation that is dropped ends
        if isinstance(action, Join):
            action.enter(lambda: self.woken.append(step))
        return step

    def send(self) -> "Step":
        """Runs the oldest sender, up to its request."""
        operation = self.senders.pop(0)
        return Step(operation, next(operation, None))

    def reply(self, action: Any) -> bytes:
        kind = action.rpc.request
        reply = self.fake.answers[action.rpc.name](kind.FromString(action.data), NO_CONTEXT)
        if action.rpc.name == "ModelInfer":
            reply.parameters["compute_ns"].int64_param = self.compute_ns
        return bytes(reply.SerializeToString())

    def finish(self, step: "Step") -> Any:
        """Answers the action of an operation that is to end then; its result."""
        answer = b""
        if isinstance(step.action, Join):
            if error := step.action.leave():
                raise error
        else:
            answer = self.reply(step.action)
        try:
            step.action = step.operation.send(answer)
        except StopIteration as stop:
            return stop.value
        return step

    def rows(self, step: "Step") -> int:
        return int(pb.ModelInferRequest.FromString(step.action.data).inputs[0].shape[0])


class Step:
    """An operation, and the action that it waits for."""

    def __init__(self, operation: Operation[Any], action: Any) -> None:
        self.operation = operation
        self.action = action


@pytest.fixture
def steps(fake: "FakeServer") -> Steps:
    return Steps(fake)


def test_the_calls_are_shared_out_among_two_requests(steps: Steps) -> None:
    steps.begin(vectors(3, D))
    calls = [steps.begin(vectors(3, D)) for _ in range(9)]
    assert all(isinstance(step.action, Join) for step in calls)
    assert len(steps.senders) == 1
    request = steps.send()
    assert steps.rows(request) == 5, "half of ten"
    steps.finish(request)
    assert steps.woken == calls[:5]
    assert steps.rows(steps.send()) == 3, "half of five that are left"


def test_few_calls_wait_for_the_others(steps: Steps) -> None:
    """After a small request beside a large one, both share the calls again."""
    first = steps.begin(vectors(3, D))
    for _ in range(5):
        steps.begin(vectors(3, D))
    large = steps.send()
    assert steps.rows(large) == 3
    steps.finish(first)
    second = steps.send()
    assert steps.rows(second) == 2
    steps.finish(second)
    steps.begin(vectors(3, D))
    assert not steps.senders
    for _ in range(2):
        steps.begin(vectors(3, D))
    assert steps.rows(steps.send()) == 3, "half of six"


def test_the_first_call_after_a_joined_request_waits_for_the_others(steps: Steps) -> None:
    first = steps.begin(vectors(3, D))
    for _ in range(2):
        steps.begin(vectors(3, D))
    steps.finish(steps.send())
    steps.finish(first)
    for _ in range(4):
        assert isinstance(steps.begin(vectors(3, D)).action, Join)
    assert [steps.rows(steps.send()) for _ in range(2)] == [2, 2]


@pytest.mark.parametrize("timeouts", [(5.0, 50.0, 9.0), (5.0, None, 9.0)], ids=str)
def test_a_request_has_the_latest_deadline(steps: Steps, timeouts: tuple[float | None, ...]) -> None:
    steps.begin(vectors(3, D))
    for timeout in (*timeouts, *timeouts):
        steps.begin(vectors(3, D), timeout=timeout)

    assert steps.send().action.deadline.timeout == timeouts[1]


def test_a_request_that_all_have_left_is_cancelled(steps: Steps) -> None:
    steps.begin(vectors(3, D))
    calls = [steps.begin(vectors(3, D)) for _ in range(3)]
    sender = steps.senders[0]
    assert steps.rows(steps.send()) == 2
    for step in calls[:2]:
        assert not steps.cancelled
        step.action.leave()
        step.operation.close()
    assert steps.cancelled == [sender]

    sender.close()
    steps.send()
    assert steps.woken[-1] is calls[2], "what waits goes on"


def test_a_caller_that_leaves_as_its_turn_comes_passes_it_on(steps: Steps) -> None:
    first = steps.begin(vectors(3, D))
    second = steps.begin(vectors(3, D))
    assert steps.send().action is None
    assert steps.woken == [second]
    fourth = steps.begin(vectors(3, D))
    assert not steps.senders

    second.action.leave()
    second.operation.close()
    steps.send()
    assert steps.woken[-1] is fourth
    steps.finish(first)


def test_large_calls_are_sent_at_once_and_hold_up_nothing(fake: "FakeServer") -> None:
    """A thousand tokens are known to take 3 ms; a request of more than 4 ms is not joined."""
    steps = Steps(fake, compute_ns=9000)
    large = [steps.begin(vectors(1000, D)) for _ in range(4)]
    assert all(isinstance(step.action, Call) for step in large)

    assert isinstance(steps.begin(vectors(3, D)).action, Call)
    assert isinstance(steps.begin(vectors(3, D)).action, Join)


def test_as_much_as_fills_a_request_does_not_wait(fake: "FakeServer") -> None:
    """Of calls that take 1 ms each, a request holds four."""
    steps = Steps(fake, compute_ns=999_000)
    steps.begin(vectors(3, D))
    for _ in range(17):
        steps.begin(vectors(3, D))

    assert [steps.rows(steps.send()) for _ in list(steps.senders)] == [4] * 4


def test_a_call_that_would_cause_much_padding_goes_with_others(fake: "FakeServer") -> None:
    """A token takes 10 µs: twenty of padding take as long as a request may take for them."""
    steps = Steps(fake, compute_ns=30_000)
    steps.begin(vectors(3, D))
    lengths = [30, 5, 28, 6, 29, 5]
    for length in lengths * 2:
        steps.begin(vectors(length, D))
    request = steps.send()

    shape = list(pb.ModelInferRequest.FromString(request.action.data).inputs[0].shape)
    assert shape[1] == 30
    assert shape[0] <= 6
    steps.finish(request)
    shape = list(pb.ModelInferRequest.FromString(steps.send().action.data).inputs[0].shape)
    assert shape[1] == 6


def test_large_replies_are_not_joined(steps: Steps) -> None:
    """Attention of 300 tokens, of 3 heads and 2 layers, is 2 MB."""
    for _ in range(3):
        assert isinstance(steps.begin(vectors(300, D), attention=True).action, Call)


@pytest.mark.parametrize("limit", [{"max_batch_size": "3"}, {"max_request_tokens": "11"}], ids=str)
def test_the_limits_of_the_server_are_kept(fake: "FakeServer", limit: dict[str, str]) -> None:
    fake.properties = limit
    steps = Steps(fake)
    steps.begin(vectors(3, D))
    for _ in range(10):
        steps.begin(vectors(3, D))

    assert steps.rows(steps.send()) == 3


def test_a_server_that_tells_no_timings_gets_no_joined_requests(fake: "FakeServer") -> None:
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
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PATIENCE, 0.1)

    async def run() -> None:
        async with busy(gate) as client:
            tasks = [call(client, vectors(3, D), timeout=None) for _ in range(3)]
            short = call(client, vectors(3, D), timeout=60)
            await gate.arrived(4)
            gate.open.set()
            for encoding in await asyncio.gather(short, *tasks):
                assert encoding.lengths == 3

    asyncio.run(run())


def test_a_thread_does_not_wait_for_requests_that_are_stuck(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PATIENCE, 0.1)
    with Client(gate.fake.target, timeout=60) as client, ThreadPoolExecutor(8) as callers:
        gate.open.set()
        client.encode(vectors(3, D), model="vectors")
        gate.open.clear()
        calls = [callers.submit(client.encode, vectors(3, D), model="vectors") for _ in range(8)]
        asyncio.run(gate.arrived(4))
        gate.open.set()
        assert [call.result(120).lengths for call in calls] == [3] * 8


def test_an_overdue_call_is_the_first_of_its_request(steps: Steps) -> None:
    steps.begin(vectors(3, D))
    calls = [steps.begin(vectors(3, D), timeout=None) for _ in range(3)]
    urgent = steps.begin(vectors(3, D), timeout=0.02)
    assert urgent.action.patience <= 0.01
    urgent.action.overdue()
    assert steps.send().action is None, "the other one comes first"
    steps.finish(steps.send())
    assert steps.send().action is None
    assert steps.woken == [urgent, *calls]
    urgent.action.overdue()
    assert not steps.senders, "it has been sent"


def test_results_do_not_keep_those_of_others_in_memory(steps: Steps) -> None:
    steps.begin(vectors(3, D))
    calls = [steps.begin(vectors(3, D)) for _ in range(5)]
    steps.finish(steps.send())

    encoding = steps.finish(calls[0])
    assert encoding.output.base is None
    assert not encoding.output.flags.writeable
    assert encoding.output.nbytes == 3 * D * 4


def test_a_cancelled_caller_does_not_disturb_the_others(gate: Gate) -> None:
    async def run() -> None:
        async with busy(gate) as client:
            tasks = [call(client, vectors(3, D)) for _ in range(6)]
            await begun()
            tasks[0].cancel()
            tasks[3].cancel()
            gate.open.set()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert [isinstance(result, Encoding) for result in results] == [
                index not in {0, 3} for index in range(6)
            ]

    asyncio.run(run())
    assert sum(gate.sizes) == 7


def test_a_request_is_cancelled_with_its_last_caller(gate: Gate) -> None:
    usual = gate.fake.answers["ModelInfer"]
    ended, came = threading.Event(), threading.Event()

    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        if request.inputs[0].shape[0] > 1:
            context.add_callback(ended.set)
            came.set()
            ended.wait(120)
        return usual(request, context)

    gate.fake.answers["ModelInfer"] = answer

    async def run() -> None:
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

    asyncio.run(run())


def test_closing_ends_the_calls_that_wait(gate: Gate) -> None:
    async def run() -> None:
        async with busy(gate) as client:
            tasks = [call(client, vectors(3, D), timeout=None) for _ in range(4)]
            await begun()
            await client.close()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(result) for result in results] == [Cancelled] * 4

    asyncio.run(run())


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


@pytest.mark.parametrize("kind", ["texts", "attention"])
def test_a_real_server_gives_each_caller_what_it_gives_it_alone(
    connect: "Connect", real_server: str, kind: str
) -> None:
    words = "the cat dog sat ran on mat sofa i saw that".split()  # noqa: SIM905
    lengths = RANDOM.integers(1, 13, 100)
    inputs: list[Any]
    options: dict[str, Any]
    if kind == "texts":
        inputs, options = [" ".join(RANDOM.choice(words, n)) for n in lengths], {"model": "tiny-tokens"}
    else:
        inputs = [vectors(n, 16) for n in lengths]
        options = {"model": "tiny", "attention": [-1], "heads": [1, 3], "queries": 0}
    alone, client = connect(real_server, coalesce=False), connect(real_server)
    expected = [alone.encode(x, **options) for x in inputs]

    with ThreadPoolExecutor(32) as callers:
        results = list(callers.map(lambda x: client.encode(x, **options), inputs))

    for result, encoding in zip(results, expected, strict=True):
        assert_same(result, encoding, atol=2e-5)
