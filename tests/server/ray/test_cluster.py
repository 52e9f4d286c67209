"""Two families with two replicas each on two nodes, through Serve's gRPC proxies; then what breaks."""

import json
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tests.interop.test_tritonclient import PYTHON
from tests.server.conftest import Running, procedure
from tests.server.ray.conftest import ALONE, RayCluster

from polyhead_client import Client
from polyhead_proto import messages as pb

pytestmark = [ALONE, pytest.mark.timeout(1800)]

X = np.random.default_rng(5).standard_normal((1, 5, 16)).astype(np.float32)
LONG = np.random.default_rng(5).standard_normal((1, 600, 16)).astype(np.float32)
MIDDLE = LONG[:, :200]
_PAUSE = 0.01
"""Between two calls, so that a machine of two cores can start replicas beside them."""

OWN = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]


@pytest.fixture(scope="module")
def channel(cluster: RayCluster) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(cluster.address, options=OWN) as one:
        yield one


def call(channel: grpc.Channel, name: str, request: Any, **options: Any) -> Any:
    return procedure(channel, name)(request, **({"timeout": 120} | options))


def request(model: str = "tiny", x: Any = X, output: str = "output") -> pb.ModelInferRequest:
    return Running.request(model, {"x": x}, outputs=[output])


def trailers(error: Any) -> dict[str, Any]:
    return dict(error.trailing_metadata())


class Load:
    """Callers of both families: some that retry, some that do not."""

    def __init__(self, address: str) -> None:
        self.codes: Counter[str] = Counter()
        """How calls without a retry have ended."""
        self.answered = 0
        """How many calls with retries have."""
        self.errors: list[Exception] = []
        """What those raised."""
        self._address = address
        self._stopped = threading.Event()
        self._lock = threading.Lock()

    def ids(self) -> Any:
        return np.full((1, 4), 5, np.int64)

    def retrying(self, model: str) -> None:
        """Encodes with retries."""
        with Client(self._address, timeout=60, patient=True, options=OWN) as client:
            while not self._stopped.is_set():
                try:
                    client.encode(X if model == "tiny" else self.ids(), model=model)
                except Exception as error:
                    self.errors.append(error)
                    return
                time.sleep(_PAUSE)
                with self._lock:
                    self.answered += 1

    def once(self) -> None:
        """Calls without retries."""
        with grpc.insecure_channel(self._address, options=[*OWN, ("grpc.enable_retries", 0)]) as channel:
            while not self._stopped.is_set():
                code = "OK"
                try:
                    call(channel, "ModelInfer", request("tiny.attention", MIDDLE, "attention.0"), timeout=60)
                except grpc.RpcError as error:
                    code = error.code().name
                time.sleep(_PAUSE)
                with self._lock:
                    self.codes[code] += 1

    @contextmanager
    def running(self) -> Iterator[None]:
        work: list[tuple[Callable[..., None], tuple[str, ...]]] = [
            (self.retrying, ("tiny",)),
            (self.retrying, ("tiny-tokens",)),
            (self.once, ()),
            (self.once, ()),
        ]
        threads = [threading.Thread(target=run, args=arguments) for run, arguments in work]
        for thread in threads:
            thread.start()
        try:
            self.wait_for_answers()
            yield
            self.wait_for_answers()
        finally:
            self._stopped.set()
            for thread in threads:
                thread.join()

    def wait_for_answers(self, count: int = 20) -> None:
        """Returns after so many more answers of both kinds."""
        until = time.monotonic() + 240
        answered, ok = self.answered + count, self.codes["OK"] + count
        while (self.answered < answered or self.codes["OK"] < ok) and not self.errors:
            assert time.monotonic() < until, (self.answered, self.codes)
            time.sleep(0.05)

    def check(self) -> None:
        """Every caller that retries has got its answers; the others those, or UNAVAILABLE."""
        assert not self.errors
        assert set(self.codes) <= {"OK", "UNAVAILABLE"}, self.codes


# ---- As on a server of its own -----------------------------------------------------------------


@pytest.mark.skipif(not PYTHON.exists(), reason="no environment with tritonclient")
def test_an_unmodified_tritonclient_makes_every_call(cluster: RayCluster) -> None:
    script = Path(__file__).parents[2] / "interop" / "tritonclient_calls.py"

    done = subprocess.run(
        [PYTHON, script, cluster.address, "polyhead", ""],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == "all calls worked\n"


# ---- What changes, and what breaks -------------------------------------------------------------


def test_a_version_is_replaced_without_a_lost_answer(cluster: RayCluster, channel: grpc.Channel) -> None:
    new = shutil.copytree(cluster.models / "tiny" / "1", cluster.models / "tiny" / "2") / "manifest.json"
    new.write_text(json.dumps(json.loads(new.read_text()) | {"version": 2}))
    others = cluster.replicas("tiny-tokens")
    load = Load(cluster.address)

    with load.running():
        cluster.deploy(ray_actor_options={"num_cpus": 2})  # to change a deployment replaces its replicas

    load.check()
    assert set(load.codes) == {"OK"}
    index = call(channel, "RepositoryIndex", pb.RepositoryIndexRequest()).models
    assert {one.version for one in index if one.name == "tiny"} == {"2"}
    assert cluster.replicas("tiny-tokens") == others


def test_a_replica_that_is_killed_costs_no_answer(cluster: RayCluster) -> None:
    load = Load(cluster.address)

    with load.running():
        cluster.replicas("tiny")[0].kill()
        load.wait_for_answers(100)

    load.check()


def test_a_node_that_fails_costs_no_answer(cluster: RayCluster, channel: grpc.Channel) -> None:
    load = Load(cluster.address)

    with load.running():
        cluster.do("end")
        load.wait_for_answers(100)

    load.check()
    assert call(channel, "ServerReady", pb.ServerReadyRequest(), wait_for_ready=True).ready
