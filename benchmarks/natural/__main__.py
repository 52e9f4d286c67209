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

from benchmarks.encoders import MINILM, infer_request, minilm_checkpoint, trained_minilm, unpadded_inputs
from benchmarks.frame import compare, console, finish, options, paired_ratios, time_in_turn
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
    sections,
    targets,
)
from benchmarks.natural.lineup import PeerEnvironments, TextGraphs, check, convert, export_graphs, start
from benchmarks.natural.measuring import measure
from benchmarks.natural.workers import plans_of
from benchmarks.peers.contenders import PeerError
from benchmarks.peers.launch import version_of
from benchmarks.sentences import natural_texts
from polyhead_model import EncoderConfig
from polyhead_server.engine.devices import on_cpu
from polyhead_server.engine.session import open_session

_TEXTS = 192
"""How many different ones."""
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

    def p50_ms(request: bytes) -> float:
        load = asyncio.run(closed_loop(address, [request], in_flight=1, seconds=seconds))
        return load.percentile_ms(50)

    found = compare(
        "a call of mixed lengths", {name: partial(p50_ms, each) for name, each in requests.items()}, rounds
    )
    return MixedCall(
        share=float(_CALL.mean() / _CALL.max()), ratios=paired_ratios(found["mixed"], found["full"])
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
    parser = options(__doc__, "natural", seconds=1.5, rounds=3)
    parser.add_argument("--triton-venv", type=Path, default=Path(".venv-peer-triton"))
    parser.add_argument("--sentences-venv", type=Path, default=Path(".venv-peer-sentences"))
    chosen = parser.parse_args()
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
    texts = natural_texts(_TEXTS)
    lengths = [len(ids) for ids in token_ids(open_tokenizer(str(graphs.tokenizer)), texts)]
    console.print(*describe_lengths(lengths), sep="\n")
    sizes = {"seconds": chosen.seconds, "rounds": chosen.rounds}
    comparisons: list[TextComparison] = []
    with start(graphs, chosen.models, pythons, folder) as lineup:
        cosines = check(lineup.servers, lineup.workers, texts)
        versions |= {server.name: server.contender.version() for server in lineup.servers}
        plans: dict[int, dict[str, BatchPlan]] = {}
        for traffic in TRAFFIC:
            at_once = _at_once(traffic, texts)
            if at_once not in plans:
                with console.status(f"searching batches, {at_once} texts at once"):
                    plans[at_once] = {
                        worker.name: worker.search(
                            texts,
                            plans_of(worker.model, at_once),
                            per_call=at_once,
                            seconds=chosen.seconds / 4,
                        )
                        for worker in lineup.workers
                    }
            engines = {worker.name: (worker, plans[at_once][worker.name]) for worker in lineup.workers}
            comparisons.append(
                measure(MINILM, traffic, lineup.servers, engines, texts, at_once=at_once, **sizes)
            )
        call = _mixed_call(lineup.polyhead.address, config, **sizes)
    with console.status("equal lengths"):
        equal = _equal_lengths(graphs, config, seconds=2 * chosen.seconds)
    return finish(
        chosen,
        "make natural",
        "Texts of natural lengths",
        sections(comparisons, lengths, cosines, versions, cores=CORES),
        conditions=targets(comparisons, call, equal),
        intro=(
            f"all-MiniLM-L6-v2 from text to vector, medians of {chosen.rounds} rounds, in each of which",
            "everyone takes a turn, in every second round backwards. Ratios compare within this run; the",
            "rest is this machine's. “polyhead ×” is polyhead's rate divided by the other's, with the lowest",
            "and the highest round in brackets.",
        ),
        facts={
            **sizes,
            "lengths": lengths,
            "versions": versions,
            "cosines": cosines,
            "comparisons": comparisons,
            "mixed call": call,
            "equal lengths": equal,
        },
    )


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except PeerError as error:
        raise SystemExit(str(error)) from error
