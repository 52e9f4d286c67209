"""The result of a soak as a page and a plot."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.frame import markdown_table

_INK, _BLUE, _ORANGE, _GREY = "#222222", "#1f5fa8", "#d9822b", "#999999"


def intro(result: Mapping[str, Any]) -> list[str]:
    """Return what was run."""
    return [
        f"{result['seconds'] / 60:.1f} minutes at {result['rate']:.0f} calls/s, seed {result['seed']}; "
        f"{result['server_cores']:.2f} cores for the server, {result['client_cores']:.2f} for its callers."
    ]


def sections(result: Mapping[str, Any]) -> list[str]:
    """Return how calls ended, what was dropped, and memory."""
    memory = result["memory"]
    dropped = ", ".join(f"{reason} {number:,}" for reason, number in result["drops"].items())
    return [
        *markdown_table(
            {"calls": kind, "ended": ", ".join(f"{code} {number:,}" for code, number in codes.items())}
            for kind, codes in result["calls"].items()
        ),
        f"Work that the server dropped: {dropped or 'none'}. Memory after the first third: "
        f"{memory['per_hour']:+.1f} MiB/h (95 %: {memory['low']:+.1f} to {memory['high']:+.1f}), "
        f"peak {memory['peak_mib']:.0f} MiB.",
        "",
    ]


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw memory, requests in flight and rate over time."""
    from matplotlib.figure import Figure

    samples = result["samples"]
    minutes = np.array([sample.seconds for sample in samples]) / 60

    def values(name: str) -> Any:
        return np.array([getattr(sample, name) for sample in samples], dtype=float)

    figure = Figure(figsize=(9, 8), layout="constrained")
    memory, flight, rate = figure.subplots(3, 1, sharex=True)
    rss = values("rss_mib")
    memory.plot(minutes, rss, color=_BLUE, linewidth=1)
    late = minutes >= minutes[-1] / 3
    fitted = np.polyval(np.polyfit(minutes[late], rss[late], 1), minutes[late])
    memory.plot(minutes[late], fitted, color=_INK, linestyle="--", linewidth=1)
    slope = result["memory"]
    memory.set_title(
        f"{slope['per_hour']:+.1f} MiB/h after the first third ({slope['low']:+.1f} to {slope['high']:+.1f})",
        fontsize=10,
        loc="left",
    )
    memory.set_ylabel("resident memory, MiB")
    flight.plot(minutes, values("awaited"), color=_GREY, linewidth=0.8, label="awaited by clients")
    flight.plot(minutes, values("in_flight"), color=_BLUE, linewidth=0.8, label="accepted by the server")
    flight.set_ylabel("in flight")
    flight.legend(loc="lower right", bbox_to_anchor=(1, 1), fontsize=8, ncols=2, frameon=False)
    elapsed = np.diff(values("seconds"))
    refused = np.diff(values("refused")) / elapsed
    ended = np.diff(values("answered")) / elapsed
    rate.stackplot(
        minutes[1:],
        ended - refused,
        refused,
        colors=(_BLUE, _ORANGE),
        labels=("OK", "ended otherwise, as most were to"),
    )
    rate.set_ylabel("calls/s")
    rate.set_xlabel("minutes")
    rate.legend(loc="lower right", bbox_to_anchor=(1, 1), fontsize=8, ncols=2, frameon=False)
    for axes in (memory, flight, rate):
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0)
        if axes is not memory:
            axes.set_ylim(bottom=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
