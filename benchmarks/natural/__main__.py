"""`make natural`: real texts of natural lengths, embedded by polyhead, its peers, and engines in process.

Each encodes the same texts by all-MiniLM-L6-v2, from text to vector. They take turns: polyhead and Triton's
Python back end over gRPC, and in process onnxruntime with a padded and a packed graph, CTranslate2, and
sentence-transformers.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from rich.progress import Progress

from benchmarks.encoders import MINILM, infer_request, minilm_checkpoint, trained_minilm, unpadded_inputs
from benchmarks.in_process import CORES
from benchmarks.load_generator import closed_loop
from benchmarks.natural.batches import BatchPlan, open_tokenizer, token_ids
from benchmarks.natural.comparison import (
    TRAFFIC,
    EqualLengths,
    MixedCall,
    TextComparison,
    TextTraffic,
    describe_lengths,
    page,
    targets,
)
from benchmarks.natural.lineup import PeerEnvironments, TextGraphs, check, convert, export_graphs, start
from benchmarks.natural.measuring import compare, of_servers, of_worker
from benchmarks.natural.workers import plans_of
from benchmarks.peers.contenders import PeerError
from benchmarks.peers.launch import version_of
from benchmarks.report import SERVE_FLAGS, conclude, console, options, with_fingerprint
from benchmarks.sentences import natural_texts
from benchmarks.turns import in_turn, paired_ratios, time_in_turn
from polyhead_model import EncoderConfig
from polyhead_server.engine.devices import on_cpu
from polyhead_server.engine.session import open_session

_CALL = np.linspace(8, 128, 8).astype(np.int32)
"""The lengths of a call whose sequences differ."""
_EQUAL = ((1, 16), (8, 64), (8, 128))
"""(B, T) where nothing is padded."""


def _at_once(traffic: TextTraffic, texts: Sequence[str]) -> int:
    """Return how many texts engines in process get at once: a list, or all."""
    return traffic.per_call if traffic.per_call > 1 else len(texts)


def _mixed_call(address: str, config: EncoderConfig, *, seconds: float, rounds: int) -> MixedCall:
    """Call with eight sequences of mixed lengths, and of full length, in turn."""
    full = unpadded_inputs(config, "fast", len(_CALL), int(_CALL.max()))
    requests = {
        "mixed": infer_request(MINILM, full | {"lengths": _CALL}, {"pooled": None}),
        "full": infer_request(MINILM, full, {"pooled": None}),
    }
    p50_ms: dict[str, list[float]] = {name: [] for name in requests}
    for order in in_turn(requests, rounds):
        for name in order:
            load = asyncio.run(closed_loop(address, [requests[name]], in_flight=1, seconds=seconds))
            p50_ms[name].append(load.percentile_ms(50))
    return MixedCall(
        share=float(_CALL.mean() / _CALL.max()), ratios=paired_ratios(p50_ms["mixed"], p50_ms["full"])
    )


def _equal_lengths(graphs: TextGraphs, config: EncoderConfig, *, seconds: float) -> list[EqualLengths]:
    """Run both graphs in turn where nothing is padded."""
    if graphs.packed is None:
        return []
    found = []
    for threads in dict.fromkeys((1, CORES)):
        sessions = {
            computed: open_session(graph, device=on_cpu("in process"), threads=threads)
            for computed, graph in graphs.served.items()
        }
        for batch, tokens in _EQUAL:
            inputs = unpadded_inputs(config, "fast", batch, tokens)
            runs = {name: partial(session.run, None, inputs) for name, session in sessions.items()}
            taken = time_in_turn(runs, seconds)
            ratios = paired_ratios(taken["packed"], taken["padded"])
            found.append(EqualLengths(batch=batch, tokens=tokens, threads=threads, ratios=ratios))
    return found


def main() -> int:
    """Compare, write the page, and return 0 if every target is met."""
    parser = options(__doc__, "natural", epilog=SERVE_FLAGS)
    parser.add_argument("--seconds", type=float, default=1.5, help="per sample")
    parser.add_argument("--rounds", type=int, default=3, help="samples of each contender")
    parser.add_argument("--texts", type=int, default=192, help="how many different ones")
    parser.add_argument("--triton-venv", type=Path, default=Path(".venv-peer-triton"))
    parser.add_argument("--sentences-venv", type=Path, default=Path(".venv-peer-sentences"))
    chosen, flags = parser.parse_known_args()
    pythons = PeerEnvironments(
        triton=chosen.triton_venv.absolute() / "bin" / "python",
        sentences=chosen.sentences_venv.absolute() / "bin" / "python",
    )
    versions = {
        "CTranslate2": version_of(pythons.sentences, "ctranslate2"),
        "sentence-transformers": version_of(pythons.sentences, "sentence_transformers"),
    }
    config = trained_minilm().encoder.config
    folder = Path("build/natural").absolute()
    graphs = export_graphs(chosen.models)
    convert(pythons.sentences, minilm_checkpoint(), folder)
    texts = natural_texts(chosen.texts)
    lengths = [len(ids) for ids in token_ids(open_tokenizer(str(graphs.tokenizer)), texts)]
    console.print(*describe_lengths(lengths), sep="\n")
    comparisons: list[TextComparison] = []
    with start(graphs, chosen.models, pythons, folder, flags) as lineup:
        cosines = check(lineup.servers, lineup.workers, texts)
        versions |= {server.name: server.contender.version() for server in lineup.servers}
        with Progress(console=console) as progress:
            plans: dict[int, dict[str, BatchPlan]] = {}
            for traffic in TRAFFIC:
                at_once = _at_once(traffic, texts)
                if at_once not in plans:
                    task = progress.add_task(f"searching batches, {at_once} texts at once", total=None)
                    plans[at_once] = {
                        worker.name: worker.search(
                            texts,
                            plans_of(worker.model, at_once),
                            per_call=at_once,
                            seconds=chosen.seconds / 4,
                        )
                        for worker in lineup.workers
                    }
                    progress.remove_task(task)
                found = plans[at_once]
                in_process = {
                    worker.name: of_worker(
                        worker, texts, found[worker.name], at_once=at_once, seconds=chosen.seconds
                    )
                    for worker in lineup.workers
                }
                measures = {
                    **of_servers(lineup.servers, traffic, texts, seconds=chosen.seconds),
                    **in_process,
                }
                comparisons.append(compare(MINILM, traffic, measures, found, progress, rounds=chosen.rounds))
        call = _mixed_call(lineup.polyhead.address, config, seconds=chosen.seconds, rounds=chosen.rounds)
    equal = _equal_lengths(graphs, config, seconds=2 * chosen.seconds)
    judged = targets(comparisons, call, equal)
    result = with_fingerprint(
        {
            "rounds": chosen.rounds,
            "seconds": chosen.seconds,
            "lengths": lengths,
            "versions": versions,
            "cosines": cosines,
            "targets": judged,
            "comparisons": comparisons,
            "mixed call": call,
            "equal lengths": equal,
        }
    )
    return conclude(chosen.out, result, page(result), judged)


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except PeerError as error:
        raise SystemExit(str(error)) from error
