"""`make bench`: what serving costs on top of onnxruntime, and beside the server of another checkout.

In turn are measured polyhead, the server of `--baseline PATH` in the environment that this checkout has, the
limit, which is onnxruntime in a process of its own with the machine to itself, and, where requests cost more
than their runs, the floor, a `grpc.aio` server that only echoes. Compare ratios: absolute numbers are this
machine's.
"""

import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.contenders import POLYHEAD, Contender, echo_server, export_by, polyhead, python_of
from benchmarks.encoders import (
    ENCODERS,
    MINILM,
    TINY_ENCODERS,
    TINY_TEXTS,
    BenchEncoder,
    embeddings_body,
    export_missing,
    mixed_lengths,
    request_bytes,
    sequences,
    text_request,
)
from benchmarks.engines.kinds import EngineModel
from benchmarks.engines.plans import BatchPlan
from benchmarks.engines.processes import WAYS, EngineWorker, engine_worker, plans_of, search
from benchmarks.generator import (
    client_calls,
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

BASELINE, LIMIT, FLOOR, PLAIN, GRPC = "baseline", "onnxruntime", "`grpc.aio` echo", "no attention", "gRPC"
_COLUMNS = {LIMIT: "limit", FLOOR: "floor", PLAIN: "without attention", GRPC: "gRPC", BASELINE: "baseline"}
_OPEN = "Poisson arrivals"
_SHARE = 0.6
"""Of the rate with most in flight: what an open loop sends."""
_OPEN_FACTOR = 4.0
"""So much longer are open loops: their tails need many calls."""
_ATTENTION_TOKENS = 256
_PER_LIST = 32
_SLOWER = 0.97
"""The least of the baseline's rate where runs cost more than requests."""
_BATCH_SIZES = (1, 2, 4, 8, 16, 32)

Measures = Mapping[str, Callable[[], Sample]]


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """A load that polyhead and the baseline get."""

    encoder: BenchEncoder
    what: str
    requests: Sequence[Any]
    connect: Callable[[Contender], Callable[[], Any]]
    """Returns what opens the connections to a server."""
    in_flight: int
    per_call: int = 1
    beside: Measures = field(default_factory=dict)
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
        connect = self.connect(contender)
        if self.rate:
            send = partial(open_loop, connect, self.requests, rate=self.rate)
            return contender.load(send, _OPEN_FACTOR * seconds)
        if self.expected:
            seconds = max(seconds, 2 * self.in_flight * self.per_call / self.expected)
        send = partial(closed_loop, connect, self.requests, in_flight=self.in_flight)
        return contender.load(send, seconds, self.per_call)


class Bench:
    """One run.

    Args:
        served: polyhead and, if there is one, the baseline.
        chosen: How long and how often each is measured.
    """

    def __init__(self, served: Sequence[Contender], chosen: Namespace) -> None:
        self.comparisons: list[tuple[Traffic, Comparison]] = []
        self._served = served
        self._chosen = chosen
        self._seconds: float = chosen.seconds

    def run(self, traffics: Iterable[Traffic]) -> None:
        """Measure each traffic, and at last an open loop at a share of the rate with most in flight."""
        last = None
        for traffic in traffics:
            comparison = self._compare(traffic)
            if traffic.what == "equal":
                last = traffic, min(comparison.median(each.name) for each in self._served)
        if last:
            traffic, rate = last
            self._compare(
                Traffic(
                    encoder=traffic.encoder,
                    what=_OPEN,
                    requests=traffic.requests,
                    connect=_calls(4),
                    in_flight=0,
                    rate=_SHARE * rate,
                    wanted=[Want(of=BASELINE, most=1 / _SLOWER, field="p50_ms")] if traffic.wanted else [],
                )
            )

    def _compare(self, traffic: Traffic) -> Comparison:
        measures: dict[str, Callable[[], Sample]] = {
            each.name: partial(traffic.measure, each, self._seconds) for each in self._served
        }
        comparison = compare(
            traffic.title, {**measures, **traffic.beside}, self._chosen.rounds, spare=self._chosen.spare
        )
        self.comparisons.append((traffic, comparison))
        return comparison

    def tiny(self, encoder: BenchEncoder, floor: Contender) -> Iterator[Traffic]:
        """Yield the traffic of an encoder whose requests cost more than its runs; the floor counts."""
        lengths = [encoder.tokens] * 64
        requests = request_bytes(encoder, lengths[:8])
        eight = request_bytes(encoder, lengths, batch=8)
        mixed = request_bytes(encoder, mixed_lengths(encoder.mixed))
        loads: list[tuple[str, Sequence[Any], Any, int, int, float]] = [
            *(
                ("equal", requests, _calls(), in_flight, 1, least)
                for in_flight, least in ((1, 0.4), (8, 0.5), (32, 0.6))
            ),
            *(("mixed", mixed, _calls(), in_flight, 1, 0.0) for in_flight in (8, 32)),
            ("equal, lists of 8", eight, _calls(), 8, 8, 0.0),
            ("equal, a stream", requests, _streams(1), 8, 1, 0.0),
            ("equal, 4 streams", requests, _streams(4), 32, 1, 0.0),
        ]
        for what, sent, connect, in_flight, per_call, least in loads:
            traffic = Traffic(
                encoder=encoder,
                what=what,
                requests=sent,
                connect=connect,
                in_flight=in_flight,
                per_call=per_call,
                wanted=[Want(of=FLOOR, least=least)] if least else [],
            )
            yield replace(traffic, beside={FLOOR: partial(traffic.measure, floor, self._seconds)})
        yield Traffic(
            encoder=encoder,
            what="equal, `AsyncClient.encode`",
            requests=sequences(encoder, lengths),
            connect=lambda contender: partial(client_calls, contender.address, encoder.name),
            in_flight=32,
        )

    def blocks(self, encoder: BenchEncoder, limit: EngineWorker) -> Iterator[Traffic]:
        """Yield the traffic of an encoder whose runs cost more than its requests; the limit counts."""
        tokens, mixed = encoder.tokens, mixed_lengths(encoder.mixed)
        alone = [BatchPlan(batch=1, threads=threads) for _, threads in WAYS]
        equal, unequal = (self._search(encoder, limit, lengths) for lengths in ([tokens], mixed))
        loads = [
            ("equal", [tokens] * 8, 1, dict.fromkeys(alone, 0.0), 0.87),
            *(("equal", [tokens] * 8, each, equal, least) for each, least in ((8, 0.87), (32, 0.92))),
            *(("mixed", mixed, each, unequal, least) for each, least in ((8, 0.75), (32, 0.85))),
        ]
        for what, lengths, in_flight, plans, least in loads:
            beside = {f"{LIMIT}, {plan}": partial(self._run, encoder, limit, lengths, plan) for plan in plans}
            yield Traffic(
                encoder=encoder,
                what=what,
                requests=request_bytes(encoder, lengths),
                connect=_calls(),
                in_flight=in_flight,
                beside=beside,
                wanted=[Want(of=LIMIT, least=least), Want(of=BASELINE, least=_SLOWER)],
                expected=max(plans.values()),
            )

    def attention(self, encoder: BenchEncoder) -> Iterator[Traffic]:
        """Yield the traffic with a layer's attention in the reply."""
        lengths = [_ATTENTION_TOKENS] * 8
        what = f"a layer's attention, T = {_ATTENTION_TOKENS}"
        plain, traffic = (
            Traffic(
                encoder=encoder,
                what=what,
                requests=request_bytes(encoder, lengths, attention=layers),
                connect=_calls(),
                in_flight=1,
                wanted=[Want(of=PLAIN, least=0.87), Want(of=BASELINE, least=_SLOWER)],
            )
            for layers in ([], [encoder.config.layers - 1])
        )
        seconds = 2 * self._seconds
        yield replace(traffic, beside={PLAIN: partial(plain.measure, self._served[0], seconds)})

    def texts(self, encoder: BenchEncoder) -> Iterator[Traffic]:
        """Yield the traffic of texts, over gRPC and over HTTP."""
        texts = natural_texts(96)
        for per_call, in_flight, least in ((1, 1, 0.85), (1, 8, 0.85), (_PER_LIST, 1, 0.85)):
            lists = [texts[at : at + per_call] for at in range(0, len(texts), per_call)]
            name = f"lists of {per_call} texts" if per_call > 1 else "texts"
            by_grpc = Traffic(
                encoder=encoder,
                what=name,
                requests=[text_request(encoder.name, each) for each in lists],
                connect=_calls(),
                in_flight=in_flight,
                per_call=per_call,
                wanted=[Want(of=BASELINE, least=_SLOWER)],
            )
            yield by_grpc
            yield Traffic(
                encoder=encoder,
                what=f"{name}, `POST /v1/embeddings`",
                requests=[_embeddings(encoder, each) for each in lists],
                connect=_posts(in_flight),
                in_flight=in_flight,
                per_call=per_call,
                beside={GRPC: partial(by_grpc.measure, self._served[0], self._seconds)},
                wanted=[Want(of=GRPC, least=least), Want(of=BASELINE, least=_SLOWER)],
            )

    def _search(
        self, encoder: BenchEncoder, limit: EngineWorker, lengths: Sequence[int]
    ) -> dict[BatchPlan, float]:
        """Search for the fastest plan of each way to use the processors."""
        sorted_too = len(set(lengths)) > 1
        with console.status(f"{encoder}: limits"):
            return dict(
                search(
                    plans_of(way, _BATCH_SIZES, sorted_too=sorted_too),
                    lambda plan: self._run(encoder, limit, lengths, plan, self._seconds / 4),
                )
                for way in WAYS
            )

    def _run(
        self,
        encoder: BenchEncoder,
        limit: EngineWorker,
        lengths: Sequence[int],
        plan: BatchPlan,
        seconds: float | None = None,
    ) -> Sample:
        """Run the limit; half as long as a server if not said."""
        if len(set(lengths)) == 1:
            lengths = [lengths[0]] * plan.batch  # one run is a round
        seconds = self._seconds / 2 if seconds is None else seconds
        return limit.measure_vectors(lengths, encoder.config.d_model, plan, seconds=seconds)


def _calls(connections: int = 1) -> Callable[[Contender], Callable[[], Any]]:
    return lambda contender: partial(unary_calls, contender.address, connections)


def _streams(streams: int) -> Callable[[Contender], Callable[[], Any]]:
    return lambda contender: partial(stream_calls, contender.address, streams)


def _posts(connections: int) -> Callable[[Contender], Callable[[], Any]]:
    return lambda contender: partial(http_calls, contender.http, connections)


def _embeddings(encoder: BenchEncoder, texts: Sequence[str]) -> bytes:
    body = embeddings_body(encoder.name, texts)
    return http_request("/v1/embeddings", body, Content_Type="application/json")


def sections(comparisons: Sequence[tuple[Traffic, Comparison]]) -> list[str]:
    """Return the page's table."""
    used = [of for of in _COLUMNS if any(each.strongest(of) for _, each in comparisons)]
    return markdown_table(_row(traffic, each, used) for traffic, each in comparisons)


def _row(traffic: Traffic, comparison: Comparison, used: Sequence[str]) -> dict[str, str]:
    def ratio(of: str, field: str = "rate") -> str:
        """Of an open loop the rate is given, and its p50 is compared."""
        other = comparison.strongest(of)
        return str(comparison.ratio(POLYHEAD, other, field)) if other else ""

    own = partial(comparison.median, POLYHEAD)
    limit = comparison.strongest(LIMIT)
    beside_baseline = {
        f"{what} × baseline": ratio(BASELINE, field)
        for what, field in (("p50", "p50_ms"), ("p99", "p99_ms"), ("CPU", "server_ms"))
        if BASELINE in used
    }
    return {
        "encoder": str(traffic.encoder),
        "traffic": traffic.what,
        "in flight": "" if traffic.rate else str(traffic.in_flight),
        "sequences/s": spell_number(own("rate")),
        "p50 / p99 ms": f"{spell_number(own('p50_ms'))} / {spell_number(own('p99_ms'))}",
        "server's CPU ms": spell_number(own("server_ms")),
        **{f"× {_COLUMNS[of]}": ratio(of) for of in used},
        **beside_baseline,
        "limit": f"{spell_number(comparison.median(limit))}: {limit}" if limit else "",
        "cores: client / server": f"{own('client_cores'):.2f} / {own('server_cores'):.2f}",
        "errors": str(comparison.errors(POLYHEAD)),
    }


def judge(comparisons: Sequence[tuple[Traffic, Comparison]]) -> list[Condition]:
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
    parser.add_argument("--encoders", nargs="+", metavar="NAME", help="some of them")
    parser.add_argument(
        "--baseline", type=Path, metavar="PATH", help="another checkout, whose server takes part"
    )
    chosen = begun(parser.parse_args(), seconds=1.2, rounds=6)
    encoders = (*TINY_ENCODERS, TINY_TEXTS) if chosen.tiny else (*ENCODERS, MINILM)
    small, *large, texts = encoders
    names = chosen.encoders or [each.name for each in encoders]
    taking_part = [each for each in encoders if each.name in names]
    with ExitStack() as stack:
        with console.status("exporting"):
            export_missing(taking_part, chosen.models)
        served = [stack.enter_context(polyhead(chosen.models, http=True))]
        if chosen.baseline:
            python, models = python_of(chosen.baseline), chosen.models.with_name("baseline-models")
            with console.status("exporting by the baseline"):
                export_by(python, models, [each.name for each in taking_part])
            served.append(stack.enter_context(polyhead(models, name=BASELINE, python=python, http=True)))
        for contender in served:
            for encoder in taking_part:
                if not encoder.tokenizer:
                    contender.check(encoder, encoder.graph(chosen.models))
        bench = Bench(served, chosen)
        if small in taking_part:
            with echo_server() as floor:
                bench.run(bench.tiny(small, floor))
        for encoder in large:
            if encoder in taking_part:
                model = EngineModel(kind="onnxruntime", path=str(encoder.graph(chosen.models)))
                with engine_worker(LIMIT, model, chosen.out) as limit:
                    bench.run(bench.blocks(encoder, limit))
        if large[-1] in taking_part:
            bench.run(bench.attention(large[-1]))
        if texts in taking_part:
            bench.run(bench.texts(texts))
    command = "make bench" + (" BASELINE=PATH" if chosen.baseline else "")
    return finish(
        chosen,
        "serving",
        command,
        "What serving costs on top of onnxruntime",
        sections(bench.comparisons),
        conditions=judge(bench.comparisons),
        intro=[f"{in_rounds(chosen)} “× baseline” of p50, p99 and CPU time: less is better."],
        facts={"comparisons": [comparison for _, comparison in bench.comparisons]},
    )


if __name__ == "__main__":
    sys.exit(main())
