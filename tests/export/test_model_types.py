"""Every model type that loads, as every kind of graph: exported, and run by the server's engines.

The export itself compares each graph with PyTorch, in int8 and 16 bits by the rules of docs/precision.md;
tests/model holds PyTorch to transformers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.exports import manifest_of
from tests.model_types import build, exports_of, write
from tests.server.engine.test_openvino_graphs import feeds_of, same

from polyhead_export import Built, export_family
from polyhead_export.comparison import check_parity
from polyhead_export.kinds import ALWAYS, kinds_of
from polyhead_export.parity import Array, Reference
from polyhead_export.precision import Precision
from polyhead_model.hf_dialects import DIALECTS
from polyhead_proto.outputs.sparse import SPARSE_INDICES
from polyhead_proto.outputs.top_keys import TOP_KEYS
from polyhead_server.engine.dataflow import outputs_after
from polyhead_server.engine.device import Device
from polyhead_server.engine.devices import choose_device, on_openvino
from polyhead_server.engine.engine import Engine
from polyhead_server.repository.manifest import read_manifest
from polyhead_server.repository.signature import signature_of
from polyhead_server.serving.drift import measure_drift, same_bits

HAS_OPENVINO = find_spec("openvino") is not None
OF_LOGARITHMS = {"head_scores", "weighted_scores", "sparse_values"}
"""What company may change on onnxruntime: docs/precision.md."""


@dataclass(frozen=True)
class Exported:
    """A type in all precisions."""

    built: Built
    graphs: Mapping[Precision, Sequence[str]]
    versions: Mapping[Precision, Path]

    def engine(self, precision: Precision, graph: str, device: Device, *, threads: int = 1) -> Engine:
        version = self.versions[precision]
        manifest = read_manifest(version, family=precision, version=1)
        file = version / manifest.graphs[graph].file
        return Engine(file, signature=signature_of(manifest, graph), device=device, threads=threads)


@pytest.fixture(scope="module", params=sorted(DIALECTS))
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    folder = tmp_path_factory.mktemp("exported")
    write(folder / "checkpoint", request.param)
    built = build(folder / "checkpoint")
    graphs = exports_of(request.param, built.encoder.config)
    versions: dict[Precision, Path] = {}
    for precision, kinds in graphs.items():
        family = export_family(built.encoder, precision, folder / "models", precision=precision, graphs=kinds)
        versions[precision] = family.folder
    return Exported(built, graphs, versions)


def devices() -> list[Device]:
    return [choose_device(name) for name in ("cpu", *(["openvino"] if HAS_OPENVINO else []))]


def test_every_kind_is_exported(exported: Exported) -> None:
    for precision, graphs in exported.graphs.items():
        manifest = manifest_of(exported.versions[precision])
        assert list(manifest["graphs"]) == list(graphs)
        if precision in {"fp32", "int8"}:
            for outputs in manifest["parity"]["neighbours"].values():
                assert {name for name, each in outputs.items() if each["largest"]} <= OF_LOGARITHMS


def test_engines_compute_what_pytorch_does(exported: Exported) -> None:
    reference = Reference(exported.built.encoder)
    device = devices()[-1]  # the export has compared what onnxruntime computes
    for kind in kinds_of(exported.built.encoder.config, exported.graphs["fp32"]):
        engine = exported.engine("fp32", kind.name, device)

        compared = reference.compare(engine.path, kind, None, opened=partial(_runner, engine))
        check_parity(compared, f"{kind.file} on {device.name}")


def _runner(engine: Engine, _path: object) -> Callable[[Sequence[str], Mapping[str, Array]], list[Array]]:
    def run(names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        values = engine.run(feeds, names)
        return [values[name] for name in names]

    return run


def test_engines_agree_in_8_bits(exported: Exported) -> None:
    for graph in exported.graphs.get("int8", ()):
        first, *others = (exported.engine("int8", graph, device) for device in devices())
        for seed, size in enumerate(((1, 1), (3, 9), (2, 23))):
            feeds = feeds_of(first.signature, *size, seed)
            expected = first.run(feeds, first.outputs)
            for engine in others:
                values = engine.run(feeds, engine.outputs)
                for spec in engine.signature.results:
                    if spec.role not in {TOP_KEYS.role, SPARSE_INDICES.role}:  # where ties may be
                        same(values[spec.name], expected[spec.name], where=f"{graph}: {spec.name}")


def test_company_changes_no_bits_where_heads_share_keys(exported: Exported) -> None:
    """Nor does the number of threads. On OpenVINO also in bf16, which stays close to fp32."""
    config = exported.built.encoder.config
    every: list[tuple[Precision, Device]] = [
        (precision, device) for precision in ("fp32", "int8") for device in devices()
    ]
    if HAS_OPENVINO and "bf16" in (openvino := on_openvino("")).computes:
        every.append(("fp32", replace(openvino, compute_precision="bf16")))
    for precision, device in every if config.groups < config.heads else ():
        for graph in ALWAYS:
            engines = [exported.engine(precision, graph, device, threads=threads) for threads in (1, 2)]
            signature = engines[0].signature
            expected = {spec.name for spec in signature.results}
            unsteady = outputs_after(engines[0].path, device.unsteady)
            assert expected - {*same_bits(engines, signature)} <= unsteady, f"{graph} on {device}"
            if device.compute_precision == "bf16":
                wide = exported.engine("fp32", graph, replace(device, compute_precision="fp32"))
                drift = measure_drift(engines[0], wide, signature, None)
                assert min(each["mean"] for each in drift["cosines"].values()) > 0.99
