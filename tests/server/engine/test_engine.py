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
from tests.numerics import close
from tests.server.conftest import everything_on, pretend
from tests.server.engine.conftest import ragged

from polyhead_server.engine.device import CPU, CUDA, Device
from polyhead_server.engine.devices import choose_device, on_cpu, on_cuda
from polyhead_server.engine.engine import Arrays, Engine
from polyhead_server.errors import DeviceError, DeviceLostError, EngineError, RepositoryError, TooLargeError
from polyhead_server.repository.manifest import GraphName, Manifest, read_manifest
from polyhead_server.repository.signature import signature_of


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


def test_it_returns_the_outputs_that_are_named(repository: Path, device: str) -> None:
    outputs = engine(repository, manifest(repository), device=choose_device(device)).run(
        feeds(), ["attention.1", "output"]
    )

    assert list(outputs) == ["attention.1", "output"]
    assert outputs["attention.1"].shape == (2, 4, 5, 5)
    np.testing.assert_allclose(outputs["attention.1"].sum(-1), 1, atol=1e-5)


def test_mapped_weights_give_the_same_numbers(repository: Path) -> None:
    one = manifest(repository)
    file = repository / "tiny" / "1" / "attention.onnx"
    mapped = Engine(
        file, signature=signature_of(one, "attention"), device=replace(on_cpu(""), packed=False), threads=1
    )

    expected = engine(repository, one).run(feeds(), ["output"])["output"]
    assert (mapped.device.packed, engine(repository, one).device.packed) == (False, True)
    close(mapped.run(feeds(), ["output"])["output"], expected)


def test_it_runs_from_several_threads_at_once(repository: Path, device: str) -> None:
    one = engine(repository, manifest(repository), device=choose_device(device))
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


def test_no_run_changes_what_another_has_returned(repository: Path, device: str) -> None:
    one = engine(repository, manifest(repository), device=choose_device(device))
    first = one.run(feeds(), one.outputs)
    kept = {name: value.copy() for name, value in first.items()}
    one.run(feeds() | {"x": feeds()["x"] + 1}, one.outputs)

    assert all(np.array_equal(value, kept[name]) for name, value in first.items())


def test_a_failed_run_is_an_engine_error_and_the_next_one_works(repository: Path, device: str) -> None:
    one = engine(repository, manifest(repository), device=choose_device(device))
    with pytest.raises(EngineError, match=r"tiny\.attention failed"):
        one.run({"x": np.zeros((2, 5, 7), np.float32), "lengths": np.zeros(2, np.int32)}, ["output"])

    assert one.run(feeds(), ["output"])["output"].shape == (2, 5, 16)


def test_a_stopped_engine_fails(repository: Path, device: str) -> None:
    one = engine(repository, manifest(repository), device=choose_device(device))
    one.stop()

    with pytest.raises(EngineError, match="stopped"):
        one.run(feeds(), ["output"])


def test_a_long_run_can_be_stopped(repository: Path, device: str) -> None:
    one = engine(repository, manifest(repository), device=choose_device(device))
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
    thread.join(120)

    assert failed.is_set()


def test_a_graph_that_is_not_what_the_manifest_says_is_refused(repository: Path, device: str) -> None:
    right = manifest(repository)
    graph = right.graphs["attention"]
    shifted = [replace(tensor, axes=("B", "D", "T", "T")) for tensor in graph.outputs[1:]]
    absent = replace(graph.outputs[0], name="absent")
    for outputs, message in (
        ([*graph.outputs, absent], r"attention\.onnx fails on its first run"),
        ([graph.outputs[0], *shifted], r"attention\.0 must be FP32 \[2, 16, 8, 8\] at B=2, T=8, was float32"),
    ):
        wrong = right.model_copy(
            update={"graphs": {"attention": graph.model_copy(update={"outputs": outputs})}}
        )
        with pytest.raises(RepositoryError, match=message):
            engine(repository, wrong, device=choose_device(device))


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
        lambda path, options, **_: real(path, options, [CPU]),
    )

    with pytest.raises(DeviceError, match="must run on CUDAExecutionProvider"):
        engine(repository, manifest(repository), device=on_cuda(""))


def test_a_graph_that_is_on_the_device_in_part_is_refused(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, CUDA, everything_on(CPU))

    with pytest.raises(
        DeviceError, match=r"attention\.onnx must run on CUDA.* as a whole, .* left .*\d MatMul.*to the CPU"
    ):
        engine(repository, manifest(repository), device=on_cuda(""))


class Refusing(ort.InferenceSession):  # type: ignore[misc]
    """Runs on the CPU, remembers its inputs and which arena to shrink, and fails where a test says so."""

    refuses = "nothing"
    words = ""

    def __init__(self, path: str) -> None:
        super().__init__(path, providers=[CPU])
        self.shrunk: list[str | None] = []
        self.fed: Arrays = {}

    def run(self, outputs: Sequence[str], feeds: Arrays, options: ort.RunOptions) -> list[Any]:
        self.fed = feeds
        try:
            arena = options.get_run_config_entry("memory.enable_memory_arena_shrinkage")
        except RuntimeError:
            arena = None
        self.shrunk.append(arena)
        if self.words or arena == self.refuses:
            raise RuntimeError(self.words or f"no arena in the memory arena shrink list: {arena}")
        return super().run(outputs, feeds)  # type: ignore[no-any-return]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Refusing]:
    """Sessions are on the CPU, and engines believe that they are on a GPU."""
    sessions: list[Refusing] = []

    def open_session(path: Path, **_options: object) -> Refusing:
        sessions.append(Refusing(str(path)))
        return sessions[-1]

    monkeypatch.setattr("polyhead_server.engine.session.open_session", open_session)
    return sessions


@pytest.mark.parametrize("family", ["tiny", "tiny-tokens", "tiny-masked"])
def test_sequences_are_padded_as_a_device_needs_it(
    repository: Path, opened: list[Refusing], family: str
) -> None:
    """With all inputs, with masks left out, and no further than the graph takes; on a GPU to eights."""
    plain = engine(repository, one := manifest(repository, family))
    padded = engine(repository, one, device=replace(plain.device, length_multiple=20))
    gpu = engine(repository, one, device=on_cuda(""))
    longest = plain.signature.max_tokens or 40
    for tokens, wider, eights in ((1, 20, 8), (20, 20, 24), (25, min(40, longest), min(32, longest))):
        for given in (plain.signature.example(2, tokens), ragged(plain.signature, 2, tokens, seed=0)):
            expected = plain.run(given, plain.outputs)
            for name, value in padded.run(given, plain.outputs).items():
                np.testing.assert_array_equal(value, expected[name])
            gpu.run(given, plain.outputs)
            primary = plain.signature.primary.name
            assert [session.fed[primary].shape[1] for session in opened[1:]] == [wider, eights]


@pytest.mark.parametrize(
    ("refuses", "expected"),
    [("nothing", [None, "gpu:1", None, "gpu:1"]), ("gpu:1", [None, "gpu:1", None, None])],
)
def test_the_arena_of_a_gpu_is_shrunk_where_that_can_be_done(
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    opened: list[Refusing],
    refuses: str,
    expected: list[str | None],
) -> None:
    monkeypatch.setattr(Refusing, "refuses", refuses)
    one = engine(repository, manifest(repository), device=on_cuda("", 1))
    one.run(feeds(), ["output"])
    one.shrink()
    one.run(feeds(), ["output"])

    assert opened[0].shrunk == expected


def test_after_a_lack_of_memory_the_arena_is_shrunk(repository: Path, opened: list[Refusing]) -> None:
    one = engine(repository, manifest(repository), device=on_cuda(""))
    opened[0].words = "CUDA failure 2: out of memory"
    with pytest.raises(TooLargeError):
        one.run(feeds(), ["output"])
    opened[0].words = ""
    one.run(feeds(), ["output"])

    assert opened[0].shrunk[-2:] == [None, "gpu:0"]


def test_memory_of_a_huge_run_is_given_back_after_the_next_small_one(
    repository: Path, monkeypatch: pytest.MonkeyPatch, opened: list[Refusing]
) -> None:
    one = engine(repository, manifest(repository))
    monkeypatch.setattr("polyhead_server.engine.arena._KEPT_BYTES", 100_000)
    for tokens in (5, 64, 64, 5, 5):
        one.run(feeds(tokens=tokens), ["output"])

    assert opened[0].shrunk[1:] == [None, None, None, "cpu:0", None]


def test_a_lost_device_is_reported_once_for_each_run(repository: Path, opened: list[Refusing]) -> None:
    reports: list[bool] = []
    one = engine(repository, manifest(repository), lost=lambda: reports.append(True))
    opened[0].words = "CUDA failure 719: unspecified launch failure ; GPU=0"
    with pytest.raises(DeviceLostError):
        one.run(feeds(), ["output"])

    assert reports == [True]


def test_what_a_library_calls_a_failed_product_may_be_a_lost_device(
    repository: Path, monkeypatch: pytest.MonkeyPatch, opened: list[Refusing]
) -> None:
    def ask(device: Device) -> None:
        assert device.number == 2
        raise RuntimeError("CUDA failure 700: an illegal memory access was encountered")

    monkeypatch.setattr("polyhead_server.engine.engine.ask_device", ask)
    reports: list[bool] = []
    one = engine(repository, manifest(repository), device=on_cuda("", 2), lost=lambda: reports.append(True))
    opened[0].words = "CUBLAS failure 13: CUBLAS_STATUS_EXECUTION_FAILED"
    with pytest.raises(DeviceLostError):
        one.run(feeds(), ["output"])

    assert reports == [True]


def test_an_engine_that_is_closed_holds_nothing_and_runs_no_more(repository: Path, device: str) -> None:
    one = engine(repository, manifest(repository), device=choose_device(device))
    session = weakref.ref(one._session)
    one.close()
    gc.collect()

    assert session() is None
    with pytest.raises(EngineError, match="stopped"):
        one.run(feeds(), ["output"])
