"""What each part has found, in markdown."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gpu.journal import Found, Row

_CONTENDERS = (
    *("fast", "fast, CUDA graph", "attention"),
    *("torch eager", "torch.compile", "torch.compile, CUDA graph"),
)


def section(part: str, found: Found) -> list[str]:
    """A part's lines, its heading left out."""
    return _SECTIONS[part](found)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A table in markdown; nothing where it has no rows."""
    lines = ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns), *lines, ""] if lines else []


def number(value: object, digits: int = 2) -> str:
    """A number for a table; what was not measured is a dash."""
    return f"{value:,.{digits}f}" if isinstance(value, int | float) else "–" if value is None else str(value)


def small(value: object) -> str:
    """A deviation for a table."""
    return f"{value:.1e}" if isinstance(value, float) else "–" if value is None else str(value)


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
    return lines + _peak(found)


def _peak(found: Found) -> list[str]:
    peaks = (
        f"{number(row['teraflops'], 1)} TFLOP/s in {row['precision']} ({row['size']} × {row['size']})"
        for row in found.of("peak")
    )
    said = ", ".join(peaks)
    return [f"Product of two random matrices, the peak: {said}.", ""] if said else []


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


def _table(found: Found) -> list[str]:
    rows = sorted(
        found.of("size"), key=lambda row: (row["d_model"], row["layers"], row["tokens"], row["batch"])
    )
    lines = [
        *_peak(found),
        "Milliseconds of one run by the device's clock, everything in its memory, every sequence as long as",
        "T; in brackets the share of that peak. PyTorch: one W_qkv, its fused attention, no mask; its layers",
        "compiled one by one for each size. Ratios are those of the median round.",
        "",
    ]
    columns = ("encoder", "B", "T", *_CONTENDERS, "fast × compiled", "fast × eager", "attention costs")
    lines += table(
        columns,
        (
            (
                f"{row['d_model']}/{row['heads']} × {row['layers']}, {row['precision']}",
                row["batch"],
                row["tokens"],
                *(_time(row, name) for name in _CONTENDERS),
                number(row["against_compiled"]),
                number(row["against_eager"]),
                number(row["attention_costs"]),
            )
            for row in rows
        ),
    )
    return lines + [
        f"- {row['d_model']}/{row['heads']}, B = {row['batch']}, T = {row['tokens']}, {name}: {problem}"
        for row in rows
        for name, problem in row["problems"].items()
    ]


def _time(row: Row, name: str) -> str:
    if name not in row["ms"]:
        return "–"
    return f"{number(row['ms'][name], 3)} ({100 * row['share_of_peak'][name]:.0f} %)"


def _served(found: Found) -> list[str]:
    alone = (f"{number(row['sequences_per_second'], 0)} at B = {row['batch']}" for row in found.of("alone"))
    said = ", ".join(alone)
    lines = [f"onnxruntime alone, one run at a time, sequences a second: {said}.", ""] if said else []
    lines += table(
        ("workers", "ready after", "memory of the card, MiB"),
        (
            (
                row["workers"],
                f"{number(row['ready_seconds'], 0)} s",
                number(None if row["gpu_bytes"] is None else row["gpu_bytes"] / 2**20, 0),
            )
            for row in found.of("server")
        ),
    )
    return lines + table(
        ("workers", "a call", "in flight", "sequences/s", "p50 / p99 ms", "errors", "cores of the callers"),
        (
            (
                row["workers"],
                row["traffic"],
                row["in_flight"],
                number(row["sequences_per_second"], 0),
                f"{number(row['p50_ms'], 1)} / {number(row['p99_ms'], 1)}",
                row["errors"],
                number(row["cores"], 1),
            )
            for row in found.of("load")
        ),
    )


def _heads(found: Found) -> list[str]:
    lines = ["Microseconds of one layer by the device's clock; the width and all products are the same.", ""]
    lines += table(
        ("H", "K", "B", "T", "fast", "attention", "attention costs"),
        (
            (
                row["heads"],
                row["head_width"],
                row["batch"],
                row["tokens"],
                number(row["layer_us"].get("fast"), 1),
                number(row["layer_us"].get("attention"), 1),
                number(row["attention_costs"]),
            )
            for row in found.of("heads")
        ),
    )
    return lines + [
        f"- H = {row['heads']}, {name}: {problem}"
        for row in found.of("heads")
        for name, problem in row["problems"].items()
    ]


def _memory(found: Found) -> list[str]:
    lines = [
        "Memory of the card, MiB, without inputs and outputs; each step comes on top of those above it.",
        "",
    ]
    return lines + table(
        ("encoder", "step", "MiB"),
        ((row["family"], row["step"], number(row["mib"], 0)) for row in found.of("step")),
    )


def _left_to_the_cpu(operators: Mapping[str, Mapping[str, int]]) -> str:
    if set(operators) <= {"CPUExecutionProvider"}:
        return "–"
    left = operators.get("CPUExecutionProvider", {})
    return ", ".join(f"{count} {name}" for name, count in left.items()) or "nothing"


_SECTIONS: Mapping[str, Callable[[Found], list[str]]] = {
    "environment": _environment,
    "export": _export,
    "parity": _parity,
    "kernels": _kernels,
    "table": _table,
    "served": _served,
    "heads": _heads,
    "memory": _memory,
}
