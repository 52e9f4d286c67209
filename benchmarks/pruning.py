"""How far MiniLM drifts without some of its heads, and how much faster it becomes.

Heads are chosen on the sentences of examples/sentences.txt: by gradient, by ablation through a server's
`head_mask`, and at random as a control. Drift is measured on other sentences, those of docs/. The fast graphs
run in process, one thread, in turn; a ratio is the median over runs of the same turn.
"""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.encoders import trained_minilm, unpadded_inputs
from benchmarks.frame import finish, markdown_table, options, paired_ratios, time_in_turn
from benchmarks.peers.graph import open_graph
from benchmarks.sentences import some_sentences
from benchmarks.servers import serve
from polyhead_client import Client
from polyhead_export import export_family
from polyhead_export.batches import batches_of_sentences
from polyhead_export.graphs import build_graph
from polyhead_export.kinds.fast import FastGraph
from polyhead_export.pruning import measure_pruning_drift
from polyhead_export.tokenizers import TokenizerFile
from polyhead_model import Encoder, gradient_importance, prune_heads
from polyhead_model.pruning import choose_heads, rank_heads, run_encoder
from polyhead_view.heads.ablation import ablate_heads

SENTENCES = Path(__file__).parents[1] / "examples" / "sentences.txt"
FRACTIONS = (0.1, 0.25, 0.5)
CONTROLS = 5
TEXTS = 100
"""On which heads are chosen."""
OTHERS = 240
"""On which drift is measured."""
SIZES = ((1, 16), (1, 64), (8, 64), (4, 256))

Batches = Sequence[Mapping[str, Tensor]]


def _ablation(encoder: Encoder, tokenizer: TokenizerFile, texts: Sequence[str], models: Path) -> Tensor:
    """Silence each head in turn, through a server."""
    if not models.exists():
        export_family(encoder, "minilm", models, tokenizer=tokenizer)
    with serve(models, ["--threads", "1"]) as server, Client(server.address, timeout=300) as client:
        return torch.from_numpy(ablate_heads(client, texts))


def _neighbours(encoder: Encoder, batches: Batches) -> NDArray[np.int64]:
    """Return the nearest neighbour of each sentence."""
    with torch.inference_mode():
        vectors = torch.cat([_pooled(run_encoder(encoder, inputs).pooled) for inputs in batches])
    similar = vectors @ vectors.T
    similar.fill_diagonal_(-2)
    nearest: NDArray[np.int64] = similar.argmax(1).numpy()
    return nearest


def _pooled(vectors: Tensor | None) -> Tensor:
    if vectors is None:
        raise ValueError("the encoder must pool")
    return vectors


def _speed(graphs: Mapping[str, Encoder], folder: Path, seconds: float) -> list[dict[str, str]]:
    """Run the fast graph of each encoder in turn."""
    folder.mkdir(parents=True, exist_ok=True)
    sessions = {}
    for name, encoder in graphs.items():
        file = folder / f"{name.replace(' ', '')}.onnx"
        if not file.exists():
            ir.save(build_graph(encoder, FastGraph()), file)
        sessions[name] = open_graph(file, threads=1)
    rows = []
    for batch, tokens in SIZES:
        inputs = unpadded_inputs(graphs["0 %"].config, "fast", batch, tokens)
        calls = {}
        for name, session in sessions.items():
            feeds = {each.name: inputs[each.name] for each in session.get_inputs()}
            calls[name] = partial(session.run, None, feeds)
        taken = time_in_turn(calls, seconds)
        row = {"B × T": f"{batch} × {tokens}", "0 %, ms": f"{1e3 * median(taken['0 %']):.2f}"}
        for name in graphs:
            if name != "0 %":
                row[f"{name}, ×"] = f"{median(paired_ratios(taken[name], taken['0 %'])):.3f}"
        rows.append(row)
    return rows


def main() -> None:
    """Measure and report."""
    chosen = options(__doc__, "pruning", seconds=15).parse_args()
    torch.set_num_threads(1)
    built = trained_minilm(head_mask=True)
    encoder, tokenizer = built.encoder, built.tokenizer
    if tokenizer is None:
        raise ValueError("the checkpoint must have a tokenizer")
    texts = SENTENCES.read_text().splitlines()[:TEXTS]
    batches, others = (
        batches_of_sentences(tokenizer, encoder.config, each) for each in (texts, some_sentences(OTHERS))
    )
    importance, seconds = {}, {}
    for by, rank in (
        ("gradient", partial(gradient_importance, encoder, batches)),
        ("ablation", partial(_ablation, encoder, tokenizer, texts, chosen.models)),
    ):
        began = time.perf_counter()
        importance[by] = rank()
        seconds[by] = time.perf_counter() - began
    for seed in range(CONTROLS):
        random = torch.Generator().manual_seed(seed)
        importance[f"random {seed}"] = torch.rand(importance["gradient"].shape, generator=random)
    heads = encoder.config.layers * encoder.config.heads
    pruned = {
        (fraction, by): prune_heads(
            encoder,
            choose_heads(encoder.config, rank_heads(encoder.config, values), round(fraction * heads)).removed,
        )
        for fraction in FRACTIONS
        for by, values in importance.items()
    }
    nearest = _neighbours(encoder, others)
    drifts: list[dict[str, object]] = []
    for (fraction, by), one in pruned.items():
        drift = measure_pruning_drift(encoder, one, others)
        drifts.append(
            {
                "heads removed": f"{round(fraction * heads)} of {heads}",
                "by": by,
                "least cosine": f"{drift.cosine.least:.3f}",
                "mean cosine": f"{drift.cosine.mean:.4f}",
                "largest difference": f"{drift.largest_difference:.3f}",
                f"neighbours moved, of {len(nearest)}": int((_neighbours(one, others) != nearest).sum()),
                "heads left": " ".join(str(len(one.config.heads_of(at))) for at in range(one.config.layers)),
            }
        )
    graphs = {"0 %": encoder} | {
        f"{100 * fraction:.0f} %": pruned[fraction, "gradient"] for fraction in FRACTIONS
    }
    speeds = _speed(graphs, chosen.models.with_name("pruning-graphs"), chosen.seconds)
    finish(
        chosen,
        "python -m benchmarks.pruning",
        "Drift and speed of pruned MiniLM",
        [*markdown_table(drifts), *markdown_table(speeds)],
        facts={"texts": len(texts), "seconds to rank": seconds, "drift": drifts, "speed": speeds},
    )


if __name__ == "__main__":
    main()
