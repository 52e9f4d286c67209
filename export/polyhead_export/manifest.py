"""Write a version's manifest: its configuration, tensors, file hashes and measured parity.

docs/model-repository.md describes every field.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from polyhead_export.calibration import Calibration
from polyhead_export.comparison import Closeness
from polyhead_export.parity import Drift, Parity
from polyhead_export.precision import Precision
from polyhead_export.pruning import Pruning
from polyhead_export.signature import (
    GraphKind,
    activations,
    axis_sizes,
    inputs_of,
    outputs_of,
)
from polyhead_model import EncoderConfig, parameters
from polyhead_proto.tensors import TensorSpec

FILE = "manifest.json"

FORMAT = 2
"""Incremented when a reader of the old format would misread the new one."""

_TOOLS = ("polyhead", "torch", "onnx", "onnxscript", "numpy")


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What makes a version the one that it is, whatever graphs it has."""

    name: str
    """The family's name."""
    version: int
    config: EncoderConfig
    """The encoder's configuration."""
    weights: str
    """The hash of the encoder's parameters, in fp32."""
    precision: Precision
    """What the graphs compute in."""
    tokenizer: Mapping[str, Any] | None
    """The tokenizer's file and its hash, the longest text in tokens, the prompts, whether its token types
    count, and whether it takes pairs of texts; None if the family has no tokenizer."""
    left_out: Sequence[str]
    """The parts of the checkpoint that are not served, in words."""
    pruning: Pruning | None
    """What was pruned; None if nothing was."""
    calibration: Calibration | None
    """The ranges of pooled vectors; None if they were not measured."""

    def describe(self) -> dict[str, Any]:
        """Return it as the manifest has it."""
        return {
            "format": FORMAT,
            "name": self.name,
            "version": self.version,
            "encoder": dataclasses.asdict(self.config),
            "weights": self.weights,
            "precision": self.precision,
            "tokenizer": self.tokenizer,
            "left_out": list(self.left_out),
            "limits": {"max_tokens": self.config.positions},
            "pruning": None if self.pruning is None else _describe_pruning(self.pruning),
            "calibration": None if self.calibration is None else dataclasses.asdict(self.calibration),
            "numbers": {"parameters": parameters(self.config)},
        }


def write_manifest(
    folder: Path,
    identity: Identity,
    *,
    kinds: Collection[GraphKind],
    operators: Mapping[str, Mapping[str, int]],
    parity: Parity,
    failures: Mapping[str, Exception],
) -> None:
    """Write the manifest for the files in `folder`.

    Args:
        folder: The version's folder, complete except for the manifest.
        identity: The version.
        kinds: The graphs.
        operators: The number of nodes of each type, by the graph's name.
        parity: The measured parity.
        failures: Why graphs that were asked for are not there, by name.
    """
    config = identity.config
    manifest: dict[str, Any] = identity.describe() | {
        "sizes": axis_sizes(config, kinds),
        "graphs": {
            kind.name: describe_graph(identity, kind) | {"operators": operators[kind.name]} for kind in kinds
        },
        "files": {path.name: _describe_file(path) for path in sorted(folder.iterdir())},
        "parity": {
            "sizes": parity.sizes,
            "processor": _processor(),
            "graphs": {
                graph: {output: _describe_comparison(each) for output, each in outputs.items()}
                for graph, outputs in parity.outputs.items()
            },
            "drift": None if parity.drift is None else _describe_drift(parity.drift),
            "neighbours": {
                graph: {output: each._asdict() for output, each in changes.items()}
                for graph, changes in parity.neighbours.items()
            },
            "failed": {graph: str(error) for graph, error in failures.items()},
        },
        "tools": {tool: metadata.version(tool) for tool in _TOOLS} | {"onnxruntime": _onnxruntime_version()},
    }
    (folder / FILE).write_text(json.dumps(manifest, indent=2) + "\n")


def describe_graph(identity: Identity, kind: GraphKind) -> dict[str, Any]:
    """Return what the manifest has of a graph, but for what is counted in its file."""
    config, precision = identity.config, identity.precision
    return {
        "file": kind.file,
        "inputs": [_described(spec) for spec in inputs_of(config, kind)],
        "outputs": [_described(spec) for spec in outputs_of(config, kind, precision)],
        "activations": activations(config, precision),
        "maps": kind.maps(config, precision),
        **({} if (axes := kind.map_axes(config)) is None else {"map_axes": axes}),
    }


def _described(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, **spec.to_json()}


def _describe_comparison(compared: Closeness) -> dict[str, Any]:
    return {
        "graph": compared.graph._asdict(),
        "pytorch": compared.pytorch._asdict(),
        "limit": compared.limit._asdict(),
        **({} if compared.wiring is None else {"in_float64": compared.wiring._asdict()}),
    }


def _describe_drift(drift: Drift) -> dict[str, Any]:
    described: dict[str, Any] = {"emulated": drift.emulated, "inputs": drift.inputs}
    if drift.limit is not None:
        described["limit"] = drift.limit
    if drift.cosines is not None:
        described["least_mean_cosine"] = drift.least_mean_cosine
        described["cosines"] = {
            graph: {output: cosine._asdict() for output, cosine in outputs.items()}
            for graph, outputs in drift.cosines.items()
        }
    return described | {"graphs": drift.deviations}


def _describe_pruning(pruning: Pruning) -> dict[str, Any]:
    importance = pruning.importance
    return {
        "by": pruning.by,
        **(
            {"removed": sorted(pruning.heads)}
            if pruning.width is None
            else {"narrowed": sorted(pruning.heads), "width": pruning.width}
        ),
        # Heads that had been pruned before have none.
        "importance": None
        if importance is None
        else [[value if math.isfinite(value) else None for value in layer] for layer in importance.tolist()],
        "inputs": pruning.inputs,
        "drift": dataclasses.asdict(pruning.drift) | {"cosine": pruning.drift.cosine._asdict()},
    }


def _describe_file(path: Path) -> dict[str, int | str]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _processor() -> str:
    """Return the name of the processor, where the system tells it, and the instructions that PyTorch uses."""
    name = platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"


def _onnxruntime_version() -> str:
    # The distribution is onnxruntime or onnxruntime-gpu; the module has the version in both cases.
    import onnxruntime as ort

    return str(ort.__version__)
