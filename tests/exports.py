"""What tests of exports share: traced graphs, and how to read and run what was exported."""

import copy
import fcntl
import hashlib
import json
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from polyhead_export.comparison import Change
from polyhead_export.graphs import build_graph
from polyhead_export.neighbours import measure_neighbours
from polyhead_export.parity import Judged, JudgeInFp32, compared_sizes
from polyhead_export.signature import GraphKind
from polyhead_export.weights import hash_of
from polyhead_model import Encoder, parameters

T = TypeVar("T")

_MOST_PARAMETERS = 1_000_000
"""Of what is kept: a file of a graph and its weights together may have 2 GiB."""


@contextmanager
def share_exports(folder: Path) -> Iterator[None]:
    """Have exports trace and compare each graph of an encoder once in all processes that share a folder.

    Most of what tests export are the same few small encoders, and most of an export is tracing and comparing.
    """

    def build(encoder: Encoder, kind: GraphKind, *, pack: bool) -> ir.Model:
        if parameters(encoder.config) > _MOST_PARAMETERS:
            return build_graph(encoder, kind, pack=pack)

        def trace() -> bytes:
            return ir.to_proto(build_graph(encoder, kind, pack=pack)).SerializeToString()

        content = _once(folder, ("trace", *_said(encoder), kind, pack), trace)
        return ir.from_proto(onnx.ModelProto.FromString(content))

    class Remembering(JudgeInFp32):
        """Compares the same files with the same encoder once."""

        def __init__(self, encoder: Encoder, files: Path) -> None:
            super().__init__(encoder, files)
            self.encoder, self.files = encoder, files

        def judge(self, kind: GraphKind) -> Judged:
            said = (*_said(self.encoder), compared_sizes(self.encoder.config), *_files(self.files, kind))
            return _once(folder, ("judge", *said), lambda: super(Remembering, self).judge(kind))

    def measure(files: Path, kind: GraphKind, *rest: Any) -> dict[str, Change]:
        said = ("neighbours", *_files(files, kind), rest)
        return _once(folder, said, lambda: measure_neighbours(files, kind, *rest))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("polyhead_export.version.build_graph", build)
        patch.setattr("polyhead_export.version.JudgeInFp32", Remembering)
        patch.setattr("polyhead_export.version.measure_neighbours", measure)
        _export_faster(patch)
        yield


def _said(encoder: Encoder) -> tuple[object, ...]:
    """What an encoder computes follows from this."""
    return type(encoder).__qualname__, encoder.config, hash_of(encoder)


def _files(folder: Path, kind: GraphKind) -> tuple[object, ...]:
    """A graph, and what its files hold."""
    names = (kind.file, "weights.bin")
    return kind, *(hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names)


def _once(folder: Path, said: object, make: Callable[[], T]) -> T:
    """What is made once of the same, in all processes that share a folder."""
    file = folder / hashlib.sha256(repr(said).encode()).hexdigest()
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            part = file.with_suffix(".part")
            part.write_bytes(pickle.dumps(make()))
            part.rename(file)
    made: T = pickle.loads(file.read_bytes())
    return made


def _export_faster(patch: pytest.MonkeyPatch) -> None:
    """Have the exporter make the same graphs with less work.

    Another version of torch or onnxscript may keep its parts elsewhere: exports then take longer.
    """
    for quicker in (
        _load_translations_once,
        _match_the_operator_first,
        _keep_what_was_computed,
        _keep_no_shapes,
    ):
        with suppress(ImportError, AttributeError):
            owner, name, made = quicker()
            REPLACED.append((owner, name, getattr(owner, name)))
            patch.setattr(owner, name, made)


REPLACED: list[tuple[Any, str, Any]] = []
"""What `_export_faster` has replaced: who had it, its name, and itself."""


def _load_translations_once() -> tuple[Any, str, Any]:
    """Loading the thousand translations for every graph takes a quarter of the time of a small one."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    load = cache(ONNXRegistry.from_torchlib)

    def from_torchlib(*arguments: Any, **options: Any) -> ONNXRegistry:
        """Return a copy: an export registers translations of its own."""
        made = copy.copy(load(*arguments, **options))
        made.functions = {target: list(known) for target, known in made.functions.items()}
        return made

    return ONNXRegistry, "from_torchlib", staticmethod(from_torchlib)


def _match_the_operator_first() -> tuple[Any, str, Any]:
    """A rule with two outputs is tried on all pairs of nodes, a third of a large graph's time.

    But no pair matches whose first node is another operator.
    """
    from onnxscript.rewriter._basics import MatchResult
    from onnxscript.rewriter._matcher import SimplePatternMatcher

    match = SimplePatternMatcher.match

    def match_first(self: Any, model: Any, graph: Any, node: ir.Node, **options: Any) -> Any:
        if self.pattern.output_nodes[0].op_identifier() in {None, node.op_identifier()}:
            return match(self, model, graph, node, **options)
        return MatchResult().fail("another operator")

    return SimplePatternMatcher, "match", match_first


def _keep_what_was_computed() -> tuple[Any, str, Any]:
    """All operators are computed once more to promote the types of some, a fifth of the time."""
    from torch.onnx._internal.fx.passes import type_promotion

    interpreter = type_promotion._TypePromotionInterpreter
    run_again = interpreter.run_node

    def run_node(self: Any, node: Any) -> Any:
        if node.op != "call_function" or node.meta.get("val") is None:
            return run_again(self, node)
        with self._set_current_node(node):
            if rule := type_promotion.get_type_promotion_rule(node, self.type_promotion_table):
                self._maybe_promote_node(node, rule)  # which computes it if it must
        return node.meta["val"]

    return interpreter, "run_node", run_node


def _keep_no_shapes() -> tuple[Any, str, Any]:
    """To keep the shapes that it infers takes a quarter of the time; few layers meet few of them again."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode, "_cached_dispatch_impl", FakeTensorMode._dispatch_impl


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
