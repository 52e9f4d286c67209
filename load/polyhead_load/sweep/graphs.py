"""Read which operators a graph has after onnxruntime has optimised it.

`python -m polyhead_load.sweep.graphs PROVIDER FILE…` prints them as JSON. It is a process of its own, so that
the sweep itself needs neither onnx nor onnxruntime.
"""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from polyhead_load.sweep.families import SweepFamily

_LARGE_BYTES = 2**30
"""Larger graphs are read as exported: a session only to look at them would take too much memory."""
_SECONDS = 300
_FUSED = ("MultiHeadAttention", "Attention", "GroupQueryAttention")


def describe_graphs(
    families: Collection[SweepFamily], providers: Mapping[str, str], names: Collection[str]
) -> dict[str, Any]:
    """Return family → graph → `operators`, whether they are `optimised`, and the `kernel`.

    Args:
        families: Whose graphs to read.
        providers: Family → where it runs; families without one are left out.
        names: Of graphs, such as `fast`.

    Returns:
        The graphs, or only a `problem` where they cannot be read.
    """
    found: dict[str, Any] = {}
    for family in families:
        if not (provider := providers.get(family.name)):
            continue
        graphs = {name: graph for name, graph in family.manifest["graphs"].items() if name in names}
        files = [str(family.folder / graph["file"]) for graph in graphs.values()]
        try:
            done = subprocess.run(  # noqa: S603 - this file
                [sys.executable, "-m", __name__, provider, *files],
                capture_output=True,
                text=True,
                check=False,
                timeout=_SECONDS,
            )
            described = json.loads(done.stdout.splitlines()[-1])
        except (subprocess.TimeoutExpired, ValueError, IndexError):
            return {"problem": "the graphs could not be read; that needs polyhead[server]"}
        found[family.name] = {
            name: {**facts, "kernel": attention_kernel(facts["operators"], provider)}
            for name, facts in zip(graphs, described, strict=True)
        }
    return found


def attention_kernel(operators: Collection[str], provider: str) -> str:
    """Return the attention operator of a graph, and where it runs.

    On CUDA that does not say which kernel runs: onnxruntime chooses by width, type and mask.
    """
    where = provider.removesuffix("ExecutionProvider") or "CPU"
    fused = next((name for name in _FUSED if name in operators), None)
    if fused is not None:
        return f"fused {fused}, {where}" + ("" if where == "CPU" else " (kernel unknown)")
    return f"explicit MatMul–Softmax–MatMul, {where}" if "Softmax" in operators else f"no attention, {where}"


def _operators(file: Path, provider: str) -> dict[str, Any]:
    onnx, ort = import_module("onnx"), import_module("onnxruntime")
    optimised = sum(path.stat().st_size for path in file.parent.iterdir()) <= _LARGE_BYTES
    with tempfile.TemporaryDirectory(prefix="polyhead-graph-") as folder:
        path = file
        if optimised:
            path = Path(folder) / "optimised.onnx"
            options = ort.SessionOptions()
            options.log_severity_level = 3
            options.optimized_model_filepath = str(path)
            ort.InferenceSession(str(file), options, providers=[provider])
        model = onnx.load(str(path), load_external_data=False)
    counts = Counter(node.op_type for node in model.graph.node)
    return {"operators": dict(counts.most_common()), "optimised": optimised}


if __name__ == "__main__":
    _provider, *_files = sys.argv[1:]
    sys.stdout.write(json.dumps([_operators(Path(file), _provider) for file in _files]) + "\n")
