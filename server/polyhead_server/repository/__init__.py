"""The model repository on disk: what is there, and whether it can be trusted."""

from polyhead_server.repository.downloads import fetch
from polyhead_server.repository.integrity import verify
from polyhead_server.repository.manifest import Graph, GraphName, Manifest, Tensor, read_manifest
from polyhead_server.repository.private import private_copy, remove_abandoned_copies, remove_private_copies
from polyhead_server.repository.repository import (
    Broken,
    Scan,
    VersionFolder,
    list_families,
    no_models,
    scan,
    scan_family,
)

__all__ = [
    "Broken",
    "Graph",
    "GraphName",
    "Manifest",
    "Scan",
    "Tensor",
    "VersionFolder",
    "fetch",
    "list_families",
    "no_models",
    "private_copy",
    "read_manifest",
    "remove_abandoned_copies",
    "remove_private_copies",
    "scan",
    "scan_family",
    "verify",
]
