"""The repository changes while requests come in: every answer is one version's own."""

import asyncio
import gc
import hashlib
import json
import shutil
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tests.server.conftest import fails
from tests.waiting import until

from polyhead_proto import messages as pb
from polyhead_server import GrpcServer, Settings
from polyhead_server.engine.engine import Engine
from polyhead_server.errors import StartError

X = np.random.default_rng(6).normal(size=(2, 5, 16)).astype(np.float32)
TOKEN = "a-token-for-management"


@pytest.fixture(scope="module")
def exported(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two encoders of one family, `a` and `b`, which differ in their weights."""
    one = repository / "tiny" / "1"
    other = shutil.copytree(one, tmp_path_factory.mktemp("b") / "tiny" / "1")
    weights = (-np.fromfile(other / "weights.bin", np.float32)).tobytes()
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["files"]["weights.bin"]["sha256"] = hashlib.sha256(weights).hexdigest()
    (other / "weights.bin").write_bytes(weights)
    (other / "manifest.json").write_text(json.dumps(manifest))
    return {"a": one, "b": other}


class Repository:
    """A repository that changes as one changes it by hand."""

    def __init__(self, folder: Path, exported: dict[str, Path]) -> None:
        self.folder = folder
        self._exported = exported

    def put(self, version: int, which: str) -> None:
        """Puts an encoder in place, as export does: moved there as a whole."""
        staged = shutil.copytree(self._exported[which], self.folder / f".staged-{version}")
        manifest = json.loads((staged / "manifest.json").read_text())
        (staged / "manifest.json").write_text(json.dumps(manifest | {"version": version}))
        target = self.folder / "tiny" / str(version)
        target.parent.mkdir(exist_ok=True)
        if target.exists():
            target.rename(self.folder / ".old")
        staged.rename(target)
        shutil.rmtree(self.folder / ".old", ignore_errors=True)

    def remove(self, version: int) -> None:
        (self.folder / "tiny" / str(version)).rename(self.folder / ".gone")
        shutil.rmtree(self.folder / ".gone")


@pytest.fixture
def models(tmp_path: Path, exported: dict[str, Path]) -> Repository:
    one = Repository(tmp_path / "models", exported)
    one.folder.mkdir()
    one.put(1, "a")
    return one


@pytest.fixture
def answers(serve: Any, exported: dict[str, Path], tmp_path: Path) -> dict[str, Any]:
    """What each encoder answers, from servers of their own."""
    results = {}
    for name, folder in exported.items():
        alone = serve(models=folder.parent.parent)
        results[name] = {
            "output": alone.infer("tiny", {"x": X})["output"],
            "attention.1": alone.infer("tiny.attention", {"x": X})["attention.1"],
        }
    assert np.abs(results["a"]["output"] - results["b"]["output"]).max() > 0.1
    return results


class Load:
    """Callers that never pause, and check every answer."""

    def __init__(self, server: Any, answers: dict[str, Any], callers: int = 3) -> None:
        self._server = server
        self._answers = answers
        self._stop = threading.Event()
        self._lock = threading.Condition()
        self.seen: list[str] = []
        self.problems: list[str] = []
        self._threads = [
            threading.Thread(target=self._call, args=("tiny" if index else "tiny.attention",))
            for index in range(callers)
        ]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def until(self, which: str, count: int = 10) -> None:
        """Waits until the next answers are all this encoder's."""
        with self._lock:
            self.seen.clear()

            def all_of_it() -> bool:
                return bool(self.problems) or (len(self.seen) >= count and set(self.seen[-count:]) == {which})

            assert self._lock.wait_for(all_of_it, 240), f"no {which}: {self.seen[-count:]}"
        assert self.problems == []

    def _call(self, model: str) -> None:
        output = "attention.1" if model.endswith("attention") else "output"
        while not self._stop.is_set():
            try:
                value = self._server.infer(model, {"x": X})[output]
                matching = [
                    name
                    for name, expected in self._answers.items()
                    if np.allclose(value, expected[output], atol=1e-5)
                ]
                found, problem = "".join(matching), "" if len(matching) == 1 else "no encoder's answer"
            except grpc.RpcError as error:
                found, problem = "", f"{error.code()}: {error.details()}"
            with self._lock:
                self.seen.append(found)
                if problem:
                    self.problems.append(problem)
                self._lock.notify_all()


def index(server: Any) -> dict[tuple[str, str], tuple[str, str]]:
    return {(one.name, one.version): (one.state, one.reason) for one in server.call("RepositoryIndex").models}


# ---- Poll ------------------------------------------------------------------------------------------


def test_versions_come_change_break_and_go_without_a_wrong_answer(
    serve: Any, models: Repository, answers: dict[str, Any]
) -> None:
    server = serve(models=models.folder, repository_mode="poll", poll_seconds=0.05)
    with Load(server, answers) as load:
        load.until("a")
        models.put(2, "b")
        load.until("b")
        assert index(server) == {("tiny", "2"): ("READY", ""), ("tiny.attention", "2"): ("READY", "")}

        models.put(2, "a")
        load.until("a")

        with (models.folder / "tiny" / "2" / "weights.bin").open("r+b") as file:
            file.write(bytes(1000))
        manifest = models.folder / "tiny" / "2" / "manifest.json"
        manifest.write_text(manifest.read_text() + " ")
        until(lambda: "weights.bin does not have the SHA-256" in index(server)["tiny", "2"][1])
        assert index(server)["tiny", "2"][0] == "READY"
        load.until("a")

        models.put(3, "b")
        load.until("b")
        models.remove(3)
        models.put(2, "a")
        load.until("a")
        assert list(index(server)) == [("tiny", "2"), ("tiny.attention", "2")]
    assert load.problems == []


def test_a_family_that_comes_later_is_served_and_one_that_goes_is_not(
    serve: Any, models: Repository, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with caplog.at_level("INFO"):
        server = serve(models=empty, repository_mode="poll", poll_seconds=0.05)
    assert f"nothing to serve yet: --models must hold at least one model, {empty} has none" in caplog.text
    assert "serving no model on " in caplog.text
    assert not server.call("ServerReady").ready
    shutil.copytree(models.folder / "tiny", empty / ".staged")
    (empty / ".staged").rename(empty / "tiny")
    until(lambda: bool(server.call("ServerReady").ready))
    assert server.infer("tiny", {"x": X})["output"].shape == X.shape

    shutil.rmtree(empty / "tiny")
    until(lambda: not server.call("RepositoryIndex").models)

    with fails(grpc.StatusCode.NOT_FOUND):
        server.infer("tiny", {"x": X})
    assert not server.call("ServerReady").ready


def test_without_a_mode_nothing_changes(serve: Any, models: Repository, answers: dict[str, Any]) -> None:
    server = serve(models=models.folder)
    models.put(2, "b")
    shutil.rmtree(models.folder / "tiny" / "1")

    np.testing.assert_allclose(server.infer("tiny", {"x": X})["output"], answers["a"]["output"], atol=1e-5)


# ---- Explicit --------------------------------------------------------------------------------------


@pytest.fixture
def managed(serve: Any, models: Repository, tmp_path: Path) -> Any:
    (tmp_path / "token").write_text(TOKEN)
    return serve(models=models.folder, repository_mode="explicit", management_token_file=tmp_path / "token")


def order(server: Any, name: str, model: str, token: str | None = TOKEN, **parameters: Any) -> Any:
    kind = {"Load": pb.RepositoryModelLoadRequest, "Unload": pb.RepositoryModelUnloadRequest}[name]
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    request = kind(model_name=model, parameters=parameters)
    return server.call(f"RepositoryModel{name}", request, metadata=metadata, timeout=60)


def refused(call: Callable[[], Any]) -> tuple[Any, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    return error.code(), error.details()


def test_a_load_takes_the_newest_over_and_an_unload_takes_it_away(
    managed: Any, models: Repository, answers: dict[str, Any]
) -> None:
    assert "model_repository" in managed.call("ServerMetadata").extensions
    with Load(managed, answers) as load:
        load.until("a")
        models.put(2, "b")
        order(managed, "Load", "tiny")
        load.until("b")
        order(managed, "Load", "tiny")
        load.until("b")
    order(managed, "Unload", "tiny", unload_dependents=pb.ModelRepositoryParameter(bool_param=False))

    code, message = refused(lambda: managed.infer("tiny", {"x": X}))
    assert (code, message) == (
        grpc.StatusCode.UNAVAILABLE,
        "model tiny cannot be served: it was unloaded",
    )
    assert index(managed)["tiny.attention", "2"] == ("UNAVAILABLE", "it was unloaded")
    order(managed, "Load", "tiny")
    np.testing.assert_allclose(managed.infer("tiny", {"x": X})["output"], answers["b"]["output"], atol=1e-5)


def test_sessions_that_are_out_of_service_are_let_go(
    managed: Any, models: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines: list[weakref.ref[Engine]] = []
    real = Engine.run

    def run(engine: Engine, *arguments: Any) -> Any:
        engines.append(weakref.ref(engine))
        return real(engine, *arguments)

    monkeypatch.setattr(Engine, "run", run)
    for model in ("tiny", "tiny.attention"):
        managed.infer(model, {"x": X})
    assert len({id(engine()) for engine in engines}) == 2

    order(managed, "Unload", "tiny")

    def all_gone() -> bool:
        gc.collect()
        return all(engine() is None for engine in engines)

    until(all_gone)


def test_an_unloaded_version_leaves_no_counters_however_often_it_was_loaded(managed: Any) -> None:
    def count() -> Any:
        managed.infer("tiny", {"x": X})
        (one,) = managed.call("ModelStatistics", pb.ModelStatisticsRequest(name="tiny")).model_stats
        return one.inference_stats.success.count

    first = count()
    for _ in range(3):
        order(managed, "Unload", "tiny")
        names = {
            name
            for name, samples in managed.runtime.registry.metrics.totals()["tiny", "1"].samples.items()
            if samples
        }
        assert names == {"polyhead_model_ready"}  # the index shows it, too
        order(managed, "Load", "tiny")
        assert count() == 1

    assert first >= 1


@pytest.mark.parametrize("name", ["Load", "Unload"])
def test_only_the_management_token_opens_this(managed: Any, name: str) -> None:
    assert refused(lambda: order(managed, name, "tiny", None))[0] is grpc.StatusCode.UNAUTHENTICATED
    assert refused(lambda: order(managed, name, "tiny", "wrong"))[0] is grpc.StatusCode.PERMISSION_DENIED
    assert managed.infer("tiny", {"x": X})["output"].shape == X.shape


@pytest.mark.parametrize("parameter", ["config", "file:1/model.onnx"])
def test_nothing_of_a_model_comes_from_a_request(managed: Any, parameter: str) -> None:
    given: dict[str, Any] = {parameter: pb.ModelRepositoryParameter(bytes_param=b"x")}

    code, message = refused(lambda: order(managed, "Load", "tiny", **given))

    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "models come from the server's own repository" in message


def test_it_is_off_unless_it_is_turned_on(server: Any) -> None:
    assert refused(lambda: order(server, "Load", "tiny"))[0] is grpc.StatusCode.UNIMPLEMENTED
    assert "model_repository" not in server.call("ServerMetadata").extensions


def test_what_cannot_work_is_refused_at_the_start(models: Repository) -> None:
    settings = Settings(models=models.folder, port=0, device="cpu", repository_mode="explicit")

    async def create() -> None:
        GrpcServer(settings)

    with pytest.raises(StartError, match="explicit must come with --management-token-file"):
        asyncio.run(create())
