"""Which operators a graph consists of, after onnxruntime has optimised it.

As a process of its own (`python -m polyhead_load.sweep.graphs PROVIDER FILE…`) it prints them as JSON, so
that the sweep itself stays small.
"""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

_LARGE_BYTES = 2**30
"""Above that a session is not made only to look at its graph."""
_SECONDS = 300


def inspect(files: Sequence[Path], provider: str) -> dict[str, Any]:
    """Return the operators of each graph.

    Args:
        files: Graphs, their weights beside them.
        provider: Where they run.

    Returns:
        For each file, `operators` and whether they are those of the `optimised` graph; or `problem`,
        for all, where they cannot be read.
    """
    command = [sys.executable, "-m", __name__, provider, *map(str, files)]
    try:
        done = subprocess.run(  # noqa: S603 - this file
            command, capture_output=True, text=True, check=False, timeout=_SECONDS
        )
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError):
        return {"problem": "the graphs could not be read; that needs polyhead[server]"}
    return found


def kernel(operators: Mapping[str, int], provider: str) -> str:
    """Return the attention operator that a graph has, and where it runs.

    On CUDA that does not say which kernel runs: onnxruntime chooses by width, type and mask.
    """
    fused = [name for name in ("MultiHeadAttention", "Attention", "GroupQueryAttention") if name in operators]
    where = provider.removesuffix("ExecutionProvider") or "CPU"
    if fused:
        return f"fused {fused[0]}, {where}" + ("" if where == "CPU" else " (kernel unknown)")
    return f"explicit MatMul–Softmax–MatMul, {where}" if "Softmax" in operators else f"no attention, {where}"


def _operators(file: Path, provider: str) -> dict[str, Any]:
    # They come with the server, which this process stands beside; the sweep itself needs neither.
    onnx, ort = import_module("onnx"), import_module("onnxruntime")
    size = sum(path.stat().st_size for path in file.parent.iterdir())
    path, optimised = file, False
    with tempfile.TemporaryDirectory(prefix="polyhead-graph-") as folder:
        if size <= _LARGE_BYTES:
            path, optimised = Path(folder) / "optimised.onnx", True
            options = ort.SessionOptions()
            options.log_severity_level = 3
            options.optimized_model_filepath = str(path)
            ort.InferenceSession(str(file), options, providers=[provider])
        model = onnx.load(str(path), load_external_data=False)
    counts = Counter(node.op_type for node in model.graph.node)
    return {"operators": dict(counts.most_common()), "optimised": optimised}


def _main(provider: str, *files: str) -> None:
    found = {file: _operators(Path(file), provider) for file in files}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    _main(*sys.argv[1:])
