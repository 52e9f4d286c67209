"""Which operators of a graph run where, and how it computes attention."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from polyhead_server.doctor.report import GraphReport
from polyhead_server.engine.device import Device, Operators
from polyhead_server.engine.devices import check_precision, examine_graph
from polyhead_server.engine.engine import Engine
from polyhead_server.engine.session import FUSED_ATTENTION, slow_on_cpu, spell
from polyhead_server.errors import RepositoryError, ServingError
from polyhead_server.repository.integrity import verify
from polyhead_server.repository.manifest import GraphName
from polyhead_server.repository.scanning import Broken, VersionFolder, scan
from polyhead_server.repository.signature import signature_of
from polyhead_server.serving.drift import ComputeDrift
from polyhead_server.serving.loading import drift_on
from polyhead_server.serving.tokeniser import open_tokeniser


def inspect(models: Path, name: str | None, device: Device) -> Iterator[GraphReport]:
    """Load the graphs of a repository, one after the other, as a server would.

    Args:
        models: The repository.
        name: One family, or one graph of it such as `minilm.attention`; None is all.
        device: Where they should run.

    Raises:
        StartError: There is no such repository.
        RepositoryError: It has no such model.
    """
    found = scan(models)
    family = None if name is None else name.partition(".")[0]
    known = {each.family for each in found}
    if family is not None and family not in known:
        raise RepositoryError(f"{models} has no model {name!r}: it has {', '.join(sorted(known))}")
    for version in found:
        if family not in {None, version.family}:
            continue
        if isinstance(version, Broken):
            yield GraphReport(
                model=version.family, version=version.version, precision="", problem=version.reason
            )
            continue
        for graph in version.manifest.graphs:
            if name in {None, family, version.manifest.served_name(graph)}:
                yield _inspect_graph(version, graph, device)


def attention_of(operators: Operators) -> tuple[str, Mapping[str, int]]:
    """Return how a graph computes attention, and the operators that do."""
    total: Counter[str] = Counter()
    for counts in operators.values():
        total.update(counts)
    fused = {operator: count for operator, count in total.items() if operator in FUSED_ATTENTION}
    softmax = {"Softmax": total["Softmax"]} if total["Softmax"] else {}
    kinds = [kind for kind, found in (("fused", fused), ("explicit", softmax)) if found]
    return " and ".join(kinds) or "none", fused | softmax


def _inspect_graph(version: VersionFolder, graph: GraphName, device: Device) -> GraphReport:
    manifest = version.manifest
    report = GraphReport(
        model=manifest.served_name(graph), version=version.version, precision=manifest.precision
    )
    try:
        check_precision(manifest.precision, device)
        verify(version.folder, manifest)
        provider, operators = examine_graph(version.folder / manifest.graphs[graph].file, device)
        drift = _drift(version, graph, device)
    except ServingError as error:
        return replace(report, problem=str(error))
    attention, attention_operators = attention_of(operators)
    slow = slow_on_cpu(operators, device) if provider == device.provider else {}
    problem = None
    if provider != device.provider:
        problem = f"onnxruntime put it on {provider} instead of {device.provider}"
    elif slow:
        problem = f"runs on the CPU in part: {spell(slow)}"
    return replace(
        report,
        provider=provider,
        attention=attention,
        attention_operators=attention_operators,
        operators=operators,
        slow_on_cpu=slow,
        drift=drift,
        problem=problem,
    )


def _drift(version: VersionFolder, graph: GraphName, device: Device) -> ComputeDrift | None:
    """Measure what the device's precision of computation changes, as a server does when it loads a graph."""
    if device.compute_precision == "fp32":
        return None
    manifest, signature = version.manifest, signature_of(version.manifest, graph)
    path = version.folder / manifest.graphs[graph].file
    tokeniser = open_tokeniser(version.folder, manifest)
    engine = Engine(path, signature=signature, device=device, threads=1)
    try:
        return drift_on(device, path, engine, signature, tokeniser)
    finally:
        engine.close()
