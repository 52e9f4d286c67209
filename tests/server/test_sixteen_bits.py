"""Families in 16 bits on a GPU that the CPU stands for: what it is asked for, what it gives, what is sent."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from tests.encoders import draw_norms_and_biases, seeded
from tests.server.conftest import Running, everything_on, running
from tests.servers import quick_settings

from polyhead_export import Precision, export_family
from polyhead_export.half_precision import for_cpu
from polyhead_model import EncoderConfig
from polyhead_server.engine.device import CPU, CUDA
from polyhead_server.engine.devices import choose_device

CONFIG = EncoderConfig(d_model=32, heads=4, layers=2, feed_forward=48)
TOLERANCES: Mapping[Precision, float] = {"fp16": 2e-3, "bf16": 2e-2}
"""Of what weights in 16 bits change; CPUs compute the rest in 32."""
SUMS: Mapping[Precision, float] = {"fp16": 1e-3, "bf16": 1e-2}
"""How far the sum of a row may be from 1, as docs/precision.md says."""
CHANCE = np.random.default_rng(5)
LENGTHS = np.array([13, 1, 0, 6], np.int32)
X = CHANCE.standard_normal((4, 13, 32), np.float32)


class Card(ort.InferenceSession):  # type: ignore[misc]
    """A session that says it is on a GPU, and gives what a graph gives there, in its datatypes."""

    runs: ClassVar[list[tuple[tuple[int, ...], dict[str, np.dtype[Any]]]]] = []
    """Of each run, the shape of `x`, and the outputs that crossed the bus."""

    def __init__(self, path: str, options: ort.SessionOptions, providers: Sequence[Any], **_: object) -> None:
        graph = ir.load(path)
        super().__init__(ir.to_proto(for_cpu(graph, rounding=False)).SerializeToString(), options, [CPU])
        halves = (each.name for each in graph.graph.outputs if each.dtype == ir.DataType.FLOAT16)
        self._dtypes = dict.fromkeys(halves, np.float16)

    def get_providers(self) -> list[str]:
        return [CUDA, CPU]

    def get_provider_graph_assignment_info(self) -> Sequence[Any]:
        return everything_on(CUDA)

    def run(self, outputs: list[str], feeds: Mapping[str, Any], *_: object) -> list[NDArray[Any]]:
        values = [
            value.astype(self._dtypes.get(name, value.dtype))
            for name, value in zip(outputs, super().run(outputs, feeds), strict=True)
        ]
        crossed = {name: value.dtype for name, value in zip(outputs, values, strict=True)}
        self.runs.append((feeds["x"].shape, crossed))
        return values


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("halves")
    for precision in ("fp32", *TOLERANCES):
        encoder = seeded(CONFIG, 61, change=draw_norms_and_biases)
        export_family(encoder, precision, folder, precision=precision)
    return folder


@pytest.fixture
def card(models: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(ort, "InferenceSession", Card)
    monkeypatch.setattr(Card, "runs", [])
    choose = partial(choose_device, problem=lambda _number: None)
    monkeypatch.setattr("polyhead_server.runtime.choose_device", choose)
    with running(quick_settings(models, device="cuda")) as one:
        yield one


@pytest.fixture(scope="module")
def expected(models: Path) -> Mapping[str, NDArray[Any]]:
    """What the CPU gives in fp32."""
    with running(quick_settings(models)) as one:
        result = one.infer("fp32.attention", {"x": X, "lengths": LENGTHS})
        return {name: result[name] for name in result.outputs}


@pytest.mark.parametrize("precision", TOLERANCES)
def test_clients_see_no_other_datatypes(
    precision: Precision, card: Running, expected: Mapping[str, NDArray[Any]]
) -> None:
    for model in (precision, f"{precision}.attention"):
        result = card.infer(model, {"x": X, "lengths": LENGTHS})

        for name in result.outputs:
            value, wanted = result[name], expected[name]
            assert (value.dtype, value.shape) == (np.float32, wanted.shape)
            np.testing.assert_allclose(value, wanted, atol=TOLERANCES[precision], rtol=TOLERANCES[precision])
    valid = np.arange(13) < LENGTHS[:, None]
    for layer in range(2):
        weights = result[f"attention.{layer}"].astype(np.float64)
        hidden = ~(valid[:, None, :, None] & valid[:, None, None])
        assert not weights[np.broadcast_to(hidden, weights.shape)].any()
        sums = np.broadcast_to(valid[:, None], weights.shape[:3])
        np.testing.assert_allclose(weights.sum(-1), sums, atol=SUMS[precision])


def test_only_layers_that_are_asked_for_cross_the_bus_and_in_16_bits(card: Running) -> None:
    Card.runs.clear()
    asked = {"attention.1": {"heads": "2,0", "dtype": "FP16"}}
    weights = card.infer("fp16.attention", {"x": X, "lengths": LENGTHS}, outputs=asked)["attention.1"]

    assert (weights.dtype, weights.shape) == (np.float16, (4, 2, 13, 13))
    assert [crossed for _, crossed in Card.runs] == [{"attention.1": np.float16}]


def test_sequences_are_padded_to_rows_that_are_aligned(card: Running) -> None:
    Card.runs.clear()
    for tokens in (1, 8, 13):
        card.infer("bf16", {"x": X[:, :tokens], "lengths": np.minimum(LENGTHS, tokens)})

    assert [shape for shape, _ in Card.runs] == [(4, 8, 32), (4, 8, 32), (4, 16, 32)]
