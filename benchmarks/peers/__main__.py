"""`make peers`: polyhead beside Triton and KServe, on one machine in one run.

Each peer runs in an environment of its own, with the same onnxruntime and the same graphs. They take turns
with polyhead, onnxruntime in process and, where requests are tiny, a `grpc.aio` server that only echoes.
"""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import onnxruntime as ort
from rich.progress import Progress

from echo_server import echo_server
from encoders import ENCODERS, BenchEncoder, export_missing, reply_bytes, sequences
from in_process import CORES, InProcess, RunConfig, in_process
from load_generator import Send, closed_loop, encode_loop
from peers.comparison import ECHO, ENCODE, IN_PROCESS, POLYHEAD, PeerComparison, PeerSample, page, targets
from peers.contenders import Contender, PeerError
from peers.launch import TritonVariant, kserve, onnxruntime_version, triton
from report import SERVE_FLAGS, conclude, console, options, with_fingerprint
from servers import serve
from turns import in_turn

_TINY = ENCODERS[0]
_IN_FLIGHT = (1, 8, 32)
_REQUESTS = 32
"""Different requests of each load."""
_VARIANTS = (
    TritonVariant(instances=1, threads=CORES, max_batch={each.name: 32 for each in ENCODERS}),
    TritonVariant(
        instances=CORES, threads=1, max_batch={each.name: 8 if each == _TINY else 4 for each in ENCODERS}
    ),
)


def _compare(
    encoder: BenchEncoder,
    contenders: Sequence[Contender],
    graph: InProcess,
    progress: Progress,
    *,
    seconds: float,
    rounds: int,
) -> list[PeerComparison]:
    """Measure one encoder behind all servers."""
    best = graph.search((encoder.tokens,), seconds / 4)
    inputs = sequences(encoder, [encoder.tokens] * _REQUESTS)
    comparisons = []
    for in_flight in _IN_FLIGHT:
        loads: dict[str, Send] = {
            each.name: partial(
                closed_loop,
                each.address,
                each.requests(encoder, _REQUESTS),
                in_flight=in_flight,
                server=each.cpu_seconds,
            )
            for each in contenders
        }
        if encoder == _TINY and in_flight == max(_IN_FLIGHT):
            polyhead = next(each for each in contenders if each.name == POLYHEAD)
            loads[ENCODE] = partial(
                encode_loop,
                polyhead.address,
                encoder.name,
                inputs,
                in_flight=in_flight,
                server=polyhead.cpu_seconds,
            )
        configs = graph.one_in_flight(encoder.tokens) if in_flight == 1 else list(best)
        long = max(seconds, 2 * in_flight / max(best.values()))
        measures = {name: partial(_load, load, long) for name, load in loads.items()}
        measures |= {
            f"{IN_PROCESS}, {config.way}": partial(_run, graph, config, seconds) for config in configs
        }
        samples: dict[str, list[PeerSample]] = {name: [] for name in measures}
        task = progress.add_task(f"{encoder.name}: {in_flight} in flight", total=rounds * len(measures))
        for order in in_turn(measures, rounds):
            for name in order:
                samples[name].append(measures[name]())
                progress.advance(task)
        comparisons.append(PeerComparison(encoder=encoder.name, in_flight=in_flight, samples=samples))
    return comparisons


def _load(send: Send, seconds: float) -> PeerSample:
    asyncio.run(send(seconds=seconds / 5))  # unmeasured: caches and clocks come up to speed
    result = asyncio.run(send(seconds=seconds))
    return PeerSample(
        rate=result.rate,
        p50_ms=result.percentile_ms(50),
        errors=result.errors,
        client_cores=result.client_cores,
        server_cores=result.server_cores,
    )


def _run(graph: InProcess, config: RunConfig, seconds: float) -> PeerSample:
    speed = graph.measure(config, seconds)
    return PeerSample(rate=speed.rate, p50_ms=speed.p50_ms, batch=config.batch)


def main() -> None:
    """Compare, and write the page."""
    parser = options(__doc__, "peers", models="bench", epilog=SERVE_FLAGS)
    parser.add_argument("--seconds", type=float, default=1.5, help="per sample")
    parser.add_argument("--rounds", type=int, default=3, help="samples of each contender")
    names = [encoder.name for encoder in ENCODERS]
    parser.add_argument("--encoders", nargs="+", choices=names, default=names)
    parser.add_argument("--triton-venv", type=Path, default=Path(".venv-peer-triton"))
    parser.add_argument("--kserve-venv", type=Path, default=Path(".venv-peer-kserve"))
    chosen, flags = parser.parse_known_args()
    encoders = [encoder for encoder in ENCODERS if encoder.name in chosen.encoders]
    triton_python, kserve_python = (
        venv.absolute() / "bin" / "python" for venv in (chosen.triton_venv, chosen.kserve_venv)
    )
    for python in (triton_python, kserve_python):
        if (version := onnxruntime_version(python)) != ort.__version__:
            raise PeerError(
                f"{python} must have onnxruntime {ort.__version__}, has {version}: run `make peers`"
            )
    export_missing(encoders, chosen.models)
    graphs = {encoder: (chosen.models / encoder.name / "1" / "model.onnx").absolute() for encoder in encoders}
    folder = Path("build/peers").absolute()
    comparisons: list[PeerComparison] = []
    with ExitStack() as stack:
        server = stack.enter_context(serve(chosen.models, flags))
        contenders = [Contender(name=POLYHEAD, address=server.address, process=server.process)]
        contenders += stack.enter_context(triton(triton_python, graphs, _VARIANTS, folder / "triton"))
        contenders.append(stack.enter_context(kserve(kserve_python, graphs, CORES, folder / "kserve")))
        for contender in contenders:
            for encoder, graph in graphs.items():
                contender.check(encoder, graph)
        versions = {contender.name: contender.version() for contender in contenders}
        progress = stack.enter_context(Progress(console=console))
        for encoder in encoders:
            with ExitStack() as own:
                taking_part = list(contenders)
                if encoder == _TINY:
                    echo = own.enter_context(echo_server(reply_bytes(encoder, encoder.tokens)))
                    taking_part.append(Contender(name=ECHO, address=echo))
                graph = own.enter_context(in_process(encoder, chosen.models, "model.onnx"))
                comparisons += _compare(
                    encoder, taking_part, graph, progress, seconds=chosen.seconds, rounds=chosen.rounds
                )
    judged = targets(comparisons)
    result = with_fingerprint(
        {
            "rounds": chosen.rounds,
            "seconds": chosen.seconds,
            "versions": versions,
            "targets": judged,
            "comparisons": comparisons,
        }
    )
    conclude(chosen.out, result, page(result), judged)


if __name__ == "__main__":
    try:
        main()
    except PeerError as error:
        raise SystemExit(str(error)) from error
