"""What each part has found, in markdown."""

from collections.abc import Callable, Mapping
from typing import Any

from gpu.journal import Found, Row
from gpu.markdown import number, small, table
from gpu.speed_sections import heads_lines, peak_lines, served_lines, table_lines


def section(part: str, found: Found) -> list[str]:
    """A part's lines, its heading left out."""
    return _SECTIONS[part](found)


def _environment(found: Found) -> list[str]:
    facts: dict[str, Any] = {}
    for kind in ("machine", "driver", "versions"):
        for row in found.of(kind):
            facts |= {name: value for name, value in row.items() if name != "kind"}
    lines = table(("", ""), facts.items())
    for row in found.of("libraries"):
        if row["loaded"]:
            lines += ["Libraries in the process: " + ", ".join(row["loaded"]) + ".", ""]
    for row in found.of("copies"):
        ways = (f"{name} {number(value, 0)} GB/s" for name, value in row.items() if name != "kind")
        lines += ["Copies: " + ", ".join(ways) + ".", ""]
    return lines + peak_lines(found)


def _export(found: Found) -> list[str]:
    return table(
        ("family", "seconds"), ((row["family"], number(row["seconds"], 0)) for row in found.of("exported"))
    )


def _parity(found: Found) -> list[str]:
    lines = [
        "Largest |difference| / max(1, |PyTorch|) of each output over the sizes, ragged, and the smallest",
        "cosine between a vector and PyTorch's.",
        "",
    ]
    columns = (
        "encoder",
        "weights",
        "precision",
        "graph",
        "output",
        "pooled",
        "attention",
        "cosine",
        "on the CPU",
    )
    return lines + table(
        columns,
        (
            (
                f"{row['family']} {row['d_model']}/{row['heads']} × {row['layers']}",
                "trained" if row["trained"] else "random",
                row["precision"],
                row["graph"],
                *(small(row[name]) for name in ("output", "pooled", "attention")),
                number(row["cosine"], 6),
                _left_to_the_cpu(row["operators"]),
            )
            for row in found.of("graph")
        ),
    )


def _left_to_the_cpu(operators: Mapping[str, Mapping[str, int]]) -> str:
    if set(operators) <= {"CPUExecutionProvider"}:
        return "–"
    left = operators.get("CPUExecutionProvider", {})
    return ", ".join(f"{count} {name}" for name, count in left.items()) or "nothing"


def _engine(found: Found) -> list[str]:
    lines = [
        "Largest |difference| / max(1, |onnxruntime alone|), padding left out: ragged sizes, each several",
        "times with other data.",
        "",
    ]
    return lines + table(
        ("graph", "CUDA graphs", "asked", "pooled", "the rest"),
        (
            (
                row["graph"],
                "yes" if row["cuda_graphs"] else "no",
                row["check"] + (f": **{row['problem']}**" if "problem" in row else ""),
                *(small(row.get(name)) for name in ("pooled", "rest")),
            )
            for row in found.of("engine")
        ),
    )


def _kernels(found: Found) -> list[str]:
    rows = found.of("form")
    if not rows:
        return []
    batch, tokens, heads, width = rows[0]["size"]
    lines = [
        f"Attention alone, B = {batch}, T = {tokens}, H = {heads}, K = {width}; with a mask, sequences are",
        "ragged and one is all padding. “Says” is onnxruntime's own word, “kernel” the profiler's.",
        "",
    ]
    columns = ("form", "precision", "says", "kernel", "ms", "difference", "padding", "longest kernels, µs")
    return lines + table(columns, (_kernel_row(row) for row in rows))


def _kernel_row(row: Row) -> list[str]:
    form = row["form"] + (", cuDNN off" if row["cudnn_off"] else "")
    if "problem" in row:
        return [form, row["precision"], f"does not run: {row['problem']}", *[""] * 5]
    longest = (f"`{name[:60]}` {number(spent, 0)}" for name, spent in list(row["kernels"].items())[:2])
    return [
        form,
        row["precision"],
        row["said"] or "–",
        row["ran"] or "–",
        number(row["ms"], 3),
        small(row["difference"]),
        "finite" if row["padding_finite"] else "**not finite**",
        ", ".join(longest),
    ]


def _memory(found: Found) -> list[str]:
    lines = [
        "Memory of the card, MiB, without inputs and outputs; each step comes on top of those above it.",
        "",
    ]
    return lines + table(
        ("encoder", "step", "MiB"),
        ((row["family"], row["step"], number(row["mib"], 0)) for row in found.rows),
    )


_SECTIONS: Mapping[str, Callable[[Found], list[str]]] = {
    "environment": _environment,
    "export": _export,
    "parity": _parity,
    "engine": _engine,
    "kernels": _kernels,
    "table": table_lines,
    "served": served_lines,
    "heads": heads_lines,
    "memory": _memory,
}
