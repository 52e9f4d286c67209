"""What tests of exports share: traced graphs, and how to read and run what was exported."""

import copy
import fcntl
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from polyhead_export.graphs import build_graph
from polyhead_export.signature import GraphKind
from polyhead_export.weights import hash_of
from polyhead_model import Encoder, parameters

_MOST_PARAMETERS = 1_000_000
"""Of what is kept: a file of a graph and its weights together may have 2 GiB."""


@contextmanager
def share_traces(folder: Path) -> Iterator[None]:
    """Have exports trace each graph of an encoder once in all processes that share a folder.

    Most of what tests export are the same few small encoders, and most of an export is tracing.
    """

    def build(encoder: Encoder, kind: GraphKind, *, pack: bool) -> ir.Model:
        if parameters(encoder.config) > _MOST_PARAMETERS:
            return build_graph(encoder, kind, pack=pack)
        said = repr((type(encoder).__qualname__, encoder.config, hash_of(encoder), kind, pack))
        file = folder / f"{hashlib.sha256(said.encode()).hexdigest()}.onnx"
        with file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not file.exists():
                part = file.with_suffix(".part")
                ir.save(build_graph(encoder, kind, pack=pack), part)
                part.rename(file)
        return ir.load(file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("polyhead_export.version.build_graph", build)
        _load_translations_once(patch)
        yield


def _load_translations_once(patch: pytest.MonkeyPatch) -> None:
    """Have the exporter keep its thousand translations.

    It loads them for every graph, which takes a quarter of the time of a small one. Another version of torch
    may keep them elsewhere: exports then take longer.
    """
    with suppress(ImportError, AttributeError):
        from torch.onnx._internal.exporter._registration import ONNXRegistry

        load = cache(ONNXRegistry.from_torchlib)

        def from_torchlib(*arguments: Any, **options: Any) -> ONNXRegistry:
            """Return a copy: an export registers translations of its own."""
            made = copy.copy(load(*arguments, **options))
            made.functions = {target: list(known) for target, known in made.functions.items()}
            return made

        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(from_torchlib))


def manifest_of(version: Path) -> dict[str, Any]:
    """The manifest of a version."""
    manifest: dict[str, Any] = json.loads((version / "manifest.json").read_text())
    return manifest


def session_of(graph: Path | ir.Model) -> ort.InferenceSession:
    """A session of a graph on the CPU."""
    return ort.InferenceSession(
        graph if isinstance(graph, Path) else ir.to_proto(graph).SerializeToString(),
        providers=["CPUExecutionProvider"],
    )


def run(session: ort.InferenceSession, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs of a session by name; inputs that it does not take are left out."""
    names = [value.name for value in session.get_outputs()]
    feeds = {value.name: np.asarray(inputs[value.name]) for value in session.get_inputs()}
    return dict(zip(names, session.run(names, feeds), strict=True))
