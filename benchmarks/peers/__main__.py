"""`make peers`: polyhead beside Triton and KServe, on one machine in one run.

Each peer runs in an environment of its own, with the same onnxruntime and the same graphs. They take turns
with polyhead, onnxruntime in process and, where requests are tiny, a `grpc.aio` server that only echoes.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import onnxruntime as ort

from benchmarks.echo_server import echo_server
from benchmarks.encoders import (
    ENCODERS,
    GRAPH,
    BenchEncoder,
    computes_padding,
    export_missing,
    export_padded_limit,
    mixed_lengths,
    reply_bytes,
    sequences,
)
from benchmarks.frame import compare, console, finish, in_rounds, options, put_load
from benchmarks.in_process import CORES, InProcess, in_process
from benchmarks.load_generator import Send, closed_loop, encode_loop
from benchmarks.peers.comparison import (
    ECHO,
    ENCODE,
    IN_PROCESS,
    PADDED,
    POLYHEAD,
    PeerComparison,
    sections,
    targets,
)
from benchmarks.peers.contenders import AT_ONCE, Contender, PeerError
from benchmarks.peers.launch import TritonVariant, kserve, triton, version_of
from benchmarks.sentences import share_of_tokens
from benchmarks.servers import serve

_TINY = ENCODERS[0]
_IN_FLIGHT = (1, 8, 32)
_REQUESTS = 32
"""Different requests of each load of equal lengths."""
_MIXED_FACTOR = 2.0
"""So much longer are loads of mixed lengths: each should send most of them."""
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
    *,
    seconds: float,
    rounds: int,
) -> list[PeerComparison]:
    """Measure one encoder behind all servers."""
    with console.status(f"{encoder.name}: limits"):
        best = graph.search((encoder.tokens,), seconds / 4)
    lengths = [encoder.tokens] * _REQUESTS
    comparisons = []
    for in_flight in _IN_FLIGHT:
        loads = _loads(contenders, encoder, lengths, in_flight)
        if encoder == _TINY and in_flight == max(_IN_FLIGHT):
            polyhead = next(each for each in contenders if each.name == POLYHEAD)
            loads[ENCODE] = partial(
                encode_loop,
                polyhead.address,
                encoder.name,
                sequences(encoder, lengths),
                in_flight=in_flight,
                server=polyhead.cpu_seconds,
            )
        configs = graph.one_in_flight(encoder.tokens) if in_flight == 1 else list(best)
        long = max(seconds, 2 * in_flight / max(best.values()))
        measures = {name: partial(put_load, load, long) for name, load in loads.items()}
        measures |= {
            f"{IN_PROCESS}, {config.way}": partial(graph.measure, config, seconds) for config in configs
        }
        samples = compare(f"{encoder.name}: {in_flight} in flight", measures, rounds)
        comparisons.append(PeerComparison(encoder=encoder.name, in_flight=in_flight, samples=samples))
    return comparisons


def _compare_mixed(
    encoder: BenchEncoder, contenders: Sequence[Contender], *, seconds: float, rounds: int
) -> list[PeerComparison]:
    """Measure one encoder behind all servers on mixed lengths."""
    lengths = mixed_lengths(encoder.mixed)
    comparisons = []
    for in_flight in (8, 32):
        loads = _loads(contenders, encoder, lengths, in_flight)
        measures = {name: partial(put_load, load, _MIXED_FACTOR * seconds) for name, load in loads.items()}
        samples = compare(f"{encoder.name}: mixed, {in_flight} in flight", measures, rounds)
        share = share_of_tokens(lengths, in_flight)
        comparisons.append(
            PeerComparison(encoder=encoder.name, in_flight=in_flight, samples=samples, share=share)
        )
    return comparisons


def _loads(
    contenders: Sequence[Contender], encoder: BenchEncoder, lengths: Sequence[int], in_flight: int
) -> dict[str, Send]:
    """Return the load of each server by its name."""
    return {
        each.name: partial(
            closed_loop,
            each.address,
            each.requests(encoder, lengths),
            in_flight=in_flight,
            server=each.cpu_seconds,
        )
        for each in contenders
    }


def main() -> int:
    """Compare, write the page, and return 0 if every target is met."""
    parser = options(__doc__, "peers", models="bench", seconds=1.5, rounds=3)
    names = [encoder.name for encoder in ENCODERS]
    parser.add_argument("--encoders", nargs="+", choices=names, default=names)
    parser.add_argument("--triton-venv", type=Path, default=Path(".venv-peer-triton"))
    parser.add_argument("--kserve-venv", type=Path, default=Path(".venv-peer-kserve"))
    chosen = parser.parse_args()
    encoders = [encoder for encoder in ENCODERS if encoder.name in chosen.encoders]
    triton_python, kserve_python = (
        venv.absolute() / "bin" / "python" for venv in (chosen.triton_venv, chosen.kserve_venv)
    )
    for python in (triton_python, kserve_python):
        if (version := version_of(python, "onnxruntime")) != ort.__version__:
            raise PeerError(
                f"{python} must have onnxruntime {ort.__version__}, has {version}: run `make peers`"
            )
    export_missing(encoders, chosen.models)
    graphs = {encoder: (chosen.models / encoder.name / "1" / GRAPH).absolute() for encoder in encoders}
    padded = {
        encoder: export_padded_limit(encoder, chosen.models.absolute()) / encoder.name / "1" / GRAPH
        for encoder, graph in graphs.items()
        if encoder != _TINY and not computes_padding(graph)
    }
    folder = Path("build/peers").absolute()
    comparisons: list[PeerComparison] = []
    with ExitStack() as stack:
        server = stack.enter_context(serve(chosen.models, []))
        contenders = [Contender(name=POLYHEAD, address=server.address, process=server.process)]
        contenders += stack.enter_context(
            triton(triton_python, {"": graphs, "padded": padded}, _VARIANTS, folder / "triton")
        )
        contenders.append(stack.enter_context(kserve(kserve_python, graphs, CORES, folder / "kserve")))
        for contender in contenders:
            for encoder, graph in (padded if contender.name.endswith(PADDED) else graphs).items():
                contender.check(encoder, graph)
                contender.check(encoder, graph, mixed_lengths(AT_ONCE))
        versions = {contender.name: contender.version() for contender in contenders}
        sizes = {"seconds": chosen.seconds, "rounds": chosen.rounds}
        for encoder in encoders:
            with ExitStack() as own:
                taking_part = [each for each in contenders if not each.name.endswith(PADDED)]
                if encoder == _TINY:
                    echo = own.enter_context(echo_server(reply_bytes(encoder, encoder.tokens)))
                    taking_part.append(Contender(name=ECHO, address=echo))
                graph = own.enter_context(in_process(encoder, chosen.models, GRAPH))
                comparisons += _compare(encoder, taking_part, graph, **sizes)
            if encoder != _TINY:
                able = [each for each in contenders if encoder in padded or not each.name.endswith(PADDED)]
                comparisons += _compare_mixed(encoder, able, **sizes)
    return finish(
        chosen,
        "make peers",
        "polyhead and its peers",
        sections(comparisons, versions),
        conditions=targets(comparisons),
        intro=[f"The same encoders behind other servers, under the same load. {in_rounds(chosen)}"],
        facts={"versions": versions, "comparisons": comparisons},
    )


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except PeerError as error:
        raise SystemExit(str(error)) from error
