"""Loading and unloading by call where several workers serve: in all, or the caller hears where not."""

import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
import torch

from polyhead_export import export_family
from polyhead_model import Encoder, EncoderConfig
from polyhead_proto import RPCS
from polyhead_proto import messages as pb

if TYPE_CHECKING:
    from tests.server.workers.conftest import Start, Workers

TOKEN = "a-token-for-management"
X = np.random.default_rng(6).normal(size=(2, 5, 16)).astype(np.float32)
# A connection of its own, so that the system can give it to another worker.
ALONE = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A version of `tiny` with other weights than the test repository's."""
    with torch.random.fork_rng():
        torch.manual_seed(8)
        encoder = Encoder(EncoderConfig(d_model=16, heads=4, layers=2, feed_forward=32)).eval()
    return export_family(encoder, "tiny", tmp_path_factory.mktemp("other")).folder


class Family:
    """The family `tiny`: odd versions have one encoder's weights, even ones another's."""

    def __init__(self, folder: Path, sources: tuple[Path, Path]) -> None:
        self.folder = folder
        self._sources = sources

    def put(self, version: int, *, parameters: int | None = None) -> None:
        """Puts a version in place as a whole; other parameters make another manifest of it."""
        staged = shutil.copytree(self._sources[version % 2], self.folder / ".staged")
        manifest = json.loads((staged / "manifest.json").read_text()) | {"version": version}
        if parameters is not None:
            manifest["numbers"]["parameters"] = parameters
        (staged / "manifest.json").write_text(json.dumps(manifest))
        target = self.folder / "tiny" / str(version)
        target.parent.mkdir(exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        staged.rename(target)


@pytest.fixture
def family(tmp_path: Path, repository: Path, other: Path) -> Family:
    folder = tmp_path / "models"
    folder.mkdir()
    one = Family(folder, (other, repository / "tiny" / "1"))
    one.put(1)
    return one


@pytest.fixture
def workers(start: "Start", family: Family, tmp_path: Path) -> "Workers":
    (tmp_path / "token").write_text(TOKEN)
    explicit = ("--repository-mode", "explicit", "--management-token-file", str(tmp_path / "token"))
    started = start(*explicit, models=family.folder)
    assert started.address
    return started


def call(channel: grpc.Channel, name: str, message: Any, **options: Any) -> Any:
    rpc = RPCS[name]
    method: Any = channel.unary_unary(
        rpc.path,
        request_serializer=rpc.request.SerializeToString,
        response_deserializer=rpc.response.FromString,
    )
    return method(message, **({"timeout": 60} | options))


def infer(channel: grpc.Channel) -> tuple[str, Any]:
    """The version that answers, and its answer."""
    request = pb.ModelInferRequest(
        model_name="tiny",
        inputs=[{"name": "x", "datatype": "FP32", "shape": X.shape}],
        outputs=[{"name": "output"}],
        raw_input_contents=[X.tobytes()],
    )
    reply = call(channel, "ModelInfer", request)
    return reply.model_version, np.frombuffer(reply.raw_output_contents[0], np.float32)


def order(channel: grpc.Channel, name: str, **options: Any) -> None:
    kind = {"Load": pb.RepositoryModelLoadRequest, "Unload": pb.RepositoryModelUnloadRequest}[name]
    bearer = (("authorization", f"Bearer {TOKEN}"),)
    call(channel, f"RepositoryModel{name}", kind(model_name="tiny"), metadata=bearer, **options)


def channel_to(workers: "Workers") -> grpc.Channel:
    return grpc.insecure_channel(workers.address, ALONE)


def worker_of(workers: "Workers", channel: grpc.Channel) -> int:
    """Which worker a connection leads to."""
    name = os.urandom(8).hex()
    with pytest.raises(grpc.RpcError):
        call(
            channel,
            "ModelMetadata",
            pb.ModelMetadataRequest(name="nobody"),
            metadata=(("x-request-id", name),),
        )
    return int(workers.until(rf"\[(\d)\] request {name} refused")[1])


def of_each(workers: "Workers") -> dict[int, Any]:
    """What each worker answers now: a version, or a refusal."""
    answers: dict[int, Any] = {}
    for _ in range(200):
        with channel_to(workers) as channel:
            worker = worker_of(workers, channel)
            try:
                answers[worker] = infer(channel)[0]
            except grpc.RpcError as error:
                answers[worker] = error.details()
        if len(answers) == 2:
            return answers
    raise AssertionError(f"only {set(answers)} answer")


def replace(workers: "Workers", worker: int) -> None:
    """Kills a worker, and waits for the next one in its place."""
    serving = sum(bool(re.search(rf"\[{worker}\] serving", line)) for line in workers.lines)
    os.kill(workers.pids(worker)[-1], signal.SIGKILL)
    workers.until(rf"\[{worker}\] serving", times=serving + 1)


def wait_for(condition: Callable[[], bool]) -> None:
    """Returns when it is so."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


class Load:
    """Callers on ever new connections, who check every answer."""

    def __init__(self, workers: "Workers") -> None:
        self._workers = workers
        self._stop = threading.Event()
        self.answers: list[tuple[str, Any]] = []
        self.problems: list[str] = []
        self._threads = [threading.Thread(target=self._call) for _ in range(3)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def more(self, count: int = 60) -> None:
        """Waits for more answers."""
        goal = len(self.answers) + count
        wait_for(lambda: len(self.answers) >= goal or bool(self.problems))

    def _call(self) -> None:
        while not self._stop.is_set():
            with channel_to(self._workers) as channel:
                for _ in range(10):
                    try:
                        self.answers.append(infer(channel))
                    except grpc.RpcError as error:
                        self.problems.append(str(error))
                        return


def test_an_order_is_followed_by_all_workers_without_a_lost_or_wrong_answer(
    workers: "Workers", family: Family
) -> None:
    with channel_to(workers) as channel, Load(workers) as load:
        load.more()
        family.put(2)
        order(channel, "Load")
        assert of_each(workers) == {0: "2", 1: "2"}
        load.more()

    assert load.problems == []
    expected: dict[str, Any] = {}
    for version, answer in load.answers:
        np.testing.assert_allclose(answer, expected.setdefault(version, answer), atol=1e-5)
    assert set(expected) == {"1", "2"}
    assert np.abs(expected["1"] - expected["2"]).max() > 0.1


def test_a_worker_that_is_replaced_has_what_the_others_have(workers: "Workers", family: Family) -> None:
    family.put(2)  # nobody has said that it should be loaded
    replace(workers, 0)
    assert of_each(workers) == {0: "1", 1: "1"}

    with channel_to(workers) as channel:
        order(channel, "Load")
    assert of_each(workers) == {0: "2", 1: "2"}
    family.put(3)
    replace(workers, 1)
    assert of_each(workers) == {0: "2", 1: "2"}

    with channel_to(workers) as channel:
        order(channel, "Unload")
    unloaded = "model tiny cannot be served: it was unloaded"
    assert of_each(workers) == {0: unloaded, 1: unloaded}
    replace(workers, 0)
    assert of_each(workers) == {0: unloaded, 1: unloaded}

    with channel_to(workers) as channel:
        order(channel, "Load")
    assert of_each(workers) == {0: "3", 1: "3"}


def test_the_caller_hears_which_worker_could_not_follow(workers: "Workers", family: Family) -> None:
    with channel_to(workers) as channel:
        leader = worker_of(workers, channel)
        follower = 1 - leader
        pid = workers.pids(follower)[0]
        os.kill(pid, signal.SIGSTOP)
        problems: list[Any] = []

        def load() -> None:
            try:
                order(channel, "Load")
            except grpc.RpcError as error:
                problems.append(error)

        family.put(2)
        caller = threading.Thread(target=load)
        caller.start()
        workers.until(rf"\[{leader}\] tiny version 2 is ready")
        family.put(2, parameters=5)
        os.kill(pid, signal.SIGCONT)
        caller.join()

        (problem,) = problems
        assert problem.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert f"not in all workers: worker {follower}: version 2 is in the repository no more" in (
            problem.details()
        )
        assert of_each(workers) == {leader: "2", follower: "1"}
        order(channel, "Load")
        assert of_each(workers) == {0: "2", 1: "2"}


def test_an_order_is_followed_although_its_caller_has_gone(workers: "Workers", family: Family) -> None:
    family.put(2)
    with channel_to(workers) as channel:
        leader = worker_of(workers, channel)
        pid = workers.pids(1 - leader)[0]
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(grpc.RpcError) as caught:
            order(channel, "Load", timeout=1)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        os.kill(pid, signal.SIGCONT)
        order(channel, "Load")  # after the first

    assert of_each(workers) == {0: "2", 1: "2"}


def test_orders_through_several_workers_at_once_come_one_after_the_other(workers: "Workers") -> None:
    problems: list[str] = []
    channels: dict[int, grpc.Channel] = {}
    while len(channels) < 2:
        channel = channel_to(workers)
        channels[worker_of(workers, channel)] = channel

    def give(channel: grpc.Channel) -> None:
        for name in ("Unload", "Load") * 4:
            try:
                order(channel, name)
            except grpc.RpcError as error:
                problems.append(str(error))

    threads = [threading.Thread(target=give, args=(channel,)) for channel in channels.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for channel in channels.values():
        channel.close()

    assert problems == []
    assert of_each(workers) == {0: "1", 1: "1"}
