"""Batches that are larger than the server takes at once go as several requests, and come back as one."""

import asyncio
import threading
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest
from tests.client.conftest import Connect, FakeServer
from tests.client.encodings import assert_same

from polyhead_client import AsyncClient, Client, DeadlineExceeded, InvalidRequest, TooLarge, Unavailable
from polyhead_proto.faults import Fault
from polyhead_proto.names import FAULT

D, H = 4, 3
RANDOM = np.random.default_rng(11)
LENGTHS = RANDOM.integers(1, 9, 23).tolist()
TEXTS = [" ".join(["cat"] * length) for length in LENGTHS]
INPUTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "texts": (TEXTS, {"model": "words"}),
    "token ids in lists": (
        [RANDOM.integers(0, 30, length).tolist() for length in LENGTHS],
        {"model": "words", "token_type_ids": [[0] * length for length in LENGTHS]},
    ),
    "token ids in an array": (
        RANDOM.integers(0, 30, (23, 6)),
        {"model": "words", "attention_mask": np.arange(6) < RANDOM.integers(1, 7, (23, 1))},
    ),
    "vectors in a list": (
        [RANDOM.normal(size=(length, D)).astype(np.float16) for length in LENGTHS],
        {"model": "vectors", "mask": [np.tri(length, dtype=np.bool_) for length in LENGTHS]},
    ),
    "vectors in an array": (RANDOM.normal(size=(23, 6, D)).astype(np.float32), {"model": "vectors"}),
    "vectors with lengths and a mask": (
        RANDOM.normal(size=(23, 6, D)),
        {"model": "vectors", "lengths": RANDOM.integers(1, 7, 23), "mask": RANDOM.random((23, 6, 6)) < 0.5},
    ),
    "one mask for all": (RANDOM.normal(size=(23, 6, D)), {"model": "vectors", "mask": np.tri(6, dtype=bool)}),
}


@pytest.mark.parametrize("limit", [{"max_batch_size": "5"}, {"max_request_tokens": "20"}], ids=str)
@pytest.mark.parametrize("kind", INPUTS)
def test_the_answer_is_that_of_one_request(
    connect: Connect, fake: FakeServer, kind: str, limit: dict[str, str]
) -> None:
    inputs, extras = INPUTS[kind]
    options: dict[str, Any] = {**extras, "attention": True, "heads": [2, 0]}
    whole = connect(fake.target).encode(inputs, **options)
    assert fake.count("ModelInfer") == 1

    fake.properties = limit
    split = connect(fake.target).encode(inputs, **options)

    assert_same(split, whole)
    requests = [request for name, request, _ in fake.calls if name == "ModelInfer"][1:]
    sizes = [list(request.inputs[0].shape) for request in requests]
    assert sum(size[0] for size in sizes) == 23
    if "max_batch_size" in limit:
        assert sorted(size[0] for size in sizes) == [3, 5, 5, 5, 5]
    elif kind == "texts":
        assert len(sizes) == 1, "their tokens are the server's to count"
    else:
        assert all(size[0] * size[1] <= 20 for size in sizes)
        assert len(sizes) > 4
    assert split.timings.total_ns > 0
    assert split.timings.compute_ns == 3000 * len(sizes)


MASKS = RANDOM.random((23, 2, H)).astype(np.float32)


@pytest.mark.parametrize(
    "options",
    [
        {"scores": True, "rollout": True, "top": 2, "thumbnails": True, "head_mix": MASKS},
        {"attention": [1], "weighted": True, "head_mask": MASKS},
        {"attention": [1], "queries": [0], "head_mask": MASKS[0]},
    ],
    ids="-".join,
)
@pytest.mark.parametrize("kind", ["texts", "vectors in a list", "vectors in an array"])
def test_all_outputs_and_inputs_are_split(
    connect: Connect, fake: FakeServer, kind: str, options: dict[str, Any]
) -> None:
    fake.graphs, fake.head_mask = ["", "attention", "rows", "insight"], True
    inputs, extras = INPUTS[kind]
    options = {"model": extras["model"], **options}
    whole = connect(fake.target).encode(inputs, **options)
    assert fake.count("ModelInfer") == 1

    fake.properties = {"max_batch_size": "5"}
    split = connect(fake.target).encode(inputs, **options)

    assert fake.count("ModelInfer") == 6
    assert_same(split, whole)


@pytest.mark.parametrize("size", [1, 5])
def test_what_fits_is_sent_as_it_is(client: Client, fake: FakeServer, size: int) -> None:
    fake.properties = {"max_batch_size": "5"}
    calls: list[tuple[int, int]] = []

    client.encode(TEXTS[:size], model="words", progress=lambda *numbers: calls.append(numbers))

    assert fake.count("ModelInfer") == 1
    assert calls == [(size, size)]


def test_one_long_sequence_is_the_servers_to_judge(client: Client, fake: FakeServer) -> None:
    fake.properties = {"max_batch_size": "5", "max_request_tokens": "4"}

    assert client.encode([1] * 9, model="words").output.shape == (9, D)


def test_replies_that_are_under_way_together_fit_into_messages(client: Client, fake: FakeServer) -> None:
    """Two sequences have 2 × 3 heads × 6² × 4 bytes of attention in each layer, and 192 bytes of output."""
    fake.properties = {"max_batch_size": "20", "max_reply_bytes": "3000"}

    client.encode(INPUTS["vectors in an array"][0], model="vectors", attention=True)

    sizes = [request.inputs[0].shape[0] for name, request, _ in fake.calls if name == "ModelInfer"]
    assert set(sizes) == {2, 1}


TOO_LARGE = (grpc.StatusCode.RESOURCE_EXHAUSTED, "too many tokens in one request")


def has_a_dog(request: Any) -> bool:
    return b"dog" in request.raw_input_contents[0]


@pytest.mark.parametrize("limit", [{}, {"max_batch_size": "8"}], ids=str)
def test_what_the_server_finds_too_large_is_halved(
    connect: Connect, fake: FakeServer, limit: dict[str, str]
) -> None:
    whole = connect(fake.target).encode(TEXTS, model="words", attention=True)
    fake.properties = limit
    fake.fail("ModelInfer", *TOO_LARGE, when=lambda request: request.inputs[0].shape[0] > 2)
    calls: list[tuple[int, int]] = []

    split = connect(fake.target).encode(
        TEXTS, model="words", attention=True, progress=lambda *numbers: calls.append(numbers)
    )

    assert_same(split, whole)
    assert calls[-1] == (23, 23)
    assert calls == sorted(calls)


def test_a_sequence_that_is_too_large_by_itself_is_named(client: Client, fake: FakeServer) -> None:
    fake.fail("ModelInfer", *TOO_LARGE, when=has_a_dog)
    texts = [*TEXTS[:9], "dog", *TEXTS[9:]]

    with pytest.raises(TooLarge, match=r"too many tokens in one request \(inputs\[9\]\)") as caught:
        client.encode(texts, model="words")
    assert caught.value.details == "too many tokens in one request"


def test_errors_name_the_item_among_all(client: Client, fake: FakeServer) -> None:
    fake.properties = {"max_batch_size": "5"}
    fault = Fault(field="text", index=(1,), problem="must be shorter")
    fake.fail("ModelInfer", grpc.StatusCode.INVALID_ARGUMENT, str(fault), when=has_a_dog, fault=fault)
    texts = [*TEXTS[:11], "dog", *TEXTS[12:]]

    with pytest.raises(InvalidRequest, match=r"^text\[11\] must be shorter \(inputs\[10:15\]\)$") as caught:
        client.encode(texts, model="words")
    assert caught.value.details == "text[1] must be shorter"
    assert caught.value.fault == replace(fault, index=(11,))
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT


def test_what_is_wrong_with_the_last_item_is_said_before_the_first_is_sent(
    client: Client, fake: FakeServer
) -> None:
    fake.properties = {"max_batch_size": "5"}
    for inputs, message in (
        ([*TEXTS, 7], r"inputs\[23\] must be a text"),
        ([*TEXTS, "\ud800"], r"text\[23\] must be valid Unicode"),
        ([*[[1, 2]] * 23, [[1]]], r"inputs\[23\] must be floats"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            client.encode(inputs, model="words")  # type: ignore[arg-type]
    assert not fake.calls


def test_several_are_under_way_but_not_all(client: Client, fake: FakeServer) -> None:
    fake.properties = {"max_batch_size": "1"}
    usual, lock, four = fake.answers["ModelInfer"], threading.Lock(), threading.Barrier(4)
    running = most = arrived = 0

    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        nonlocal running, most, arrived
        with lock:
            running, arrived = running + 1, arrived + 1
            most, first = max(most, running), arrived <= 4
        if first:
            four.wait(120)
        reply = usual(request, context)
        with lock:
            running -= 1
        return reply

    fake.answers["ModelInfer"] = answer
    assert len(client.encode(TEXTS, model="words").output) == 23
    assert most == 4


def test_progress_is_reported_in_the_callers_thread(fake: FakeServer) -> None:
    fake.properties = {"max_batch_size": "5"}
    calls: list[tuple[int, int]] = []
    threads: set[int] = set()

    def progress(done: int, total: int) -> None:
        calls.append((done, total))
        threads.add(threading.get_ident())

    with Client(fake.target) as client:
        client.encode(TEXTS, model="words", progress=progress)

    assert len(calls) == 5
    assert calls == sorted(calls)
    assert calls[-1] == (23, 23)
    assert threads == {threading.get_ident()}


def test_a_failing_progress_ends_it(client: Client, fake: FakeServer) -> None:
    fake.properties = {"max_batch_size": "1"}

    def progress(done: int, total: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        client.encode(TEXTS, model="words", progress=progress)
    assert fake.count("ModelInfer") < 23
    assert client.encode("a", model="words").model == "words"


def never_for(word: bytes, usual: Any, ended: threading.Event, begun: threading.Event | None = None) -> Any:
    """An answer that does not come for requests with this word, until they are cancelled."""

    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        if word not in request.raw_input_contents[0]:
            return usual(request, context)
        if begun:
            begun.set()
        cancelled = threading.Event()
        if context.add_callback(cancelled.set):
            cancelled.wait(240)
        ended.set()
        return usual(request, context)

    return answer


def test_the_first_that_fails_calls_off_the_others(client: Client, fake: FakeServer) -> None:
    fake.properties = {"max_batch_size": "1"}
    begun, ended = threading.Event(), threading.Event()
    slow = never_for(b"slow", fake.answers["ModelInfer"], ended, begun)

    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        if b"wrong" in request.raw_input_contents[0]:
            assert begun.wait(120)  # or "slow" is called off before the server has seen it
            fault = Fault(field="text", index=(0,), problem="is wrong")
            context.set_trailing_metadata(((FAULT, fault.to_json()),))
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(fault))
        return slow(request, context)

    fake.answers["ModelInfer"] = answer
    with pytest.raises(InvalidRequest, match=r"text\[1\] is wrong \(inputs\[1\]\)"):
        client.encode(["slow", "wrong", *TEXTS], model="words", timeout=None)
    assert ended.wait(120)
    assert client.encode("a", model="words").model == "words"


def test_a_cancelled_task_calls_off_all(fake: FakeServer) -> None:
    fake.properties = {"max_batch_size": "1"}
    ended, all_there = threading.Event(), threading.Event()
    slow = never_for(b"slow", fake.answers["ModelInfer"], ended)

    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        if fake.count("ModelInfer") == 3:
            all_there.set()
        return slow(request, context)

    fake.answers["ModelInfer"] = answer

    async def run() -> None:
        async with AsyncClient(fake.target) as client:
            task = asyncio.create_task(client.encode(["slow"] * 3, model="words", timeout=None))
            await asyncio.to_thread(all_there.wait, 120)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(run())
    assert ended.wait(120)


def test_one_deadline_holds_for_all_of_it(client: Client, fake: FakeServer) -> None:
    fake.properties = {"max_batch_size": "1"}
    fake.answers["ModelInfer"] = never_for(b"slow", fake.answers["ModelInfer"], threading.Event())
    client.model("words")

    message = ""
    for timeout in (1, 10, 100):  # in time for the first two, also on a busy machine
        with pytest.raises(DeadlineExceeded) as caught:
            client.encode(["a", "b", "slow"], model="words", timeout=timeout)
        message = str(caught.value)
        if "2 of 3" in message:
            break
    assert (
        f"did not answer ModelInfer within {timeout} s (inputs[2]); 2 of 3 sequences were encoded" in message
    )


def test_answers_of_two_versions_are_not_mixed(client: Client, fake: FakeServer) -> None:
    fake.properties = {"max_batch_size": "5"}
    usual = fake.answers["ModelInfer"]

    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        reply = usual(request, context)
        reply.model_version = "2" if fake.count("ModelInfer") > 3 else "1"
        return reply

    fake.answers["ModelInfer"] = answer
    with pytest.raises(
        Unavailable, match=r"words changed from version [12] to [12] while the inputs were enc"
    ):
        client.encode(TEXTS, model="words")


def test_a_patient_client_is_patient_with_every_request(connect: Connect, fake: FakeServer) -> None:
    fake.properties = {"max_batch_size": "5"}
    fake.fail("ModelInfer", grpc.StatusCode.UNAVAILABLE, times=9, pushback="1")
    patient = connect(fake.target, patient=True, options=[("grpc.enable_retries", 0)])
    assert len(patient.encode(TEXTS, model="words").output) == 23
