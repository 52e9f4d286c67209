"""polyhead beside Triton, on one machine in one run.

Triton runs in an environment of its own, with the same onnxruntime and the same graphs, and takes turns with
polyhead.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.compare.files import computes_padding, export_padded
from benchmarks.compare.peer_servers import TritonVariant, environment_of, tritonserver
from benchmarks.contenders import AT_ONCE, POLYHEAD, Contender, polyhead
from benchmarks.encoders import ENCODERS, TINY_ENCODERS, BenchEncoder, export_missing, mixed_lengths
from benchmarks.engines.processes import CORES
from benchmarks.page import finish, in_rounds
from benchmarks.rounds import Comparison, Want, compare, console, markdown_table, undisturbed
from benchmarks.sentences import share_of_tokens

TRITON, PADDED = "Triton", "Triton, padded graph"
"""How the names of its variants begin, of those that run the graph which computes padding, too."""
_IN_FLIGHT = (1, 8, 32)
_MIXED_FACTOR = 2.0
"""So much longer are loads of mixed lengths: each should send most of them."""


def run(chosen: Namespace) -> int:
    """Compare, write the page, and return 0 if every condition holds."""
    python, versions = environment_of(chosen.triton_venv, ["nvidia-pytriton", "onnxruntime"], chosen)
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
        if python:
            contenders += stack.enter_context(_triton(python, encoders, graphs, padded, chosen.models))
        for contender in contenders:
            for encoder in encoders:
                if graph := (padded if contender.name.startswith(PADDED) else graphs).get(encoder.name):
                    contender.check(encoder, graph)
                    contender.check(encoder, graph, mixed_lengths(AT_ONCE))
        plain = [each for each in contenders if not each.name.startswith(PADDED)]
        for encoder in encoders:
            title = f"{encoder}, T = {encoder.tokens}"
            comparisons += _compare(title, encoder, [encoder.tokens] * 8, plain, chosen)
            if encoder != encoders[0]:
                lengths = mixed_lengths(encoder.mixed)
                share = share_of_tokens(lengths, _IN_FLIGHT[-1])
                title = f"{encoder}, mixed lengths ({share:.2f} of padded tokens exist)"
                able = contenders if encoder.name in padded else plain
                comparisons += _compare(title, encoder, lengths, able, chosen)
    wanted = [Want(of=PADDED, least=1.3), Want(of=TRITON, least=1.0)]
    return finish(
        chosen,
        "peers",
        "make compare PARTS=peers",
        "polyhead and Triton",
        [
            *(line for each in comparisons for line in each.lines(base=_base(each))),
            *markdown_table({"Triton's": name, "version": version} for name, version in versions.items()),
        ],
        conditions=[
            # Where padding is computed by other exporters' graphs, these count.
            *(one for each in comparisons for one in each.judge(wanted[: 1 + (not each.strongest(PADDED))])),
            undisturbed(comparisons),
        ],
        intro=[f"The same encoders behind both servers, under the same load. {in_rounds(chosen)}"],
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
            encoder.name, label, encoder.config.d_model, files[encoder.name]
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


def _compare(
    title: str,
    encoder: BenchEncoder,
    lengths: Sequence[int],
    contenders: Sequence[Contender],
    chosen: Namespace,
) -> Iterator[Comparison]:
    """Measure one encoder behind all servers; on mixed lengths, as only many calls make them differ."""
    mixed = len(set(lengths)) > 1
    seconds = chosen.seconds * (_MIXED_FACTOR if mixed else 1)
    for in_flight in _IN_FLIGHT[mixed:]:
        measures = {
            each.name: partial(each.load_closed, each.requests(encoder, lengths), in_flight, seconds)
            for each in contenders
        }
        yield compare(f"{title}, {in_flight} in flight", measures, chosen.rounds, spare=chosen.spare)
