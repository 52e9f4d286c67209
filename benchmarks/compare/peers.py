"""polyhead beside Triton and KServe, on one machine in one run.

Each peer runs in an environment of its own, with the same onnxruntime and the same graphs. They take turns
with polyhead, onnxruntime in process and, where requests are tiny, a `grpc.aio` server that only echoes.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import onnxruntime as ort

from benchmarks.compare.files import computes_padding, export_padded
from benchmarks.compare.peer_servers import TritonVariant, environment_of, kserve, tritonserver
from benchmarks.contenders import AT_ONCE, POLYHEAD, Contender, echo_server, polyhead
from benchmarks.encoders import ENCODERS, TINY_ENCODERS, BenchEncoder, export_missing, mixed_lengths
from benchmarks.engines.limit import ALONE, EncoderLimit, limit_of
from benchmarks.engines.processes import CORES
from benchmarks.generator import closed_loop, unary_calls
from benchmarks.page import finish, in_rounds
from benchmarks.rounds import Comparison, Sample, Want, compare, console, markdown_table, undisturbed
from benchmarks.sentences import share_of_tokens

TRITON, PADDED = "Triton", "Triton, padded graph"
"""How the names of its variants begin, of those that run the graph which computes padding, too."""
_IN_FLIGHT = (1, 8, 32)
_MIXED_FACTOR = 2.0
"""So much longer are loads of mixed lengths: each should send most of them."""


def run(chosen: Namespace) -> int:
    """Compare, write the page, and return 0 if every condition holds."""
    packages = {"onnxruntime": ort.__version__}
    pythons = [environment_of(venv, packages, chosen) for venv in (chosen.triton_venv, chosen.kserve_venv)]
    encoders = TINY_ENCODERS if chosen.tiny else ENCODERS
    with console.status("exporting"):
        export_missing(encoders, chosen.models)
        graphs = {encoder.name: encoder.graph(chosen.models).absolute() for encoder in encoders}
        padded = {
            encoder.name: export_padded(encoder.build().encoder, encoder.name, chosen.models)
            for encoder in encoders[1:]
            if not computes_padding(graphs[encoder.name])
        }
    comparisons: list[Comparison] = []
    with ExitStack() as stack:
        contenders = [stack.enter_context(polyhead(chosen.models))]
        triton, server = pythons
        if triton:
            contenders += stack.enter_context(_triton(triton, encoders, graphs, padded, chosen.models))
        if server:
            folder = chosen.models.with_name("kserve")
            contenders.append(stack.enter_context(kserve(server, graphs, CORES, folder)))
        for contender in contenders:
            for encoder in encoders:
                if graph := (padded if contender.name.startswith(PADDED) else graphs).get(encoder.name):
                    contender.check(encoder, graph)
                    contender.check(encoder, graph, mixed_lengths(AT_ONCE))
        versions = {contender.name: contender.version() for contender in contenders}
        plain = [each for each in contenders if not each.name.startswith(PADDED)]
        for encoder in encoders:
            with ExitStack() as own:
                taking_part = list(plain)
                if encoder == encoders[0]:
                    taking_part.append(own.enter_context(echo_server()))
                limit = own.enter_context(
                    limit_of(encoder, chosen.models, logs=chosen.out, seconds=chosen.seconds)
                )
                comparisons += _equal(encoder, taking_part, limit, chosen)
            if encoder != encoders[0]:
                able = contenders if encoder.name in padded else plain
                comparisons += _mixed(encoder, able, chosen)
    wanted = [Want(of=PADDED, least=1.3), Want(of=TRITON, least=1.0)]
    return finish(
        chosen,
        "peers",
        "make compare PARTS=peers",
        "polyhead and its peers",
        [
            *(line for each in comparisons for line in each.lines(base=_base(each))),
            *markdown_table({"server": name, "version": version} for name, version in versions.items()),
        ],
        conditions=[
            # Where padding is computed by other exporters' graphs, these count.
            *(one for each in comparisons for one in each.judge(wanted[: 1 + (not each.strongest(PADDED))])),
            undisturbed(comparisons),
        ],
        intro=[f"The same encoders behind other servers, under the same load. {in_rounds(chosen)}"],
        facts={"versions": versions, "comparisons": comparisons},
    )


def _base(comparison: Comparison) -> str:
    """Return the strongest Triton; only padded graphs count if there are any."""
    return comparison.strongest(PADDED) or comparison.strongest(TRITON) or POLYHEAD


@contextmanager
def _triton(
    python: Path,
    encoders: Sequence[BenchEncoder],
    graphs: Mapping[str, Path],
    padded: Mapping[str, Path],
    models: Path,
) -> Iterator[list[Contender]]:
    """Serve encoders of vectors by Triton; each variant and graph is a contender."""
    small = encoders[0].name
    variants = (
        TritonVariant(instances=1, threads=CORES, max_batch=dict.fromkeys(graphs, 32)),
        TritonVariant(instances=CORES, threads=1, max_batch=dict.fromkeys(graphs, 4) | {small: 8}),
    )
    every = [
        (variant, label, files)
        for label, files in (("", graphs), ("-padded", padded))
        if files
        for variant in variants
    ]
    configurations = {
        f"{encoder.name}{label}{variant.suffix}": variant.configuration(
            encoder.name, label, encoder.config.d_model, {"graph": files[encoder.name]}
        )
        for variant, label, files in every
        for encoder in encoders
        if encoder.name in files
    }
    with tritonserver(python, configurations, models.with_name("triton")) as server:
        yield [
            replace(
                server,
                name=str(variant).replace(TRITON, PADDED) if label else str(variant),
                suffix=label + variant.suffix,
            )
            for variant, label, _ in every
        ]


def _equal(
    encoder: BenchEncoder, contenders: Sequence[Contender], limit: EncoderLimit, chosen: Namespace
) -> Iterator[Comparison]:
    """Measure one encoder behind all servers, on sequences of equal length."""
    best = limit.search([encoder.tokens])
    for in_flight in _IN_FLIGHT:
        long = max(chosen.seconds, 2 * in_flight / max(best.values()))
        measures = _loads(contenders, encoder, [encoder.tokens] * 8, in_flight, long)
        measures |= limit.measures([encoder.tokens], ALONE if in_flight == 1 else best)
        title = f"{encoder}, T = {encoder.tokens}, {in_flight} in flight"
        yield compare(title, measures, chosen.rounds, spare=chosen.spare)


def _mixed(encoder: BenchEncoder, contenders: Sequence[Contender], chosen: Namespace) -> Iterator[Comparison]:
    """Measure one encoder behind all servers on mixed lengths."""
    lengths = mixed_lengths(encoder.mixed)
    for in_flight in _IN_FLIGHT[1:]:
        share = share_of_tokens(lengths, in_flight)
        yield compare(
            f"{encoder}, mixed lengths ({share:.2f} of padded tokens exist), {in_flight} in flight",
            _loads(contenders, encoder, lengths, in_flight, _MIXED_FACTOR * chosen.seconds),
            chosen.rounds,
            spare=chosen.spare,
        )


def _loads(
    contenders: Sequence[Contender],
    encoder: BenchEncoder,
    lengths: Sequence[int],
    in_flight: int,
    seconds: float,
) -> dict[str, Callable[[], Sample]]:
    """Return what loads each server, by its name."""
    return {
        each.name: partial(
            each.load,
            partial(
                closed_loop,
                partial(unary_calls, each.address),
                each.requests(encoder, lengths),
                in_flight=in_flight,
            ),
            seconds,
        )
        for each in contenders
    }
