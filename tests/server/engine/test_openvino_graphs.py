"""OpenVINO gives what onnxruntime gives: every kind of graph, and what no checkpoint has.

Those of checkpoints are in tests/export/test_model_types.py.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.export.test_architectures import build
from tests.export.test_head_configurations import CONFIGS as HEADS
from tests.numerics import close

from polyhead_export import export_family
from polyhead_model import EncoderConfig
from polyhead_proto.outputs.sparse import SPARSE_INDICES
from polyhead_proto.outputs.top_keys import TOP_KEYS
from polyhead_proto.tensors import TensorSpec
from polyhead_server.engine.devices import choose_device
from polyhead_server.engine.engine import Engine
from polyhead_server.repository.manifest import read_manifest
from polyhead_server.repository.signature import Signature, signature_of

pytestmark = pytest.mark.skipif(find_spec("openvino") is None, reason="OpenVINO is not installed")

CONFIGS: Mapping[str, EncoderConfig] = {
    "decoder": EncoderConfig(
        d_model=12, heads=2, layers=2, feed_forward=16, cross_attention="after_self", mask_input=True
    ),
    "widths": HEADS["widths"],
}


@pytest.fixture(scope="module")
def folders(
    architectures: Path, probed_models: Path, int8_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Path]:
    """Of each family: `modern`, `disentangled` and `probed` have every kind of graph, the others two.

    `vectors` is in int8.
    """
    own = tmp_path_factory.mktemp("architectures")
    for name, config in CONFIGS.items():
        export_family(build(config), name, own)
    repositories = (architectures, probed_models, int8_models, own)
    return {folder.name: folder for models in repositories for folder in models.iterdir()}


def feeds_of(signature: Signature, batch: int, tokens: int, seed: int) -> dict[str, Any]:
    """Random inputs, the memory as long as the queries; each row asks for its first query."""
    random = np.random.default_rng(seed)
    sizes = signature.example_sizes(batch, tokens)
    feeds: dict[str, Any] = {spec.name: spec.filled_at(sizes) for spec in signature.feeds}
    for spec in signature.feeds:
        feeds[spec.name] = random_tensor(spec, feeds[spec.name], sizes, random)
    for spec in signature.lengths:
        feeds[spec.name] = random.integers(1, tokens + 1, batch).astype(spec.dtype)
    return feeds


def random_tensor(spec: TensorSpec, fill: Any, sizes: Mapping[str, int], random: np.random.Generator) -> Any:
    if spec.datatype == "FP32":
        return random.random(fill.shape, np.float32) - (0 if spec.range else 0.5)
    return random.integers(0, 20, fill.shape) if spec.below == 20 else fill


@pytest.mark.parametrize("family", ["modern", "disentangled", "windowed", "probed", *CONFIGS, "vectors"])
def test_every_graph_gives_what_onnxruntime_gives(folders: Mapping[str, Path], family: str) -> None:
    folder = folders[family] / "1"
    manifest = read_manifest(folder, family=family, version=1)
    for graph, record in manifest.graphs.items():
        signature = signature_of(manifest, graph)
        ours, theirs = (
            Engine(folder / record.file, signature=signature, device=choose_device(name), threads=1)
            for name in ("openvino", "cpu")
        )
        for seed, (batch, tokens) in enumerate(((1, 1), (3, 9), (2, 23))):
            feeds = feeds_of(signature, batch, tokens, seed)
            values, expected = (engine.run(feeds, engine.outputs) for engine in (ours, theirs))
            for spec in signature.results:
                if spec.role not in {
                    TOP_KEYS.role,
                    SPARSE_INDICES.role,
                }:  # where two weights are as good as equal, either is right
                    same(values[spec.name], expected[spec.name], where=f"{graph}: {spec.name}")


def same(value: Any, expected: Any, *, where: str) -> None:
    """Assert that they agree: shares of 1 may be off by roundings of 1, bytes by one step."""
    undefined = np.isnan(expected)
    assert np.array_equal(np.isnan(value), undefined), where
    step = float(np.issubdtype(value.dtype, np.integer))
    value, expected = (np.where(undefined, 0, each).astype(np.float64) for each in (value, expected))
    close(value, expected, scale=max(1.0, np.abs(expected).max(initial=0)), extra=step)
