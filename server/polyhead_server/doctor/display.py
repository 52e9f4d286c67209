"""The doctor's report for people."""

from collections.abc import Iterator, Mapping

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from polyhead_server.doctor.report import Report


def show(report: Report, console: Console) -> None:
    """Print a report."""
    for part in _parts(report):
        console.print(part)


def _parts(report: Report) -> Iterator[RenderableType]:
    yield _machine(report)
    if report.cuda.libraries:
        table = Table(
            *("library", "needed", Column("found", overflow="fold"), "comes with"),
            title="What onnxruntime's CUDA provider uses",
        )
        for library in report.cuda.libraries:
            table.add_row(library.name, library.needed, library.path or "[red]missing", library.brought_by)
        yield table
    if report.graphs:
        yield _graphs(report)
    # Operators by where they run: on a GPU, those that are left to the CPU are worth a look.
    for graph in report.graphs:
        for provider, counts in graph.operators.items():
            style = "bold" if provider == graph.provider else "bold yellow"
            yield Text.assemble((f"{graph.model} on {_short(provider)}", style), f": {_counts(counts)}")
    if any(graph.drift is not None for graph in report.graphs):
        yield _drifts(report)
    for kind, style, problems in (
        ("problem", "bold red", report.problems),
        ("advice", "bold yellow", report.advice),
    ):
        for problem in problems:
            remedy = ("\n  ", ("to do", "bold"), f": {problem.remedy}")
            yield Text.assemble((kind, style), f": {problem.what}", *remedy)
    if report.works:
        runs = (
            f": --device {report.asked} runs on {report.chosen}, and computes in {report.compute_precision}"
        )
        yield Text.assemble(("works", "bold green"), runs)


def _machine(report: Report) -> Table:
    cuda, runtime, cpu, memory = report.cuda, report.runtime, report.processors, report.memory
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("polyhead", f"{report.polyhead}, Python {report.python}, {report.system}")
    table.add_row(
        "processors",
        f"{cpu.in_machine}, of which this process may use {cpu.affinity}; with the container's quota: "
        f"{cpu.usable} threads",
    )
    if cpu.model is not None:
        table.add_row("", escape(cpu.model))
    has = cpu.instructions
    named = "unknown" if has is None else ", ".join(f"{'' if has[name] else 'no '}{name}" for name in has)
    table.add_row("instructions", named)
    limit = "no limit" if memory.limit is None else f"limit {_gib(memory.limit)}"
    table.add_row("memory", f"{_gib(memory.total)}, {_gib(memory.available)} available, {limit}")
    packages = ", ".join(runtime.packages) or "no distribution"
    built = f"built for CUDA {runtime.cuda}" if runtime.cuda else "built without CUDA"
    table.add_row("onnxruntime", f"{runtime.version} ({packages}), {built}")
    table.add_row("", f"has {', '.join(runtime.providers)}")
    openvino = report.openvino
    computes = f"{openvino.version}, computes in {' or '.join(openvino.computes)}"
    table.add_row("OpenVINO", computes if openvino.problem is None else escape(openvino.problem))
    highest = f", for CUDA up to {cuda.highest}" if cuda.highest else ""
    driver = f"{cuda.driver or 'of unknown version'}{highest}" if cuda.driver or cuda.gpus else "none"
    table.add_row("NVIDIA driver", driver)
    for gpu in cuda.gpus:
        table.add_row("GPU", f"{gpu.name}, compute {gpu.capability}, {_gib(gpu.memory)}")
    table.add_row("versions", f"CUDA runtime {cuda.runtime or '–'}, nvrtc {cuda.compiler or '–'}")
    table.add_row("CUDA", "a graph ran on it" if cuda.problem is None else escape(cuda.problem))
    return table


def _graphs(report: Report) -> Table:
    table = Table(
        *(Column("model", overflow="fold"), "version", "precision", "runs on"),
        Column("attention", overflow="fold"),
        title="Graphs",
    )
    for graph in report.graphs:
        table.add_row(
            *(graph.model, str(graph.version), graph.precision),
            "[red]nothing" if graph.provider is None else _short(graph.provider),
            f"{graph.attention} ({_counts(graph.attention_operators)})" if graph.attention_operators else "",
        )
    return table


def _drifts(report: Report) -> Table:
    measured = [(graph.model, graph.drift) for graph in report.graphs if graph.drift is not None]
    table = Table(
        *(Column("model", overflow="fold"), Column("output", overflow="fold")),
        *("cosine, least", "mean", "largest deviation", "other top keys"),
        title=f"What {report.compute_precision} changes",
        caption=f"against fp32, on {' and '.join(sorted({drift.inputs for _, drift in measured}))}",
    )
    for model, drift in measured:
        for row, output in enumerate(drift.outputs):
            cosine, worst = drift.cosines.get(output), drift.deviations.get(output)
            share = drift.other_top_keys.get(output)
            table.add_row(
                *("" if row else model, output),
                *(("", "") if cosine is None else (f"{cosine.least:.5f}", f"{cosine.mean:.5f}")),
                "" if worst is None else f"{worst:.1e}",
                "" if share is None else f"{share:.1%}",
            )
    return table


def _counts(counts: Mapping[str, int]) -> str:
    most_first = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} {operator}" for operator, count in most_first)


def _short(provider: str) -> str:
    return provider.removesuffix("ExecutionProvider")


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"
