"""Graphs of a model repository, described and run without a server."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyhead_server.engine.devices import choose_device
from polyhead_server.engine.engine import Engine
from polyhead_server.repository.manifest import Manifest, read_manifest
from polyhead_server.repository.signature import Signature, signature_of
from polyhead_server.scheduling import Planner, Work, measure
from polyhead_server.scheduling.batch import JointWork
from polyhead_server.scheduling.execution import Result, execute


def manifest_of(models: Path, family: str) -> Manifest:
    """The manifest of a family's version 1."""
    return read_manifest(models / family / "1", family=family, version=1)


def described(models: Path, family: str, graph: str = "fast") -> Signature:
    """What a graph takes and gives."""
    return signature_of(manifest_of(models, family), graph)


class OpenGraph:
    """A graph with an engine of one thread."""

    def __init__(self, models: Path, family: str, graph: str, device: str = "cpu") -> None:
        manifest = manifest_of(models, family)
        self.signature = signature_of(manifest, graph)
        file = models / family / "1" / manifest.graphs[graph].file
        self.engine = Engine(file, signature=self.signature, device=choose_device(device), threads=1)

    def work(self, feeds: Mapping[str, Any]) -> Work:
        """A request for every output."""
        size, real_tokens = measure(feeds, self.signature)
        return Work(feeds=feeds, outputs=self.engine.outputs, size=size, real_tokens=real_tokens)

    def run(self, works: Sequence[Work]) -> Result:
        """Runs requests as one batch."""
        return execute(self.engine, self.joint(works))

    def joint(self, works: Sequence[Work]) -> JointWork:
        """Joins requests."""
        size = Planner(packed=self.signature.packed).joint([work.size for work in works])
        return JointWork(works, self.signature, size)
