"""One session: arrays in, arrays out."""

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from polyhead_server.devices import CPU, CUDA, Device, on_cpu, on_cuda
from polyhead_server.engine import Arrays, Engine
from polyhead_server.engine.bound import BoundRuns
from polyhead_server.engine.memory import HostMemory
from polyhead_server.engine.runs import PlainRuns
from polyhead_server.errors import DeviceError, DeviceLostError, EngineError, RepositoryError, TooLargeError
from polyhead_server.repository import GraphName, Manifest, read_manifest
from polyhead_server.signature import signature_of


def manifest(repository: Path, family: str = "tiny") -> Manifest:
    return read_manifest(repository / family / "1", family=family, version=1)


def engine(
    repository: Path,
    manifest: Manifest,
    graph: GraphName = "attention",
    *,
    device: Device | None = None,
    lost: Callable[[], None] = lambda: None,
) -> Engine:
    file = repository / manifest.name / "1" / manifest.graphs[graph].file
    signature = signature_of(manifest, graph)
    return Engine(file, signature=signature, device=device or on_cpu(""), threads=1, lost=lost)


def feeds(batch: int = 2, tokens: int = 5) -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((batch, tokens, 16), np.float32)
    return {"x": x, "lengths": np.full(batch, tokens, np.int32)}


def test_it_returns_the_outputs_that_are_named(repository: Path) -> None:
    outputs = engine(repository, manifest(repository)).run(feeds(), ["attention.1", "output"])

    assert list(outputs) == ["attention.1", "output"]
    assert outputs["attention.1"].shape == (2, 4, 5, 5)
    np.testing.assert_allclose(outputs["attention.1"].sum(-1), 1, atol=1e-6)


def test_mapped_weights_give_the_same_numbers(repository: Path) -> None:
    one = manifest(repository)
    file = repository / "tiny" / "1" / "attention.onnx"
    mapped = Engine(
        file, signature=signature_of(one, "attention"), device=replace(on_cpu(""), packed=False), threads=1
    )

    expected = engine(repository, one).run(feeds(), ["output"])["output"]
    assert (mapped.device.packed, engine(repository, one).device.packed) == (False, True)
    np.testing.assert_allclose(mapped.run(feeds(), ["output"])["output"], expected, atol=1e-6)


def test_memory_of_a_huge_run_is_given_back_after_the_next_small_one(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = engine(repository, manifest(repository))
    session = one._runs._session  # type: ignore[attr-defined]
    shrunk: list[bool] = []

    class Watched:
        def run(self, names: list[str], inputs: dict[str, np.ndarray], options: ort.RunOptions) -> list[Any]:
            entry = "memory.enable_memory_arena_shrinkage"
            try:
                shrunk.append(options.get_run_config_entry(entry) == "cpu:0")
            except RuntimeError:
                shrunk.append(False)
            values: list[Any] = session.run(names, inputs, options)
            return values

    monkeypatch.setattr(one._runs, "_session", Watched())
    monkeypatch.setattr("polyhead_server.arena._KEPT_BYTES", 100_000)
    for tokens in (5, 64, 64, 5, 5):
        one.run(feeds(tokens=tokens), ["output"])

    assert shrunk == [False, False, False, True, False]


def test_it_runs_from_several_threads_at_once(repository: Path) -> None:
    one = engine(repository, manifest(repository))
    alone = one.run(feeds(), ["output"])["output"]
    results: list[np.ndarray] = []
    threads = [
        threading.Thread(target=lambda: results.append(one.run(feeds(), ["output"])["output"]))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(results) == 4
    assert all(np.array_equal(result, alone) for result in results)


def test_a_failed_run_is_an_engine_error_and_the_next_one_works(repository: Path) -> None:
    one = engine(repository, manifest(repository))
    with pytest.raises(EngineError, match=r"tiny\.attention failed"):
        one.run({"x": np.zeros((2, 5, 7), np.float32), "lengths": np.zeros(2, np.int32)}, ["output"])

    assert one.run(feeds(), ["output"])["output"].shape == (2, 5, 16)


def test_a_stopped_engine_fails(repository: Path) -> None:
    one = engine(repository, manifest(repository))
    one.stop()

    with pytest.raises(EngineError, match="stopped"):
        one.run(feeds(), ["output"])


def test_a_long_run_can_be_stopped(repository: Path) -> None:
    one = engine(repository, manifest(repository))
    one.run(feeds(), ["output"])
    failed = threading.Event()

    def run() -> None:
        try:
            while True:
                one.run(feeds(8, 300), ["output"])
        except EngineError:
            failed.set()

    thread = threading.Thread(target=run)
    thread.start()
    one.stop()
    thread.join(30)

    assert failed.is_set()


def test_a_graph_that_is_not_what_the_manifest_says_is_refused(repository: Path) -> None:
    right = manifest(repository)
    graph = right.graphs["attention"]
    shifted = [tensor.model_copy(update={"shape": [-1, 5, -1, -1]}) for tensor in graph.outputs[1:]]
    for outputs, message in (
        (
            [*graph.outputs[:-1]],
            r"attention\.onnx: the session's outputs must be \['attention.0', 'output'\]",
        ),
        ([graph.outputs[0], *shifted], r"attention\.0 must be FP32 \[2, 5, 8, 8\] at B=2, T=8, was float32"),
    ):
        wrong = right.model_copy(
            update={"graphs": {"attention": graph.model_copy(update={"outputs": outputs})}}
        )
        with pytest.raises(RepositoryError, match=message):
            engine(repository, wrong)


def test_a_file_that_onnxruntime_refuses_is_a_repository_error(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny" / "1").mkdir(parents=True)
    (tmp_path / "tiny" / "1" / "attention.onnx").write_bytes(b"not a model")

    with pytest.raises(RepositoryError, match=r"attention\.onnx cannot be loaded by onnxruntime"):
        engine(tmp_path, manifest(repository))


def test_a_session_that_fell_back_to_another_device_is_refused(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ort.InferenceSession
    monkeypatch.setattr(
        ort,
        "InferenceSession",
        lambda path, options, providers: real(path, options, [CPU]),
    )

    with pytest.raises(DeviceError, match="must run on CUDAExecutionProvider"):
        engine(repository, manifest(repository), device=on_cuda(""))


def test_a_graph_that_is_on_the_device_in_part_is_refused(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Session(ort.InferenceSession):  # type: ignore[misc]
        """Says that it is on CUDA; its nodes say where they are."""

        def __init__(self, path: str, options: ort.SessionOptions, providers: list[object]) -> None:
            super().__init__(path, options, [CPU])

        def get_providers(self) -> list[str]:
            return [CUDA, CPU]

    monkeypatch.setattr(ort, "InferenceSession", Session)

    with pytest.raises(
        DeviceError, match=r"attention\.onnx must run on CUDA.* as a whole, .* left .*\d MatMul.*to the CPU"
    ):
        engine(repository, manifest(repository), device=on_cuda(""))


def test_on_a_device_it_runs_over_bound_buffers(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = manifest(repository)
    plain = engine(repository, one).run(feeds(3, 7), ["output"])["output"]
    monkeypatch.setattr(
        "polyhead_server.engine.engine.runs_of",
        lambda session, signature, _device: BoundRuns(session, signature, HostMemory()),
    )
    bound = engine(repository, one)

    np.testing.assert_allclose(bound.run(feeds(3, 7), ["output"])["output"], plain, atol=1e-6)
    bound.stop()
    with pytest.raises(EngineError, match="stopped"):
        bound.run(feeds(), ["output"])


def test_a_lost_device_is_told_once_for_each_run(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []
    one = engine(repository, manifest(repository), lost=lambda: told.append(True))

    def fail(*_arguments: object) -> None:
        raise RuntimeError("CUDA failure 719: unspecified launch failure ; GPU=0")

    monkeypatch.setattr(one._runs, "run", fail)
    with pytest.raises(DeviceLostError):
        one.run(feeds(), ["output"])

    assert told == [True]


class RefusingRuns(PlainRuns):
    """Runs on the CPU that remember which arena they were to shrink, and fail where they are told to."""

    def __init__(self, session: ort.InferenceSession) -> None:
        super().__init__(session)
        self.shrunk: list[str | None] = []
        self.refuses = "nothing"
        self.words = ""
        self.closed = False

    def run(self, feeds: Arrays, outputs: Sequence[str], options: ort.RunOptions) -> Arrays:
        try:
            arenas = options.get_run_config_entry("memory.enable_memory_arena_shrinkage")
        except RuntimeError:
            arenas = None
        self.shrunk.append(arenas)
        if self.words or arenas == self.refuses:
            raise RuntimeError(self.words or f"no arena in the memory arena shrink list: {arenas}")
        return super().run(feeds, outputs, ort.RunOptions())

    def check(self) -> None:
        if "CUBLAS" in self.words:
            raise RuntimeError("CUDA failure 700: an illegal memory access was encountered")

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def on_card(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[ort.InferenceSession, Device]]:
    """Sessions are on the CPU, and engines believe that they are on card 1."""

    def opened(path: Path, *, device: Device, threads: int) -> tuple[ort.InferenceSession, Device]:
        return ort.InferenceSession(str(path), providers=[CPU]), device

    monkeypatch.setattr("polyhead_server.engine.engine.open_session", opened)
    return opened


@pytest.mark.parametrize(
    ("graphs", "refuses", "expected"),
    [
        (False, "nothing", [None, "gpu:1", None, "gpu:1"]),
        (False, "gpu:1", [None, "gpu:1", None, None]),
        (True, "nothing", [None, None, None]),
    ],
)
def test_a_cards_arena_is_shrunk_where_that_can_be_done(
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    on_card: object,
    graphs: bool,
    refuses: str,
    expected: list[str | None],
) -> None:
    made: list[RefusingRuns] = []

    def runs_of(session: ort.InferenceSession, *_rest: object) -> RefusingRuns:
        made.append(RefusingRuns(session))
        made[-1].refuses = refuses
        return made[-1]

    monkeypatch.setattr("polyhead_server.engine.engine.runs_of", runs_of)
    one = engine(repository, manifest(repository), device=replace(on_cuda("", 1), graphs=graphs))
    one.run(feeds(), ["output"])
    one.shrink()
    one.run(feeds(), ["output"])

    assert made[0].shrunk == expected


def test_after_a_lack_of_memory_the_arena_is_shrunk(
    repository: Path, monkeypatch: pytest.MonkeyPatch, on_card: object
) -> None:
    monkeypatch.setattr(
        "polyhead_server.engine.engine.runs_of", lambda session, *_rest: RefusingRuns(session)
    )
    one = engine(repository, manifest(repository), device=on_cuda(""))
    runs = one._runs
    assert isinstance(runs, RefusingRuns)
    runs.words = "CUDA failure 2: out of memory"
    with pytest.raises(TooLargeError):
        one.run(feeds(), ["output"])
    runs.words = ""
    one.run(feeds(), ["output"])

    assert runs.shrunk[-2:] == [None, "gpu:0"]


def test_what_a_library_calls_a_failed_product_may_be_a_lost_device(
    repository: Path, monkeypatch: pytest.MonkeyPatch, on_card: object
) -> None:
    monkeypatch.setattr(
        "polyhead_server.engine.engine.runs_of", lambda session, *_rest: RefusingRuns(session)
    )
    told: list[bool] = []
    one = engine(repository, manifest(repository), device=on_cuda(""), lost=lambda: told.append(True))
    runs = one._runs
    assert isinstance(runs, RefusingRuns)
    runs.words = "CUBLAS failure 13: CUBLAS_STATUS_EXECUTION_FAILED"
    with pytest.raises(DeviceLostError):
        one.run(feeds(), ["output"])

    assert told == [True]


def test_an_engine_that_is_closed_holds_nothing_and_runs_no_more(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "polyhead_server.engine.engine.runs_of",
        lambda session, signature, _device: BoundRuns(session, signature, HostMemory()),
    )
    one = engine(repository, manifest(repository))
    session = weakref.ref(one._runs._session)  # type: ignore[attr-defined]
    one.close()
    gc.collect()

    assert session() is None
    with pytest.raises(EngineError, match="stopped"):
        one.run(feeds(), ["output"])
