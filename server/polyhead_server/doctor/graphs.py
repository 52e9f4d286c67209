"""What of a graph runs where: its operators by provider, and the kind of its attention."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnxruntime as ort

from polyhead_server.doctor.report import GraphReport
from polyhead_server.engine.devices import Device, Operators, check_precision
from polyhead_server.engine.session import FUSED_ATTENTION, placed, slow_on_cpu, spell
from polyhead_server.errors import RepositoryError
from polyhead_server.repository import GraphName, VersionFolder, scan, verify


def inspect(models: Path, name: str | None, device: Device) -> Iterator[GraphReport]:
    """Loads the graphs of a repository, one after the other, as a server would.

    Args:
        models: The repository.
        name: One family, or one graph of it such as `minilm.attention`; None is all.
        device: Where they should run.

    Raises:
        StartError: There is no such repository.
        RepositoryError: It has no such model.
    """
    found, broken = scan(models)
    family = None if name is None else name.partition(".")[0]
    known = {each.family for each in found} | {each.family for each in broken}
    if family is not None and family not in known:
        raise RepositoryError(f"{models} has no model {name!r}: it has {', '.join(sorted(known))}")
    for each in broken:
        if family in {None, each.family}:
            yield _failed(each.family, each.version, "", each.reason)
    for version in found:
        if family in {None, version.family}:
            for graph in version.manifest.graphs:
                if name in {None, family, version.manifest.served_name(graph)}:
                    yield _inspect_graph(version, graph, device)


def attention_of(operators: Operators) -> tuple[str, Mapping[str, int]]:
    """How a graph computes attention, by its operators, and the operators that do."""
    total: Counter[str] = Counter()
    for counts in operators.values():
        total.update(counts)
    fused = {operator: count for operator, count in total.items() if operator in FUSED_ATTENTION}
    if fused and total["Softmax"]:
        return "fused and explicit", fused | {"Softmax": total["Softmax"]}
    if fused:
        return "fused", fused
    return ("explicit", {"Softmax": total["Softmax"]}) if total["Softmax"] else ("none", {})


def open_recording(path: Path, providers: Sequence[object]) -> ort.InferenceSession:
    """A session that records where its nodes are."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    # Nothing is run: copies of the weights that kernels read best would only take memory.
    options.add_session_config_entry("session.disable_prepacking", "1")
    return ort.InferenceSession(str(path), options, providers=providers)


def _inspect_graph(version: VersionFolder, graph: GraphName, device: Device) -> GraphReport:
    manifest = version.manifest
    model, precision = manifest.served_name(graph), manifest.precision
    try:
        check_precision(precision, device)
        verify(version.folder, manifest)
        session = open_recording(version.folder / manifest.graphs[graph].file, device.providers)
    except RepositoryError as error:
        return _failed(model, version.version, precision, str(error))
    except Exception as error:
        reason = f"onnxruntime cannot load it: {str(error).splitlines()[0]}"
        return _failed(model, version.version, precision, reason)
    provider, operators = session.get_providers()[0], placed(session)
    attention, attention_operators = attention_of(operators)
    slow = slow_on_cpu(operators, device) if provider == device.provider else {}
    problem = None
    if provider != device.provider:
        problem = f"onnxruntime put it on {provider} instead of {device.provider}"
    elif slow:
        problem = f"runs on the CPU in part: {spell(slow)}"
    return GraphReport(
        model=model,
        version=version.version,
        precision=precision,
        provider=provider,
        attention=attention,
        attention_operators=attention_operators,
        operators=operators,
        slow_on_cpu=slow,
        problem=problem,
    )


def _failed(model: str, version: int, precision: str, reason: str) -> GraphReport:
    return GraphReport(
        model=model,
        version=version,
        precision=precision,
        provider=None,
        attention="",
        attention_operators={},
        operators={},
        slow_on_cpu={},
        problem=reason,
    )
