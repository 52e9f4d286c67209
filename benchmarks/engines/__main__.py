"""`make engines`: onnxruntime, OpenVINO, CTranslate2 and sentence-transformers, each in its precisions.

A trained MiniLM, and an encoder of BERT-base's size with random weights; polyhead over gRPC on onnxruntime
and OpenVINO, all others in process. They take turns.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.progress import Progress

from benchmarks.encoders import MINILM
from benchmarks.engines.comparison import AS_THEY_COME, LOADS, EncoderResult, page, targets
from benchmarks.engines.contenders import ATTENTION_BF16, EngineLineup, start
from benchmarks.engines.encoders import BERT, EngineFiles, prepare
from benchmarks.in_process import CORES, WAYS
from benchmarks.natural.batches import BatchPlan, Ids, Sequences
from benchmarks.natural.comparison import PADDED, PER_LIST, TextComparison, TextTraffic
from benchmarks.natural.engines import EngineModel
from benchmarks.natural.lineup import check
from benchmarks.natural.measuring import compare, of_servers, of_worker
from benchmarks.natural.workers import plans_of
from benchmarks.peers.contenders import PeerError
from benchmarks.peers.launch import version_of
from benchmarks.report import conclude, console, options, with_fingerprint
from benchmarks.sentences import natural_texts
from polyhead_server.doctor.machine import LocalMachine

_BATCH_SIZES = (1, 4, PER_LIST)
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
    lineup: EngineLineup,
    encoder: str,
    texts: Sequence[str],
    progress: Progress,
    *,
    seconds: float,
    rounds: int,
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
            task = progress.add_task(f"{encoder}: searching plans, {kind}", total=len(workers))
            plans[kind] = {}
            for worker in workers:
                plans[kind][worker.name] = worker.search(
                    sequences,
                    plans_of(worker.model, at_once, _BATCH_SIZES)
                    if natural
                    else equal_plans(worker.model, traffic),
                    per_call=at_once,
                    seconds=seconds / 4,
                )
                progress.advance(task)
            progress.remove_task(task)
        ways = {worker.name: (worker, plans[kind][worker.name]) for worker in workers}
        if natural:
            padded, _ = ways[PADDED]
            ways[AS_THEY_COME] = (padded, BatchPlan(batch=PER_LIST, threads=CORES))
        measures = {
            **of_servers(lineup.servers, traffic, sequences, seconds=seconds),
            **{
                name: of_worker(worker, sequences, plan, at_once=at_once, seconds=seconds)
                for name, (worker, plan) in ways.items()
            },
        }
        chosen = {name: plan for name, (_, plan) in ways.items()}
        found.append(compare(encoder, traffic, measures, chosen, progress, rounds=rounds))
    return found


def main() -> int:
    """Compare, write the page, and return 0 if every target is met."""
    parser = options(__doc__, "engines")
    parser.add_argument("--seconds", type=float, default=0.5, help="per sample")
    parser.add_argument("--rounds", type=int, default=3, help="samples of each contender")
    parser.add_argument("--texts", type=int, default=96, help="how many different ones")
    parser.add_argument("--encoders", nargs="+", choices=(MINILM, BERT), default=[MINILM, BERT])
    parser.add_argument("--sentences-venv", type=Path, default=Path(".venv-peer-sentences"))
    chosen = parser.parse_args()
    python = chosen.sentences_venv.absolute() / "bin" / "python"
    machine = LocalMachine()
    openvino, bf16 = machine.openvino(), "bf16" in machine.openvino().computes
    if openvino.version is None:
        raise PeerError(openvino.problem)
    versions = {
        "onnxruntime": machine.runtime().version,
        "OpenVINO": openvino.version,
        "CTranslate2": version_of(python, "ctranslate2"),
        "sentence-transformers": version_of(python, "sentence_transformers"),
        "OpenVINO of sentence-transformers": version_of(python, "openvino"),
    }
    with console.status("exporting and converting"):
        prepared: list[EngineFiles] = [
            prepare(encoder, chosen.models, Path("build/engines"), python) for encoder in chosen.encoders
        ]
    texts = natural_texts(chosen.texts)
    results = []
    for files in prepared:
        with (
            start(files, python, bf16=bf16, rounds=chosen.rounds) as lineup,
            Progress(console=console) as shown,
        ):
            cosines = check(lineup.servers, lineup.workers, texts[: _CHECKED[files.encoder]])
            results.append(
                EncoderResult(
                    encoder=files.encoder,
                    footprints=lineup.footprints,
                    cosines=cosines,
                    comparisons=_measure(
                        *(lineup, files.encoder, texts, shown), seconds=chosen.seconds, rounds=chosen.rounds
                    ),
                )
            )
    judged = targets(results)
    result = with_fingerprint(
        {
            "rounds": chosen.rounds,
            "seconds": chosen.seconds,
            "texts": len(texts),
            "instructions": [name for name, has in (machine.processors().instructions or {}).items() if has],
            "bf16": bf16,
            "versions": versions,
            "targets": judged,
            "encoders": results,
        }
    )
    return conclude(chosen.out, result, page(result), judged)


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except PeerError as error:
        raise SystemExit(str(error)) from error
