"""Sessions of the test repository's graphs, and inputs for them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from polyhead_server.engine.devices import on_cpu
from polyhead_server.engine.engine import Arrays
from polyhead_server.engine.session import open_session
from polyhead_server.repository.manifest import GraphName, read_manifest
from polyhead_server.repository.signature import Signature, signature_of

Opened = tuple[ort.InferenceSession, Signature]
Open = Callable[[str, GraphName], Opened]


@pytest.fixture
def open_graph(repository: Path) -> Open:
    """Opens a graph of a family on the CPU."""

    def opened(family: str, graph: GraphName) -> Opened:
        folder = repository / family / "1"
        manifest = read_manifest(folder, family=family, version=1)
        session = open_session(folder / manifest.graphs[graph].file, device=on_cpu(""), threads=1)
        return session, signature_of(manifest, graph)

    return opened


def ragged(signature: Signature, batch: int, tokens: int, seed: int) -> Arrays:
    """Random inputs of (B, T), each sequence of its own length, 0 among them."""
    random = np.random.default_rng(seed)
    feeds: dict[str, NDArray[Any]] = {}
    for tensor in signature.feeds:
        shape = tensor.at({"B": batch, "T": tokens})
        if tensor.name == "lengths":
            feeds[tensor.name] = random.integers(0, tokens + 1, batch).astype(np.int32)
        elif tensor.datatype == "BOOL":
            feeds[tensor.name] = random.random(shape) < 0.7
        elif tensor.datatype.startswith("INT"):
            largest = 2 if "type" in tensor.name else 32
            feeds[tensor.name] = random.integers(0, largest, shape).astype(np.int64)
        else:
            feeds[tensor.name] = random.standard_normal(shape, np.float32)
    return feeds
