"""What heads cost, as a page and a picture."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.rounds import markdown_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {
    "onnxruntime fast": "#1f5fa8",
    "onnxruntime attention": "#d9822b",
    "onnxruntime rows": "#7ab0df",
    "onnxruntime int8": "#2e8b57",
    "SDPA": "#8e5ea2",
    "nn.MultiheadAttention": "#c9a0dc",
    "heads batched": "#888888",
    "heads in a loop": "#222222",
    "projections alone": "#bbbbbb",
}


INTRO = (
    "One layer of attention, D = 768, B = 1, in process; one thread, CPU time. What is compared runs in "
    "turn; a ratio is the median over pairs of runs of the same turn, with its 95 % interval. First, every "
    "output is compared with that of heads that are computed one after the other.",
    "",
    "![What heads cost](head-costs.png)",
)


def sections(result: Mapping[str, Any]) -> list[str]:
    """Return the page's tables."""
    lines = [
        "## Implementations, 12 heads of width 64",
        "",
        *markdown_table(_lengths(result["by_length"])),
        "“Fused” is one matrix for q, k and v. Off: the largest difference to the loop, relative to the "
        "largest number.",
        "",
    ]
    for tokens in dict.fromkeys(each["tokens"] for each in result["by_heads"]):
        lines += [f"## Numbers of heads, T = {tokens}", "", "Time in units of 12 × 64.", ""]
        lines += markdown_table(_heads(each for each in result["by_heads"] if each["tokens"] == tokens))
    return lines


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw implementations by length, and times by the number of heads of the same D."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    by_tokens, by_number = figure.subplots(1, 2)
    lengths, by_heads = result["by_length"], result["by_heads"]
    tokens = [one["tokens"] for one in lengths]
    for name, colour in _COLOURS.items():
        if values := [one["compared"][name] for one in lengths if name in one["compared"]]:
            style = "--" if name == "projections alone" else "-"
            _plot_ratios(by_tokens, tokens, values, label=name, color=colour, linestyle=style)
    heads = sorted({int(shape.split()[0]) for shape in by_heads[0]["compared"]})
    for one in by_heads:
        values = [one["compared"][f"{count} × {768 // count}"] for count in heads]
        label, colour = f"{one['implementation']}, T = {one['tokens']}", _COLOURS[one["implementation"]]
        style = "-" if one["tokens"] == by_heads[0]["tokens"] else "--"
        _plot_ratios(by_number, heads, values, label=label, color=colour, linestyle=style)
    by_tokens.set(title="Implementations, 12 heads of width 64", ylabel="time, × onnxruntime fast")
    by_number.set(title="More heads of the same D: K = 768 / H", ylabel="time, × 12 heads of width 64")
    for axes, what, ticks in ((by_tokens, "tokens (T)", tokens), (by_number, "heads (H)", heads)):
        axes.set(xscale="log", xlabel=what, xticks=ticks, xticklabels=ticks)
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=8, frameon=False, ncols=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def _plot_ratios(axes: "Axes", x: Sequence[int], values: Sequence[Mapping[str, float]], **style: str) -> None:
    """Draw ratios with their intervals."""
    axes.plot(x, [each["value"] for each in values], linewidth=1.5, **style)  # type: ignore[arg-type]
    low, high = ([each[end] for each in values] for end in ("low", "high"))
    axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)


def _lengths(lengths: Sequence[Mapping[str, Any]]) -> Iterable[Mapping[str, str]]:
    for name in lengths[0]["compared"]:
        cells = {
            f"T = {one['tokens']}": f"{one['compared'][name]['ms']:.2f} ms"
            if name == "onnxruntime fast"
            else _ratio(one["compared"][name])
            for one in lengths
        }
        off = max((one["off"].get(name, 0.0) for one in lengths), default=0.0)
        yield {"× onnxruntime fast": name, **cells, "off": f"{off:.0e}" if off else "–"}
    shares = {f"T = {one['tokens']}": f"{one['attention_flops']:.0%}" for one in lengths}
    yield {"× onnxruntime fast": "FLOPs of scores and weighted values", **shares, "off": "–"}


def _heads(comparisons: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, str]]:
    every = list(comparisons)
    for shape in every[0]["compared"]:
        yield {
            "H × K": shape,
            **{one["implementation"]: _ratio(one["compared"][shape]) for one in every},
        }


def _ratio(value: Mapping[str, float]) -> str:
    return f"{value['value']:.2f} ({value['low']:.2f}–{value['high']:.2f})"
