"""Sessions of OpenVINO: the same numbers, no more threads than it may have, and not a word to anybody."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from tests.numerics import close
from tests.server.engine.conftest import Open, ragged

from polyhead_client import Client
from polyhead_load.sweep.server import started_server
from polyhead_server.engine import openvino_session
from polyhead_server.engine.openvino_session import OpenVinoSession, capabilities, load
from polyhead_server.errors import DeviceError, EngineError, RepositoryError

pytestmark = pytest.mark.skipif(find_spec("openvino") is None, reason="OpenVINO is not installed")


def opened(repository: Path, family: str = "tiny", graph: str = "model", **options: Any) -> OpenVinoSession:
    path = repository / family / "1" / f"{graph}.onnx"
    settings: dict[str, Any] = {"precision": "fp32", "threads": 1, "lanes": 1}
    return OpenVinoSession(path, **(settings | options))


@pytest.mark.parametrize("family", ["tiny", "tiny-tokens", "tiny-masked"])
@pytest.mark.parametrize("graph", ["fast", "attention"])
def test_it_gives_what_onnxruntime_gives(repository: Path, open_graph: Open, family: str, graph: str) -> None:
    session, signature = open_graph(family, graph)
    ours = opened(repository, family, "model" if graph == "fast" else graph)
    names = [spec.name for spec in signature.results]

    for seed, size in enumerate([(1, 1), (3, 9), (2, 31), (3, 9)]):
        feeds = ragged(signature, *size, seed=seed)
        values = ours.prepare()(feeds, names, shrink=bool(seed))
        for name, value, expected in zip(names, values, session.run(names, dict(feeds)), strict=True):
            close(value, expected, scale=1 if name.startswith("attention") else None)


def test_a_server_gives_what_a_server_on_onnxruntime_gives(repository: Path) -> None:
    """As a process, which prepares itself for onnxruntime: that must not change what OpenVINO computes."""
    found = []
    for device in ("cpu", "openvino"):
        flags = ["--http-port", "off", "--device", device]
        with started_server(repository, flags) as server, Client(server.address) as client:
            found.append(client.encode(np.array([[3, 9, 31, 7, 12]]), model="tiny-tokens").output)

    close(found[1], found[0])


def test_it_takes_the_threads_and_lanes_that_it_is_given_and_computes_in_fp32(repository: Path) -> None:
    compiled = opened(repository, threads=1, lanes=2).compiled

    def value(name: str) -> Any:
        return compiled.get_property(name)

    assert value("INFERENCE_NUM_THREADS") <= 2
    assert value("NUM_STREAMS") <= 2
    assert not value("ENABLE_CPU_PINNING")
    assert value("INFERENCE_PRECISION_HINT").get_type_name() == "f32"


def test_a_graph_that_is_computed_otherwise_than_asked_for_is_refused(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Which other precisions there are depends on the processor: fp32 is always there.
    core = openvino_session._core()
    fp32 = {"INFERENCE_PRECISION_HINT": "f32"}
    other = SimpleNamespace(
        read_model=core.read_model,
        compile_model=lambda model, device, settings: core.compile_model(model, device, settings | fp32),
    )
    monkeypatch.setattr(openvino_session, "_core", lambda: other)
    with pytest.raises(
        DeviceError, match=r"model\.onnx must be computed in bf16 on the CPU, OpenVINO does in f32"
    ):
        opened(repository, precision="bf16")


def test_a_run_that_was_cancelled_before_it_begins_does_not(repository: Path, open_graph: Open) -> None:
    _, signature = open_graph("tiny", "fast")
    run = opened(repository).prepare()
    run.cancel()

    with pytest.raises(EngineError, match="cancelled"):
        run(ragged(signature, 1, 3, seed=0), ["output"], shrink=False)


def test_after_a_failed_run_the_graph_is_compiled_anew(repository: Path, open_graph: Open) -> None:
    _, signature = open_graph("tiny-masked", "fast")
    session, feeds = opened(repository, "tiny-masked"), ragged(signature, 2, 5, seed=0)
    (expected,), first = session.prepare()(feeds, ["output"], shrink=False), session.compiled
    with pytest.raises(RuntimeError):
        session.prepare()({**feeds, "mask": np.ones((2, 7, 7), np.bool_)}, ["output"], shrink=False)
    (value,) = session.prepare()(feeds, ["output"], shrink=False)

    assert session.compiled is not first
    close(value, expected)


def test_shrinking_waits_for_runs_beside_it(repository: Path, open_graph: Open) -> None:
    _, signature = open_graph("tiny", "fast")
    session, feeds = opened(repository, lanes=2), ragged(signature, 8, 100, seed=0)
    (expected,) = session.prepare()(feeds, ["output"], shrink=False)

    def run(_: int) -> Any:
        return session.prepare()(feeds, ["output"], shrink=True)[0]

    with ThreadPoolExecutor(2) as pool:
        values = list(pool.map(run, range(100)))

    for value in values:
        np.testing.assert_array_equal(value, expected)
    assert not session.idle


def test_an_operator_that_openvino_lacks_is_named(tmp_path: Path) -> None:
    value = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("Unheard", ["a"], ["b"], domain="com.microsoft")
    graph = onnx.helper.make_graph(
        [node], "g", [value("a", onnx.TensorProto.FLOAT, [1])], [value("b", onnx.TensorProto.FLOAT, [1])]
    )
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "odd.onnx")

    with pytest.raises(RepositoryError, match=r"odd\.onnx .* lacks Unheard: serve it with --device cpu"):
        OpenVinoSession(tmp_path / "odd.onnx", precision="fp32", threads=1, lanes=1)


def test_what_is_no_graph_is_refused(repository: Path) -> None:
    with pytest.raises(RepositoryError, match=r"weights\.bin cannot be loaded by OpenVINO \d"):
        OpenVinoSession(repository / "tiny" / "1" / "weights.bin", precision="fp32", threads=1, lanes=1)


def test_attention_in_bf16_sums_to_one(repository: Path, open_graph: Open) -> None:
    if "BF16" not in capabilities():
        pytest.skip("this processor has no BF16")
    _, signature = open_graph("tiny-tokens", "attention")
    session = opened(repository, "tiny-tokens", "attention", precision="bf16")
    feeds = {**ragged(signature, 2, 31, seed=1), "lengths": np.array([31, 17], np.int32)}
    names = [spec.name for spec in signature.results if spec.role == "attention"]

    for weights in session.prepare()(feeds, names, shrink=False):
        for row, length in enumerate(feeds["lengths"]):
            np.testing.assert_allclose(weights[row, :, :length].sum(-1), 1, rtol=0, atol=1e-5)


def test_one_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    load.cache_clear()
    try:
        with pytest.raises(DeviceError, match=r"not installed: pip install 'polyhead\[openvino\]'"):
            load()
    finally:
        load.cache_clear()


def test_it_reports_nothing_to_anybody(tmp_path: Path) -> None:
    """Where its package for telemetry is installed, importing OpenVINO itself sends an event."""
    (tmp_path / "openvino_telemetry").mkdir()
    (tmp_path / "openvino_telemetry" / "__init__.py").write_text("print('reported')")
    program = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from polyhead_server.engine.devices import choose_device
print("openvino" in sys.modules)
print(choose_device("openvino").name)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["False", "openvino"]
