"""What heads cost, as a page and a picture."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from report import made_with, markdown_table

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


def page(result: Mapping[str, Any]) -> str:
    """Return the result as a page in Markdown."""
    threads = result["threads"]
    lines = [
        "# What heads cost",
        "",
        f"Made by `make bench-heads`: {made_with(result['fingerprint'])}; {threads} "
        f"thread{'s' * (threads > 1)} a run.",
        "",
        "One layer of attention, D = 768, B = 1, in process. What is compared runs in turn; a ratio is the "
        "median over pairs of runs of the same turn, with quartiles. First, every output is compared with that "
        "of heads that are computed one after the other.",
        "",
        "![What heads cost](head-costs.png)",
        "",
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
    return "\n".join(lines)


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw implementations by length, and times by the number of heads."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 9), layout="constrained")
    (ratios, each), (narrower, more) = figure.subplots(2, 2)
    lengths = result["by_length"]
    tokens = [one["tokens"] for one in lengths]
    for name, colour in _COLOURS.items():
        values = [one["compared"][name] for one in lengths if name in one["compared"]]
        if not values:
            continue
        style = "--" if name == "projections alone" else "-"
        each.plot(
            tokens, [1e3 * v["ms"] / t for v, t in zip(values, tokens, strict=True)], style, color=colour
        )
        _band(ratios, tokens, values, colour, style, name)
    ratios.set(title="Implementations, 12 heads of width 64", ylabel="time, × onnxruntime fast")
    each.set(title="A token's time grows once attention outweighs projections", ylabel="µs a token")
    for axes in (ratios, each):
        axes.set(xscale="log", yscale="log", xlabel="tokens (T)", xticks=tokens, xticklabels=tokens)
        axes.minorticks_off()
    ratios.set(yticks=(0.5, 1, 2, 3, 4), yticklabels=(0.5, 1, 2, 3, 4))
    for axes, title, is_drawn in (
        (narrower, "More heads of the same D: K = 768 / H", lambda heads, width: heads * width == 768),
        (more, "More heads of the same width: K = 64", lambda heads, width: width == 64),
    ):
        for one in result["by_heads"]:
            chosen = {
                shape[0]: values
                for key, values in one["compared"].items()
                if is_drawn(*(shape := tuple(map(int, key.split(" × ")))))
            }
            name = one["implementation"]
            style = "-" if one["tokens"] == result["by_heads"][0]["tokens"] else "--"
            _band(
                axes,
                list(chosen),
                list(chosen.values()),
                _COLOURS[name],
                style,
                f"{name}, T = {one['tokens']}",
            )
        axes.set(xscale="log", title=title, xlabel="heads (H)", ylabel="time, × 12 heads of width 64")
        axes.set(xticks=list(chosen), xticklabels=list(chosen))
        axes.minorticks_off()
    for axes in (ratios, each, narrower, more):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    ratios.legend(fontsize=8, frameon=False)
    narrower.legend(fontsize=8, frameon=False, ncols=2)
    figure.savefig(path, dpi=120)


def _band(
    axes: "Axes", x: Sequence[int], values: Sequence[Mapping[str, float]], colour: str, style: str, name: str
) -> None:
    """Draw ratios with their quartiles."""
    axes.plot(x, [each["ratio"] for each in values], style, color=colour, label=name, linewidth=1.5)
    low, high = ([each[end] for each in values] for end in ("low", "high"))
    axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


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
    return f"{value['ratio']:.2f} ({value['low']:.2f}–{value['high']:.2f})"
