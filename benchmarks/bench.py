"""`make bench`: what serving costs on top of onnxruntime, and beside the server of another checkout.

In turn are measured polyhead, the server of `--baseline PATH` in the environment that this checkout has, the
limit, which is onnxruntime in a process of its own with the machine to itself, and, where requests cost more
than their runs, the floor, a `grpc.aio` server that only echoes. Compare ratios: absolute numbers are this
machine's.
"""

import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import encoders as benches
from benchmarks.contenders import POLYHEAD, Contender, echo_server, polyhead, python_of, run_module
from benchmarks.encoders import BenchEncoder, mixed_lengths, request_bytes
from benchmarks.engines.limit import ALONE, LIMIT, EncoderLimit, limit_of
from benchmarks.generator import (
    Call,
    closed_loop,
    http_calls,
    http_request,
    open_loop,
    stream_calls,
    unary_calls,
)
from benchmarks.page import begun, finish, in_rounds, options
from benchmarks.rounds import (
    Comparison,
    Condition,
    Sample,
    Want,
    compare,
    console,
    markdown_table,
    spell_number,
    undisturbed,
)
from benchmarks.sentences import natural_texts

BASELINE, FLOOR, PLAIN, GRPC = "baseline", "`grpc.aio` echo", "no attention", "gRPC"
_COLUMNS = {LIMIT: "limit", FLOOR: "floor", PLAIN: "without attention", GRPC: "gRPC", BASELINE: "baseline"}
_SHARE = 0.6
"""Of the rate with most in flight: what an open loop sends."""
_OPEN_FACTOR = 4.0
"""So much longer are open loops: their tails need many calls."""
_FEWEST_ARRIVALS = 20
_ATTENTION_TOKENS = 256
_NO_SLOWER = Want(of=BASELINE, least=0.97)
"""Where runs cost more than requests."""


@dataclass(frozen=True, kw_only=True)
class ServerTraffic:
    """A load that polyhead and the baseline get."""

    encoder: BenchEncoder
    what: str
    requests: Sequence[bytes]
    in_flight: int
    per_call: int = 1
    """Sequences of each request."""
    connect: Callable[[str], AbstractAsyncContextManager[Call]] = unary_calls
    """Opens the connections to an address."""
    beside: Mapping[str, Callable[[], Sample]] = field(default_factory=dict)
    """What else takes turns."""
    wanted: Sequence[Want] = ()
    rate: float = 0.0
    """Requests a second of an open loop; 0 for a closed one."""
    expected: float = 0.0
    """Sequences per second, if known; a sample has two times as many requests as are in flight."""

    @property
    def title(self) -> str:
        """It in words."""
        load = f"{spell_number(self.rate)} a second" if self.rate else f"{self.in_flight} in flight"
        return f"{self.encoder}, {self.what}, {load}"

    def measure(self, contender: Contender, seconds: float) -> Sample:
        """Load a server."""
        address = contender.http if self.connect is http_calls else contender.address
        connect = partial(self.connect, address)
        if self.rate:
            send = partial(open_loop, connect, self.requests, rate=self.rate)
            return contender.load(send, max(_OPEN_FACTOR * seconds, _FEWEST_ARRIVALS / self.rate))
        if self.expected:
            seconds = max(seconds, 2 * self.in_flight * self.per_call / self.expected)
        send = partial(closed_loop, connect, self.requests, in_flight=self.in_flight)
        return contender.load(send, seconds, self.per_call)


# ---- What is sent --------------------------------------------------------------------------------------


def tiny(encoder: BenchEncoder, floor: Contender, seconds: float) -> Iterator[ServerTraffic]:
    """Yield the traffic of an encoder whose requests cost more than its runs; the floor counts."""
    lengths = [encoder.tokens] * 64
    equal, eight = request_bytes(encoder, lengths[:8]), request_bytes(encoder, lengths, batch=8)
    mixed = request_bytes(encoder, mixed_lengths(encoder.mixed))
    loads: list[tuple[str, list[bytes], Callable[..., Any], int, float]] = [
        *(
            ("equal", equal, unary_calls, in_flight, least)
            for in_flight, least in ((1, 0.4), (8, 0.5), (32, 0.6))
        ),
        *(("mixed", mixed, unary_calls, in_flight, 0.0) for in_flight in (8, 32)),
        ("equal, lists of 8", eight, unary_calls, 8, 0.0),
        ("equal, a stream", equal, stream_calls, 8, 0.0),
        ("equal, 4 streams", equal, partial(stream_calls, streams=4), 32, 0.0),
    ]
    for what, requests, connect, in_flight, least in loads:
        traffic = ServerTraffic(
            encoder=encoder,
            what=what,
            requests=requests,
            in_flight=in_flight,
            per_call=8 if requests is eight else 1,
            connect=connect,
            wanted=[Want(of=FLOOR, least=least)] if least else [],
        )
        yield replace(traffic, beside={FLOOR: partial(traffic.measure, floor, seconds)})


def blocks(encoder: BenchEncoder, limit: EncoderLimit) -> Iterator[ServerTraffic]:
    """Yield the traffic of an encoder whose runs cost more than its requests; the limit counts."""
    equal, mixed = [encoder.tokens] * 8, mixed_lengths(encoder.mixed)
    best, best_of_mixed = limit.search(equal), limit.search(mixed)
    for what, lengths, in_flight, plans, least in (
        ("equal", equal, 1, ALONE, 0.87),
        ("equal", equal, 8, best, 0.87),
        ("equal", equal, 32, best, 0.92),
        ("mixed", mixed, 8, best_of_mixed, 0.75),
        ("mixed", mixed, 32, best_of_mixed, 0.85),
    ):
        yield ServerTraffic(
            encoder=encoder,
            what=what,
            requests=request_bytes(encoder, lengths),
            in_flight=in_flight,
            beside=limit.measures(lengths, plans),
            wanted=[Want(of=LIMIT, least=least), _NO_SLOWER],
            expected=max(plans.values()),
        )


def attention(encoder: BenchEncoder, server: Contender, seconds: float) -> ServerTraffic:
    """Return the traffic with a layer's attention in the reply."""
    lengths = [_ATTENTION_TOKENS] * 8
    plain = ServerTraffic(
        encoder=encoder,
        what=f"a layer's attention, T = {_ATTENTION_TOKENS}",
        requests=request_bytes(encoder, lengths),
        in_flight=1,
        wanted=[Want(of=PLAIN, least=0.87), _NO_SLOWER],
    )
    return replace(
        plain,
        requests=request_bytes(encoder, lengths, attention=[encoder.config.layers - 1]),
        beside={PLAIN: partial(plain.measure, server, seconds)},
    )


def texts(encoder: BenchEncoder, server: Contender, seconds: float) -> Iterator[ServerTraffic]:
    """Yield the traffic of texts, over gRPC and over HTTP."""
    every = natural_texts(96)
    for per_call, in_flight in ((1, 1), (1, 8), (32, 1)):
        lists = [every[at : at + per_call] for at in range(0, len(every), per_call)]
        by_grpc = ServerTraffic(
            encoder=encoder,
            what=f"lists of {per_call} texts" if per_call > 1 else "texts",
            requests=[benches.text_request(encoder.name, each) for each in lists],
            in_flight=in_flight,
            per_call=per_call,
            wanted=[_NO_SLOWER],
        )
        yield by_grpc
        bodies = (benches.embeddings_body(encoder.name, each) for each in lists)
        yield replace(
            by_grpc,
            what=f"{by_grpc.what}, `POST /v1/embeddings`",
            requests=[
                http_request("/v1/embeddings", body, Content_Type="application/json") for body in bodies
            ],
            connect=http_calls,
            beside={GRPC: partial(by_grpc.measure, server, seconds)},
            wanted=[Want(of=GRPC, least=0.85), _NO_SLOWER],
        )


# ---- What is measured ----------------------------------------------------------------------------------


Start = Callable[[], AbstractContextManager[Contender]]
"""Starts a server."""


@contextmanager
def serving(starts: Iterable[Start]) -> Iterator[Sequence[Contender]]:
    """Start servers in this order; polyhead is the first that is returned."""
    with ExitStack() as stack:
        yield sorted(
            [stack.enter_context(start()) for start in starts], key=lambda each: each.name != POLYHEAD
        )


class Bench:
    """One run.

    Args:
        chosen: How long and how often each is measured.
        passes: How often all is measured, each time in its share of the rounds.
    """

    def __init__(self, chosen: Namespace, passes: int) -> None:
        self._found: dict[tuple[str, str], tuple[ServerTraffic, Comparison]] = {}
        """By the encoder's name and the title."""
        self._arriving: dict[str, ServerTraffic] = {}
        """The open loop of each encoder, by name: that of the first pass."""
        self._chosen = chosen
        self._rounds, self._spare = chosen.rounds // passes, chosen.spare // passes

    @property
    def comparisons(self) -> Sequence[tuple[ServerTraffic, Comparison]]:
        """What was measured, of all passes together."""
        return [*self._found.values()]

    def run(self, served: Sequence[Contender], traffics: Iterable[ServerTraffic]) -> None:
        """Measure each traffic, and at last an open loop at a share of the rate with most in flight.

        Args:
            served: polyhead and, if there is one, the baseline.
            traffics: What they get.
        """
        last = None
        for traffic in traffics:
            comparison = self._compare(served, traffic)
            if traffic.what == "equal":
                last = traffic, min(comparison.median(each.name) for each in served)
        if last:
            traffic, rate = last
            arriving = replace(traffic, what="Poisson arrivals", rate=_SHARE * rate, beside={}, wanted=[])
            self._compare(served, self._arriving.setdefault(traffic.encoder.name, arriving))

    def _compare(self, served: Sequence[Contender], traffic: ServerTraffic) -> Comparison:
        measures: dict[str, Callable[[], Sample]] = {
            each.name: partial(traffic.measure, each, self._chosen.seconds) for each in served
        }
        every = {**measures, **traffic.beside}
        comparison = compare(traffic.title, every, self._rounds, spare=self._spare)
        key = traffic.encoder.name, traffic.title
        if (before := self._found.get(key)) is not None:
            comparison = before[1].followed_by(comparison)
        self._found[key] = traffic, comparison
        return comparison


def sections(comparisons: Sequence[tuple[ServerTraffic, Comparison]]) -> list[str]:
    """Return the page's table."""
    used = [of for of in _COLUMNS if any(each.strongest(of) for _, each in comparisons)]
    return markdown_table(_row(traffic, each, used) for traffic, each in comparisons)


def _row(traffic: ServerTraffic, comparison: Comparison, used: Sequence[str]) -> dict[str, str]:
    def ratio(of: str, field: str = "rate") -> str:
        other = comparison.strongest(of)
        return str(comparison.ratio(POLYHEAD, other, field)) if other else ""

    own = partial(comparison.median, POLYHEAD)
    limit = comparison.strongest(LIMIT)
    of_baseline = {"p50": "p50_ms", "p99": "p99_ms", "CPU": "server_ms"} if BASELINE in used else {}
    return {
        "encoder": str(traffic.encoder),
        "traffic": traffic.what,
        "in flight": "" if traffic.rate else str(traffic.in_flight),
        "sequences/s": spell_number(own("rate")),
        "p50 / p99 ms": f"{spell_number(own('p50_ms'))} / {spell_number(own('p99_ms'))}",
        "server's CPU ms": spell_number(own("server_ms")),
        **{f"× {_COLUMNS[of]}": ratio(of) for of in used},
        **{f"{what} × baseline": ratio(BASELINE, field) for what, field in of_baseline.items()},
        "limit": f"{spell_number(comparison.median(limit))}: {limit}" if limit else "",
        "cores: client / server": f"{own('client_cores'):.2f} / {own('server_cores'):.2f}",
        "errors": str(comparison.errors(POLYHEAD)),
    }


def judge(comparisons: Sequence[tuple[ServerTraffic, Comparison]]) -> list[Condition]:
    """Return what must hold."""
    every = [comparison for _, comparison in comparisons]
    errors = sum(each.errors(name) for each in every for name in each.samples)
    return [
        *(one for traffic, each in comparisons for one in each.judge(traffic.wanted)),
        Condition(name="every request was answered", holds=not errors, seen=f"{errors} were not"),
        undisturbed(every),
    ]


def main() -> int:
    """Run the benchmark, and return 0 if every condition holds."""
    parser = options(__doc__)
    encoders: tuple[BenchEncoder, ...] = (*benches.ENCODERS, benches.MINILM)
    names = [each.name for each in encoders]
    parser.add_argument("--encoders", nargs="+", choices=names, metavar="NAME", help="some of them")
    parser.add_argument(
        "--baseline", type=Path, metavar="PATH", help="another checkout, which is also served"
    )
    chosen = begun(parser.parse_args(), seconds=1.2, rounds=6)
    if chosen.tiny:
        encoders = (*benches.TINY_ENCODERS, benches.TINY_TEXTS)
    every = [each for each in encoders if each.name in (chosen.encoders or [each.name])]
    small, *_, large, sentences = encoders
    with console.status("exporting"):
        benches.export_missing(every, chosen.models)
    starts: list[Start] = [partial(polyhead, chosen.models, http=True)]
    if chosen.baseline:
        python, models = python_of(chosen.baseline), chosen.models.with_name("baseline-models")
        with console.status("exporting by the baseline"):
            run_module(python, "benchmarks.encoders", models, *(each.name for each in every))
        program = [str(python.with_name("polyhead"))]
        starts.append(partial(polyhead, models, name=BASELINE, program=program, http=True))
    # The server that is started first may be slower by a tenth, by the memory that it gets.
    orders = [starts, starts[::-1]][: len(starts)]
    chosen.rounds += -chosen.rounds % len(orders)
    bench, seconds = Bench(chosen, len(orders)), chosen.seconds
    for encoder in every:
        with ExitStack() as stack:
            traffics: list[ServerTraffic] = []
            if encoder is small:
                traffics += tiny(encoder, stack.enter_context(echo_server()), seconds)
            elif encoder is not sentences:
                limit = limit_of(encoder, chosen.models, logs=chosen.out, seconds=seconds)
                traffics += blocks(encoder, stack.enter_context(limit))
            for order in orders:
                with serving(order) as served:
                    if encoder is sentences:
                        bench.run(served, texts(encoder, served[0], seconds))
                        continue
                    for contender in served:
                        contender.check(encoder, encoder.graph(chosen.models))
                    bench.run(served, traffics)
                    if encoder is large:
                        bench.run(served, [attention(encoder, served[0], seconds)])
    return finish(
        chosen,
        "serving",
        "make bench" + (" BASELINE=PATH" if chosen.baseline else ""),
        "What serving costs on top of onnxruntime",
        sections(bench.comparisons),
        conditions=judge(bench.comparisons),
        intro=[
            in_rounds(chosen),
            "In half of the rounds the baseline was started first. “× baseline” of p50, p99 and CPU time: "
            "less is better.",
        ][: len(orders)],
        facts={"comparisons": [comparison for _, comparison in bench.comparisons]},
    )


if __name__ == "__main__":
    sys.exit(main())
