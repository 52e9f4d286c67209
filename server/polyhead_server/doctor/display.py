"""The doctor's report for people."""

from collections.abc import Iterator, Mapping

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from polyhead_server.doctor.report import Cuda, GraphReport, Problem, Report

_GIB = 2**30


def show(report: Report, console: Console) -> None:
    """Prints a report."""
    console.print(Group(*_parts(report)))


def _parts(report: Report) -> Iterator[RenderableType]:
    yield _machine(report)
    if report.cuda.libraries:
        yield _libraries(report.cuda)
    if report.graphs:
        yield _graphs(report.graphs)
        yield from _operators(report.graphs)
    for problem in report.problems:
        yield _told("problem", "bold red", problem)
    for advice in report.advice:
        yield _told("advice", "bold yellow", advice)
    if report.works:
        yield Text.assemble(("works", "bold green"), f": --device {report.asked} runs on {report.chosen}")


def _told(kind: str, style: str, problem: Problem) -> Text:
    return Text.assemble((kind, style), f": {problem.what}\n  ", ("to do", "bold"), f": {problem.remedy}")


def _machine(report: Report) -> Table:
    cuda, runtime, cpu, memory = report.cuda, report.runtime, report.processors, report.memory
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("polyhead", f"{report.polyhead}, Python {report.python}, {report.system}")
    table.add_row(
        "processors",
        f"{cpu.in_machine}, of which this process may use {cpu.affinity}; with the container's quota: "
        f"{cpu.usable} threads, {cpu.concurrent_runs} runs at once",
    )
    limit = "no limit" if memory.limit is None else f"limit {_gib(memory.limit)}"
    table.add_row("memory", f"{_gib(memory.total)}, {_gib(memory.available)} available, {limit}")
    built = f"built for CUDA {runtime.cuda}" if runtime.cuda else "built without CUDA"
    table.add_row(
        "onnxruntime", f"{runtime.version} ({', '.join(runtime.packages) or 'no distribution'}), {built}"
    )
    table.add_row("", f"has {', '.join(runtime.providers)}")
    if cuda.driver is None and not cuda.cards:
        table.add_row("NVIDIA driver", "none")
    else:
        highest = f", for CUDA up to {cuda.highest}" if cuda.highest else ""
        table.add_row("NVIDIA driver", f"{cuda.driver or 'of unknown version'}{highest}")
    for card in cuda.cards:
        free = "" if card.free is None else f", {_gib(card.free)} free"
        table.add_row("GPU", f"{card.name}, compute {card.capability}, {_gib(card.memory)}{free}")
    found = {"CUDA runtime": cuda.runtime, "nvrtc": cuda.compiler, "cuBLAS": cuda.cublas, "cuDNN": cuda.cudnn}
    table.add_row("versions", ", ".join(f"{name} {version or '–'}" for name, version in found.items()))
    table.add_row("CUDA", "a graph ran on it" if cuda.problem is None else escape(cuda.problem))
    return table


def _libraries(cuda: Cuda) -> Table:
    table = Table(
        "library",
        "needed",
        Column("found", overflow="fold"),
        "comes with",
        title="What onnxruntime's CUDA provider uses",
    )
    for library in cuda.libraries:
        table.add_row(library.name, library.needed, library.path or "[red]missing", library.brought_by)
    return table


def _graphs(graphs: tuple[GraphReport, ...]) -> Table:
    table = Table(
        Column("model", overflow="fold"),
        "version",
        "precision",
        "runs on",
        Column("attention", overflow="fold"),
        title="Graphs",
    )
    for graph in graphs:
        table.add_row(
            graph.model,
            str(graph.version),
            graph.precision,
            "[red]nothing" if graph.provider is None else _short(graph.provider),
            f"{graph.attention} ({_counts(graph.attention_operators)})" if graph.attention_operators else "",
        )
    return table


def _operators(graphs: tuple[GraphReport, ...]) -> Iterator[Text]:
    """What each graph is made of, by where it runs; on a card, what is left to the CPU is worth a look."""
    for graph in graphs:
        for provider, counts in graph.operators.items():
            left = provider != graph.provider
            yield Text.assemble(
                (f"{graph.model} on {_short(provider)}", "bold yellow" if left else "bold"),
                f": {_counts(counts)}",
            )


def _counts(counts: Mapping[str, int]) -> str:
    most_first = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} {operator}" for operator, count in most_first)


def _short(provider: str) -> str:
    return provider.removesuffix("ExecutionProvider")


def _gib(size: int) -> str:
    return f"{size / _GIB:,.1f} GiB"
