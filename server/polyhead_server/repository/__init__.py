"""The model repository on disk: what is there, and whether it can be trusted."""

from polyhead_server.repository.integrity import verify
from polyhead_server.repository.manifest import Graph, GraphName, Manifest, Tensor, read_manifest
from polyhead_server.repository.repository import Broken, VersionFolder, scan

__all__ = [
    "Broken",
    "Graph",
    "GraphName",
    "Manifest",
    "Tensor",
    "VersionFolder",
    "read_manifest",
    "scan",
    "verify",
]
