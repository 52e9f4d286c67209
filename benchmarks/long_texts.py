"""`make long-texts`: a ModernBERT-like encoder on one sequence, against the same with all T² scores.

The encoder has ModernBERT-base's shape and half of its layers, of which the same share is local. Its graph is
compared with one that computes padding, too: there every layer has all scores, and a window is added to
those of local ones. The two run in turn, with all threads; a ratio is the median over runs of the same turn.
"""

import sys
from functools import partial
from pathlib import Path
from statistics import median

import onnx_ir as ir
import torch

from benchmarks.encoders import GRAPH, export_padded, unpadded_inputs
from benchmarks.frame import (
    Condition,
    at_most,
    finish,
    markdown_table,
    options,
    paired_ratios,
    spell_ratios,
    time_in_turn,
)
from benchmarks.peers.graph import open_graph
from polyhead_export.graphs import build_graph
from polyhead_export.kinds import KINDS
from polyhead_export.weights import names_of, share_weights
from polyhead_model import Encoder, EncoderConfig

CONFIG = EncoderConfig(
    d_model=768,
    heads=12,
    layers=11,
    feed_forward=1152,
    norm="pre",
    first_attention_norm=False,
    norm_bias=False,
    bias=False,
    gated=True,
    final_norm=True,
    vocabulary=1_000,
    positions=8_192,
    embedding_norm=True,
    rotary_base=160_000.0,
    local_rotary_base=10_000.0,
    local_window=128,
    global_every=3,
    pooling="mean",
)
NAME = "modernbert-like"
TOKENS = (128, 512, 2_048, 8_192)
LONGEST, MOST = TOKENS[-1], 0.45
"""What part of the time the longest sequence may take."""


def _export(models: Path) -> dict[str, Path]:
    """Export what is missing; return the two graphs by name."""
    torch.manual_seed(0)
    encoder = Encoder(CONFIG).eval()
    folder = models / NAME / "1"
    if not (folder / GRAPH).exists():
        folder.mkdir(parents=True)
        model = build_graph(encoder, KINDS["fast"](), pack=True)
        share_weights([model], folder, names_of(encoder))
        ir.save(model, folder / GRAPH)
    return {"now": folder / GRAPH, "all scores": export_padded(encoder, NAME, models) / NAME / "1" / GRAPH}


def main() -> int:
    """Measure, report, and return 0 if the condition holds."""
    chosen = options(__doc__, "long-texts", seconds=20).parse_args()
    sessions = {name: open_graph(path, threads=0) for name, path in _export(chosen.models).items()}
    rows, conditions = [], list[Condition]()
    for tokens in TOKENS:
        inputs = unpadded_inputs(CONFIG, "fast", 1, tokens)
        calls = {name: partial(session.run, ["pooled"], inputs) for name, session in sessions.items()}
        taken = time_in_turn(calls, chosen.seconds)
        ratios = paired_ratios(taken["now"], taken["all scores"])
        seconds = {f"{name}, s": f"{median(taken[name]):.3f}" for name in taken}
        rows.append({"tokens": f"{tokens:,}", **seconds, "ratio": spell_ratios(ratios)})
        if tokens == LONGEST:
            conditions.append(at_most(f"{tokens:,} tokens", MOST, "all scores", ratios))
    return finish(
        chosen,
        "make long-texts",
        "Long texts",
        markdown_table(rows),
        conditions=conditions,
        intro=["In process, one sequence, graphs in turn, medians."],
        facts={"ratios": rows},
    )


if __name__ == "__main__":
    sys.exit(main())
