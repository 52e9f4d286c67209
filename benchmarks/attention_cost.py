"""`make attention-cost`: what the graphs that show attention cost, against those that they are beside.

A trained MiniLM with all graphs, and again with the attention of its last layer only; and an encoder of
BERT-base's shape with an insight graph. The graphs of an encoder run in turn, with all threads; a ratio is
the median over runs of the same turn.
"""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeAlias

from benchmarks.encoders import MINILM, trained_minilm, unpadded_inputs
from benchmarks.frame import Condition, at_most, finish, markdown_table, options, paired_ratios, time_in_turn
from benchmarks.peers.graph import open_graph
from polyhead_export import export_family, from_preset
from polyhead_export.kinds import ALL, KINDS
from polyhead_model import EncoderConfig

BERT = "bert-base"
SIZES = {MINILM: ((8, 64), (4, 128), (4, 256), (1, 512)), BERT: ((1, 128), (4, 128))}
MOST: Mapping[tuple[str, str], tuple[float, Mapping[str, tuple[tuple[int, int], ...]]]] = {
    ("rows", "fast"): (1.05, {MINILM: ((8, 64), (4, 256), (1, 512))}),
    ("insight", "attention"): (1.15, {MINILM: ((4, 128),), BERT: ((1, 128), (4, 128))}),
}
"""How many times as long as another a graph may take, and at which sizes (B, T) of which encoders."""

Samples: TypeAlias = Mapping[tuple[str, tuple[int, int]], Mapping[str, list[float]]]
"""The seconds of runs: by encoder and size, then by graph."""


def _export(models: Path) -> dict[str, tuple[EncoderConfig, dict[str, Path]]]:
    """Export what is missing; return each encoder's configuration and graphs by name."""
    minilm = trained_minilm().encoder
    (source,) = from_preset(BERT)
    bert = source.build().encoder
    last = minilm.config.layers - 1
    if not models.exists():
        export_family(minilm, MINILM, models, graphs=[ALL])
        export_family(minilm, "last", models, attention_layers=[last])
        export_family(bert, BERT, models, graphs=["insight"])
    found = {
        name: {
            kind.name: models / name / "1" / kind.file
            for kind in KINDS.values()
            if (models / name / "1" / kind.file).exists()
        }
        for name in (MINILM, BERT)
    }
    found[MINILM][f"attention of layer {last}"] = models / "last" / "1" / "attention.onnx"
    return {MINILM: (minilm.config, found[MINILM]), BERT: (bert.config, found[BERT])}


def _measure(
    graphs: Mapping[str, Path], config: EncoderConfig, size: tuple[int, int], seconds: float
) -> dict[str, list[float]]:
    """Run each graph in turn; return the seconds of each run."""
    calls = {}
    for name, path in graphs.items():
        inputs = unpadded_inputs(config, name.split()[0], *size)
        if "rows" in inputs:
            inputs["rows"] = inputs["rows"][:, :1]
        calls[name] = partial(open_graph(path, threads=0).run, None, inputs)
    return time_in_turn(calls, seconds)


def judge(samples: Samples) -> list[Condition]:
    """Return what must hold, and what was seen."""
    return [
        at_most(
            f"{encoder}, B × T = {batch} × {tokens}: {graph}",
            most,
            to,
            paired_ratios(samples[encoder, (batch, tokens)][graph], samples[encoder, (batch, tokens)][to]),
        )
        for (graph, to), (most, sizes) in MOST.items()
        for encoder in sizes
        for batch, tokens in sizes[encoder]
        if graph in samples[encoder, (batch, tokens)]
    ]


def main() -> int:
    """Measure, report, and return 0 if every condition holds."""
    chosen = options(__doc__, "attention-cost", seconds=20).parse_args()
    samples = {
        (encoder, size): _measure(graphs, config, size, chosen.seconds)
        for encoder, (config, graphs) in _export(chosen.models).items()
        for size in SIZES[encoder]
    }
    names = dict.fromkeys(name for taken in samples.values() for name in taken if name != "fast")
    rows = [
        {"encoder": encoder, "B × T": f"{batch} × {tokens}", "fast, ms": f"{1e3 * median(taken['fast']):.1f}"}
        | {
            f"{name}, × fast": f"{median(paired_ratios(taken[name], taken['fast'])):.3f}"
            if name in taken
            else ""
            for name in names
        }
        for (encoder, (batch, tokens)), taken in samples.items()
    ]
    return finish(
        chosen,
        "make attention-cost",
        "What attention costs",
        markdown_table(rows),
        conditions=judge(samples),
        intro=["In process, graphs in turn, medians. `rows` returns one row of each layer."],
        facts={"ratios": rows},
    )


if __name__ == "__main__":
    sys.exit(main())
