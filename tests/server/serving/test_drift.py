"""What another precision changes, on sentences or random inputs; what company changes, which is nothing."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from tests.encoders import BERT, MODERN, seeded
from tests.server.graphs import OpenGraph, manifest_of

from polyhead_client import Client
from polyhead_export import export_family
from polyhead_export.precision import Precision
from polyhead_model import EncoderConfig
from polyhead_model.attention_config import Disentangled
from polyhead_model.task_heads import Convolution, Dense
from polyhead_server.engine.dataflow import outputs_after
from polyhead_server.engine.device import Device
from polyhead_server.engine.devices import choose_device, on_openvino
from polyhead_server.engine.engine import Arrays, Engine
from polyhead_server.repository.manifest import GraphName
from polyhead_server.repository.scanning import VersionFolder, scan, scan_family
from polyhead_server.repository.signature import Signature, signature_of
from polyhead_server.serving import loading
from polyhead_server.serving.drift import MEASURED, measure_drift, same_bits
from polyhead_server.serving.loading import drift_on
from polyhead_server.serving.tokeniser import Tokeniser

ENGINES: Mapping[str, GraphName] = {"tiny": "attention", "tiny-tokens": "attention", "tiny-masked": "fast"}


class Off:
    """Gives an engine's numbers after a change; remembers what it was asked."""

    def __init__(self, engine: Engine, change: Any) -> None:
        self._engine = engine
        self._change = change
        self.asked: list[Arrays] = []

    def run(self, feeds: Arrays, outputs: Sequence[str]) -> Arrays:
        self.asked.append(feeds)
        return {
            name: self._change(name, value, feeds) for name, value in self._engine.run(feeds, outputs).items()
        }

    def stop(self) -> None: ...

    def close(self) -> None: ...


def opened(repository: Path, family: str) -> tuple[Engine, Signature, Tokeniser | None]:
    graph, manifest = OpenGraph(repository, family, ENGINES[family]), manifest_of(repository, family)
    tokeniser = None
    if manifest.tokenizer is not None:
        file = repository / family / "1" / manifest.tokenizer.file
        tokeniser = Tokeniser(file, max_tokens=manifest.text_max_tokens)
    return graph.engine, graph.signature, tokeniser


@pytest.mark.parametrize("family", ENGINES)
def test_the_same_numbers_have_no_drift(repository: Path, family: str) -> None:
    engine, signature, tokeniser = opened(repository, family)

    drift = measure_drift(engine, engine, signature, tokeniser)

    sentences = f"{len(MEASURED)} sentences"
    assert drift["inputs"] == (sentences if tokeniser else "random inputs")
    assert set(drift["deviations"].values()) == {0.0}
    assert drift["cosines"]["output"]["least"] == pytest.approx(1)
    assert set(drift["other_top_keys"].values()) <= {0.0}
    assert {name for name in drift["deviations"] if name.startswith("attention")} == set(
        drift["other_top_keys"]
    )


def test_padding_does_not_count_and_everything_else_does(repository: Path) -> None:
    engine, signature, tokeniser = opened(repository, "tiny-tokens")

    def in_padding(name: str, value: Any, feeds: Arrays) -> Any:
        if name == "output":
            value = value + (np.arange(value.shape[1]) >= feeds["lengths"][:, None])[..., None]
        return value

    def everywhere(name: str, value: Any, feeds: Arrays) -> Any:
        if name == "output":
            return -value
        return 1 - value if name == "attention.1" else value

    padded = measure_drift(Off(engine, in_padding), engine, signature, tokeniser)
    off = measure_drift(Off(engine, everywhere), engine, signature, tokeniser)

    assert padded["deviations"]["output"] == 0
    assert off["cosines"]["output"]["mean"] == pytest.approx(-1)
    assert off["deviations"]["attention.0"] == 0
    assert off["deviations"]["attention.1"] > 0.5
    assert off["other_top_keys"]["attention.1"] > 0.5
    assert off["deviations"]["pooled"] == 0


def test_what_is_undefined_in_one_of_them_is_infinitely_far_and_null_in_json(repository: Path) -> None:
    engine, signature, tokeniser = opened(repository, "tiny")

    drift = measure_drift(
        Off(engine, lambda name, value, feeds: value * np.nan), engine, signature, tokeniser
    )

    assert json.loads(json.dumps(drift, allow_nan=False))["deviations"]["output"] is None


def on_threads(path: Path, signature: Signature, device: str) -> list[Engine]:
    """A graph's engines, of one thread and of two."""
    return [
        Engine(path, signature=signature, device=choose_device(device), threads=threads) for threads in (1, 2)
    ]


@pytest.mark.parametrize(
    "models",
    [
        "repository",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("probed_models", "architectures", "int8_models", "scorers", "splade", "tagger")
        ),
    ],
)
def test_every_output_keeps_its_bits_in_company(
    request: pytest.FixtureRequest, models: str, device: str
) -> None:
    folder = request.getfixturevalue(models)
    folder = folder / "models" if (folder / "models").exists() else folder
    for version in scan(folder):
        assert isinstance(version, VersionFolder)
        for graph, record in version.manifest.graphs.items():
            signature = signature_of(version.manifest, graph)
            engines = on_threads(version.folder / record.file, signature, device)
            expected = {spec.name for spec in signature.results}
            unsteady = outputs_after(version.folder / record.file, choose_device(device).unsteady)
            assert expected - {*same_bits(engines, signature)} <= unsteady


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "precision"),
    [
        (MODERN, "int8"),
        (
            replace(BERT, types=0, relative_buckets=8, relative_distance=16, bias=False, norm_bias=False),
            "fp32",
        ),
        (
            replace(
                BERT,
                types=0,
                disentangled=Disentangled(terms=("c2p", "p2c"), span=4, distance=9),
                convolution=Convolution(width=3, activation="gelu"),
            ),
            "fp32",
        ),
        (EncoderConfig(d_model=24, heads=3, layers=1, cross_attention="alone", pooling="mean"), "fp32"),
    ],
    ids=["windows in int8", "relative positions", "disentangled", "attention to another sequence"],
)
def test_other_encoders_keep_their_bits(
    config: EncoderConfig, precision: Precision, tmp_path: Path, device: str
) -> None:
    export_family(seeded(config, 3), "other", tmp_path, precision=precision)
    manifest = manifest_of(tmp_path, "other")
    for graph, record in manifest.graphs.items():
        signature = signature_of(manifest, graph)
        engines = on_threads(tmp_path / "other" / "1" / record.file, signature, device)
        assert {*same_bits(engines, signature)} == {spec.name for spec in signature.results}


def test_dense_layers_of_any_width_keep_their_bits(tmp_path: Path, device: str) -> None:
    """But for mish and softplus, which have logarithms."""
    activations: tuple[Any, ...] = ("tanh", "gelu", "silu", "sigmoid", "elu", "leaky_relu")
    dense = tuple(Dense(width=9, activation=each) for each in activations)
    config = EncoderConfig(d_model=8, heads=2, layers=1, pooling="mean", dense=dense)
    export_family(seeded(config, 3), "dense", tmp_path)
    engine = OpenGraph(tmp_path, "dense", "fast").engine
    x = np.random.default_rng(0).standard_normal((512, 3, 8), np.float32)
    feeds = {"x": x, "lengths": np.full(512, 3, np.int32)}

    together = engine.run(feeds, ["pooled"])["pooled"]

    for row in range(512):
        alone = engine.run({name: each[row : row + 1] for name, each in feeds.items()}, ["pooled"])
        np.testing.assert_array_equal(alone["pooled"][0], together[row])


def test_what_may_change_is_not_claimed_where_it_was_the_same(tmp_path: Path, device: str) -> None:
    """A softplus of whole vectors is the same in every measurement, and of others is not, in onnxruntime."""
    config = EncoderConfig(
        d_model=8, heads=2, layers=1, pooling="mean", dense=(Dense(width=16, activation="softplus"),)
    )
    export_family(seeded(config, 3), "soft", tmp_path)
    (version,) = [one for one in scan_family(tmp_path / "soft") if isinstance(one, VersionFolder)]

    chosen = choose_device(device)
    for one in loading.Loader(device=chosen, threads=2).load(version):
        assert isinstance(one, loading.Loaded)
        assert ("pooled" in one.same_bits) == ("Softplus" not in chosen.unsteady)
        assert "output" in one.same_bits
        one.close()


def test_long_sums_and_narrow_rotations_keep_their_bits(tmp_path: Path, device: str) -> None:
    """OpenVINO divides a sum of 2,048 terms among threads; onnxruntime has two ways to compute a sine."""
    config = EncoderConfig(d_model=6, heads=1, layers=1, rotary_base=100.0, pooling="weighted_mean")
    export_family(seeded(config, 3), "long", tmp_path)
    signature = signature_of(manifest_of(tmp_path, "long"), "fast")
    engines = on_threads(tmp_path / "long" / "1" / "model.onnx", signature, device)
    for lengths in ([2090, 5], [*range(2, 60)]):
        x = np.random.default_rng(0).standard_normal((len(lengths), max(lengths) + 1, 6), np.float32)
        counts = np.array(lengths, np.int32)
        together = [engine.run({"x": x, "lengths": counts}, ["output", "pooled"]) for engine in engines]
        for row, length in enumerate(lengths):
            own = {"x": x[row : row + 1, :length], "lengths": counts[row : row + 1]}
            alone = [engine.run(own, ["output", "pooled"]) for engine in engines]
            for result, at in ((together[1], row), (alone[0], 0), (alone[1], 0)):
                np.testing.assert_array_equal(result["pooled"][at], together[0]["pooled"][row])
                np.testing.assert_array_equal(
                    result["output"][at, :length], together[0]["output"][row, :length]
                )


def test_an_output_that_company_changes_is_found(repository: Path) -> None:
    engine, signature, _ = opened(repository, "tiny-tokens")

    def off(name: str, value: Any, feeds: Arrays) -> Any:
        return np.nextafter(value, 2) if name == "pooled" and len(value) > 1 else value

    others = tuple(spec.name for spec in signature.results if spec.name != "pooled")
    assert same_bits([Off(engine, off)], signature) == others
    assert same_bits([engine, Off(engine, lambda name, value, feeds: -value)], signature) == ()


@pytest.fixture
def bf16() -> Device:
    """OpenVINO, computing in bf16."""
    if find_spec("openvino") is None:
        pytest.skip("OpenVINO is not installed")
    device = on_openvino("")
    if "bf16" not in device.computes:
        pytest.skip("this processor has no BF16")
    return replace(device, compute_precision="bf16")


def test_a_version_is_loaded_before_it_is_measured(
    bf16: Device, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Event()

    def measure(*arguments: Any) -> dict[str, Any]:
        assert begin.wait(60)
        return drift_on(*arguments)

    monkeypatch.setattr(loading, "drift_on", measure)
    (version,) = [one for one in scan_family(repository / "tiny") if isinstance(one, VersionFolder)]

    graphs = list(loading.Loader(device=bf16, threads=1).load(version))
    loaded = [one for one in graphs if isinstance(one, loading.Loaded)]
    was_measured = any(one.drift for one in loaded)
    begin.set()
    deadline = time.monotonic() + 60
    try:
        assert len(loaded) == len(version.manifest.graphs)
        assert not was_measured
        while not all(one.drift for one in loaded):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert all(one.drift["deviations"] for one in loaded)
    finally:
        for one in loaded:
            one.close()


def test_int8_in_bf16_claims_nothing(bf16: Device, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which operator changes is not known, and what it changes is not always met."""
    monkeypatch.setattr(loading, "drift_on", lambda *_: {})
    (version,) = [one for one in scan_family(repository / "tiny") if isinstance(one, VersionFolder)]
    in_8_bits = replace(version, manifest=version.manifest.model_copy(update={"precision": "int8"}))

    for one, claims in ((version, True), (in_8_bits, False)):
        for loaded in loading.Loader(device=bf16, threads=1).load(one):
            assert isinstance(loaded, loading.Loaded)
            assert bool(loaded.same_bits) == claims
            loaded.close()


@pytest.mark.usefixtures("bf16", "repository")
def test_metadata_shows_it(serve: Any) -> None:
    server = serve(device="openvino", compute_precision="bf16")
    deadline = time.monotonic() + 60
    while True:  # the server answers before it has measured, and a client asks only once
        with Client(server.address) as client:
            info = client.model("tiny-tokens.attention")
        if info.compute_drift is not None:
            break
        assert time.monotonic() < deadline
        time.sleep(0.1)

    assert (info.precision, info.drift) == ("fp32", None)
    assert info.compute_precision == "bf16"
    assert info.compute_drift is not None
    assert info.compute_drift["inputs"] == f"{len(MEASURED)} sentences"
    assert 0.99 < info.compute_drift["cosines"]["pooled"]["least"] <= 1.0001
    assert 0 < info.compute_drift["deviations"]["attention.1"] < 0.05
