"""`make engines`: onnxruntime, OpenVINO, CTranslate2 and sentence-transformers, each in its precisions.

A trained MiniLM, and an encoder of BERT-base's size with random weights; polyhead over gRPC on onnxruntime
and OpenVINO, all others in process. They take turns.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.encoders import MINILM
from benchmarks.engines.comparison import AS_THEY_COME, LOADS, EncoderResult, sections, targets
from benchmarks.engines.contenders import ATTENTION_BF16, ONNXRUNTIME, EngineLineup, start
from benchmarks.engines.encoders import BERT, EngineFiles, prepare
from benchmarks.frame import console, finish, options
from benchmarks.in_process import CORES, WAYS
from benchmarks.natural.batches import BatchPlan, Ids, Sequences
from benchmarks.natural.comparison import PADDED, PER_LIST, TextComparison, TextTraffic
from benchmarks.natural.engines import EngineModel
from benchmarks.natural.lineup import check
from benchmarks.natural.measuring import measure
from benchmarks.natural.workers import plans_of
from benchmarks.peers.contenders import PeerError
from benchmarks.peers.launch import version_of
from benchmarks.sentences import natural_texts
from polyhead_server.doctor.machine import onnxruntime_here, openvino_here, processors

_BATCH_SIZES = (1, 4, PER_LIST)
_TEXTS = 96
"""How many different ones."""
_VOCABULARY = (1000, 30000)
"""Ids of ordinary tokens."""
_CHECKED = {MINILM: 96, BERT: 24}
"""Texts whose vectors are compared: the large encoder takes its time."""


def equal_plans(model: EngineModel, traffic: TextTraffic) -> list[list[BatchPlan]]:
    """Return a plan for each way to run calls of equal lengths: calls as a whole, unless lanes would idle."""
    every = traffic.per_call * traffic.in_flight
    plans = [
        BatchPlan(batch=min(traffic.per_call, -(-every // lanes)), lanes=lanes, threads=threads)
        for lanes, threads in WAYS
    ]
    return [plans[:1] if model.kind == "sentence-transformers" else plans]


def sequences_of(traffic: TextTraffic, texts: Sequence[str]) -> Sequences:
    """Return what a load sends: the texts, or one round of random token ids."""
    if traffic.tokens is None:
        return texts
    count = max(8, traffic.per_call * traffic.in_flight)
    ids: list[Ids] = np.random.default_rng(0).integers(*_VOCABULARY, (count, traffic.tokens)).tolist()
    return ids


def _measure(
    lineup: EngineLineup, encoder: str, texts: Sequence[str], *, seconds: float, rounds: int
) -> list[TextComparison]:
    """Measure all loads of an encoder."""
    plans: dict[str, dict[str, BatchPlan]] = {}
    found = []
    for traffic in LOADS[encoder == MINILM]:
        at_once, sequences = traffic.per_call * traffic.in_flight, sequences_of(traffic, texts)
        natural = traffic.tokens is None
        workers = [each for each in lineup.workers if not (natural and each.name == ATTENTION_BF16)]
        kind = f"{'texts' if natural else 'ids'}, {at_once} at once"
        if kind not in plans:
            with console.status(f"{encoder}: searching plans, {kind}"):
                plans[kind] = {
                    worker.name: worker.search(
                        sequences,
                        plans_of(worker.model, at_once, _BATCH_SIZES)
                        if natural
                        else equal_plans(worker.model, traffic),
                        per_call=at_once,
                        seconds=seconds / 4,
                    )
                    for worker in workers
                }
        ways = {worker.name: (worker, plans[kind][worker.name]) for worker in workers}
        if natural:
            padded, _ = ways[PADDED]
            ways[AS_THEY_COME] = (padded, BatchPlan(batch=PER_LIST, threads=CORES))
        found.append(
            measure(
                *(encoder, traffic, lineup.servers, ways, sequences),
                at_once=at_once,
                seconds=seconds,
                rounds=rounds,
            )
        )
    return found


def main() -> int:
    """Compare, write the page, and return 0 if every target is met."""
    parser = options(__doc__, "engines", seconds=0.5, rounds=3)
    parser.add_argument("--encoders", nargs="+", choices=(MINILM, BERT), default=[MINILM, BERT])
    parser.add_argument("--sentences-venv", type=Path, default=Path(".venv-peer-sentences"))
    chosen = parser.parse_args()
    python = chosen.sentences_venv.absolute() / "bin" / "python"
    openvino = openvino_here()
    bf16 = "bf16" in openvino.computes
    if openvino.version is None:
        raise PeerError(openvino.problem)
    versions = {
        "onnxruntime": onnxruntime_here().version,
        "OpenVINO": openvino.version,
        "CTranslate2": version_of(python, "ctranslate2"),
        "sentence-transformers": version_of(python, "sentence_transformers"),
        "OpenVINO of sentence-transformers": version_of(python, "openvino"),
    }
    with console.status("exporting and converting"):
        prepared: list[EngineFiles] = [
            prepare(encoder, chosen.models, Path("build/engines"), python) for encoder in chosen.encoders
        ]
    texts = natural_texts(_TEXTS)
    results = []
    for files in prepared:
        with start(files, python, bf16=bf16, rounds=chosen.rounds) as lineup:
            results.append(
                EncoderResult(
                    encoder=files.encoder,
                    footprints=lineup.footprints,
                    cosines=check(lineup.servers, lineup.workers, texts[: _CHECKED[files.encoder]]),
                    comparisons=_measure(
                        lineup, files.encoder, texts, seconds=chosen.seconds, rounds=chosen.rounds
                    ),
                )
            )
    instructions = [name for name, has in (processors().instructions or {}).items() if has]
    computes = "OpenVINO computes" if bf16 else "It lacks bf16 products: what computes"
    return finish(
        chosen,
        "make engines",
        "Engines and precisions",
        sections(results, versions, cores=CORES, rounds=chosen.rounds),
        conditions=targets(results),
        intro=(
            f"The processor has {', '.join(instructions) or 'none of AVX2 and later'}. {computes} in bf16 "
            + ("on it." if bf16 else "takes no part."),
            "",
            f"Medians of {chosen.rounds} rounds, in each of which everyone takes a turn, in every second",
            "round backwards. Ratios compare within this run; the rest is this machine's. “×” is the rate",
            f"divided by that of “{ONNXRUNTIME}”, with the lowest and the highest round in brackets.",
            "Rates of “polyhead” are those of a server over gRPC, all others of an engine in process.",
        ),
        facts={
            "rounds": chosen.rounds,
            "seconds": chosen.seconds,
            "texts": len(texts),
            "instructions": instructions,
            "bf16": bf16,
            "versions": versions,
            "encoders": results,
        },
    )


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except PeerError as error:
        raise SystemExit(str(error)) from error
