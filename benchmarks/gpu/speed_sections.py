"""What was timed, in markdown: against PyTorch, served, by head count."""

from gpu.journal import Found, Row
from gpu.markdown import number, small, table

_CONTENDERS = (
    *("fast", "fast, CUDA graph", "attention"),
    *("torch eager", "torch.compile", "torch.compile, CUDA graph", "torch.compile, cuDNN, CUDA graph"),
)

_HELD_UP = "the host is busy as long as the card: it waits for each run, or is itself the limit"


def peak_lines(found: Found) -> list[str]:
    """The rate of a large product."""
    peaks = (
        f"{number(row['teraflops'], 1)} TFLOP/s in {row['precision']} ({row['size']} × {row['size']})"
        for row in found.of("peak")
    )
    said = ", ".join(peaks)
    return [f"Product of two random matrices, the peak: {said}.", ""] if said else []


def table_lines(found: Found) -> list[str]:
    """Graphs and PyTorch, size by size."""
    rows = sorted(
        found.of("size"), key=lambda row: (row["d_model"], row["layers"], row["tokens"], row["batch"])
    )
    lines = [
        *peak_lines(found),
        "Milliseconds of one run by the device's clock, everything in its memory, every sequence as long as",
        "T; in brackets the share of that peak. PyTorch: one W_qkv, its fused attention, no mask; its layers",
        "compiled one by one for each size, also with cuDNN's attention in the place of its choice.",
        "Ratios are those of the median round.",
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
        for name, problem in (*row["problems"].items(), *((held, _HELD_UP) for held in row["held_up"]))
    ]


def _time(row: Row, name: str) -> str:
    if name not in row["ms"]:
        return "–"
    return f"{number(row['ms'][name], 3)} ({100 * row['share_of_peak'][name]:.0f} %)"


def served_lines(found: Found) -> list[str]:
    """Onnxruntime alone, servers, and loads."""
    alone = (f"{number(row['sequences_per_second'], 0)} at B = {row['batch']}" for row in found.of("alone"))
    said = ", ".join(alone)
    lines = [
        "A call carries token ids and brings back the pooled vector, unless it says something else: a few",
        "kilobytes, so that it is the server that is measured.",
        "",
    ]
    lines += [f"onnxruntime alone, one run at a time, sequences a second: {said}.", ""] if said else []
    lines += table(
        ("server", "ready after", "memory of the card, MiB", "answers differ from the graph's by"),
        (
            (
                row["server"],
                f"{number(row['ready_seconds'], 0)} s",
                number(None if row["gpu_bytes"] is None else row["gpu_bytes"] / 2**20, 0),
                small(row["difference"]),
            )
            for row in found.of("server")
        ),
    )
    return lines + table(
        ("server", "a call", "in flight", "sequences/s", "p50 / p99 ms", "errors", "cores of the callers"),
        (
            (
                row["server"],
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


def heads_lines(found: Found) -> list[str]:
    """One row for each head count and size."""
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
