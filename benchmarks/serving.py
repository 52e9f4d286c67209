"""`make bench`: what serving costs on top of onnxruntime, as ratios within one run on one machine.

Three programs are measured: onnxruntime in a process of its own (the limit), a `grpc.aio` server that only
echoes (the floor), and polyhead between them. They take turns, for a second or so each and several rounds, so
that a slow phase of the machine slows them all, and each round gives its own ratio. Compare ratios: absolute
numbers are this machine's.

`--baseline PATH` adds the server of another checkout, to compare two versions. It takes turns with the others
and has a model repository of its own, exported by that checkout.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from benchmarks.baseline import baseline_server
from benchmarks.echo_server import echo_server
from benchmarks.encoders import (
    ENCODERS,
    GRAPH,
    BenchEncoder,
    export_missing,
    export_padded_limit,
    mixed_lengths,
    reply_bytes,
    request_bytes,
    sequences,
)
from benchmarks.frame import Sample, compare, console, finish, options, put_load
from benchmarks.in_process import CORES, InProcess, RunConfig, in_process
from benchmarks.load_generator import Send, closed_loop, encode_loop, stream_loop
from benchmarks.sentences import share_of_tokens
from benchmarks.servers import ServerProcess, serve
from benchmarks.serving_report import INTRO, POLYHEAD, BenchRow, Target, sections, targets

_TINY, _SMALL, _LARGE = (encoder.name for encoder in ENCODERS)
_TYPICAL_TOKENS = 32
"""T of the replies that the floor echoes for mixed lengths."""
_ATTENTION_TOKENS = 256
"""T of the requests for attention."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A load, and what it is compared with."""

    name: str
    send: Send
    """Lacks the address, `seconds` and perhaps `server`."""
    in_flight: int
    batch: int = 1
    """Sequences per request."""
    latency: bool = False
    """Compare the p50, else sequences per second."""
    target: Target | None = None
    limits: Mapping[str, Callable[[float], Sample]] = field(default_factory=dict)
    """The candidates for the limit by name; each runs for so many seconds."""
    share: float | None = None
    """Of the tokens in padded batches, those that exist; None where nothing is padded."""
    expected_rate: float = 0.0
    """Sequences per second, if known; a sample has two times as many requests as are in flight."""
    echo_bytes: int = 0
    """Size of the floor's replies; 0 leaves the floor out."""
    echo_send: Send | None = None
    """The floor's load, if it is another one."""
    plain_send: Send | None = None
    """The same load without attention, if it asks for attention."""


class Bench:
    """One run.

    Args:
        server: The server.
        baseline: The server that it is compared with, if any.
        seconds: Length of a sample; limit and floor get half of it.
        rounds: Samples per measurement.
    """

    def __init__(
        self, server: ServerProcess, baseline: ServerProcess | None, *, seconds: float, rounds: int
    ) -> None:
        self.rows: list[BenchRow] = []
        self._server = server
        self._baseline = baseline
        self._seconds = seconds
        self._rounds = rounds

    def run(self, encoder: BenchEncoder, models: Path) -> None:
        """Measure every scenario of an encoder."""
        with ExitStack() as stack:
            scenarios: list[Scenario] = []
            with console.status(f"{encoder.name}: limits"):
                if encoder.name == _TINY:
                    scenarios += self._tiny(encoder)
                else:
                    fast = stack.enter_context(in_process(encoder, models, GRAPH))
                    beside = export_padded_limit(encoder, models)
                    padded = stack.enter_context(in_process(encoder, beside, GRAPH))
                    scenarios += self._equal(encoder, fast)
                    scenarios += self._mixed(encoder, padded)
                if encoder.name == _LARGE:
                    explicit = stack.enter_context(in_process(encoder, models, "attention.onnx"))
                    scenarios += self._attention(encoder, explicit)
            for scenario in scenarios:
                self.rows.append(self._measure(encoder, scenario))

    def _tiny(self, encoder: BenchEncoder) -> Iterator[Scenario]:
        """Yield the scenarios of requests whose transport costs more than the encoder; the floor counts."""
        lengths, size = [encoder.tokens] * 64, reply_bytes(encoder, encoder.tokens)
        requests = request_bytes(encoder, lengths)

        def floor(name: str, send: Send, in_flight: int, least: float | None) -> Scenario:
            target = None if least is None else Target(of="floor", least=least)
            return Scenario(name=name, send=send, in_flight=in_flight, target=target, echo_bytes=size)

        for in_flight, least in ((1, 0.65), (8, 0.75), (32, 1.0)):
            yield floor("equal", _calls(requests, in_flight), in_flight, least)
        eight = _calls(request_bytes(encoder, lengths, batch=8), 8)
        yield replace(floor("equal, 8 a call", eight, 8, 0.6), batch=8, echo_bytes=8 * size)
        for streams, in_flight in ((1, 1), (1, 8), (4, 32)):
            send = partial(stream_loop, requests=requests, streams=streams, in_flight=in_flight)
            yield floor(f"equal, {streams} stream{'s' * (streams > 1)}", send, in_flight, 0.6)
        inputs = sequences(encoder, lengths)
        encode = partial(encode_loop, model=encoder.name, inputs=inputs, in_flight=32)
        yield replace(floor("AsyncClient.encode", encode, 32, None), echo_send=_calls(requests, 32))
        mixed = request_bytes(encoder, mixed_lengths(encoder.mixed))
        echo_bytes = reply_bytes(encoder, _TYPICAL_TOKENS)
        for in_flight in (8, 32):
            yield replace(floor("mixed", _calls(mixed, in_flight), in_flight, None), echo_bytes=echo_bytes)

    def _equal(self, encoder: BenchEncoder, graph: InProcess) -> Iterator[Scenario]:
        """Yield the scenarios of encoders whose runs cost more than the transport; the limit counts."""
        requests = request_bytes(encoder, [encoder.tokens] * 64)
        yield Scenario(
            name="equal",
            send=_calls(requests, 1),
            in_flight=1,
            latency=True,
            target=Target(of="limit", most=1.1, plus_ms=0.5),
            limits=_runs(graph, graph.one_in_flight(encoder.tokens)),
        )
        near = (0.87, 0.92) if encoder.name == _SMALL else (0.95, 0.95)
        limits = graph.search((encoder.tokens,), self._seconds / 4)
        for in_flight, least in zip((8, 32), near, strict=True):
            yield Scenario(
                name="equal",
                send=_calls(requests, in_flight),
                in_flight=in_flight,
                target=Target(of="limit", least=least),
                limits=_runs(graph, limits),
                expected_rate=max(limits.values()),
            )

    def _mixed(self, encoder: BenchEncoder, padded: InProcess) -> Iterator[Scenario]:
        """Yield the scenarios of mixed lengths; the limit computes padding."""
        lengths = tuple(mixed_lengths(encoder.mixed))
        limits = padded.search(lengths, self._seconds / 4)
        for in_flight, least in ((8, 1.0), (32, 1.05)):
            yield Scenario(
                name="mixed",
                send=_calls(request_bytes(encoder, lengths), in_flight),
                in_flight=in_flight,
                target=Target(of="limit", least=least),
                limits=_runs(padded, limits),
                share=share_of_tokens(lengths, in_flight),
                expected_rate=max(limits.values()),
            )

    def _attention(self, encoder: BenchEncoder, graph: InProcess) -> Iterator[Scenario]:
        """Yield the scenarios with attention in the reply."""
        lengths = [_ATTENTION_TOKENS] * 8
        layers = range(encoder.config.layers)
        for name, asked, dtype, most in (
            ("one layer's attention", [0], None, None),
            ("all attention", layers, None, 1.15),
            ("all attention, UINT8", layers, "UINT8", None),
        ):
            yield Scenario(
                name=f"{name}, T = {_ATTENTION_TOKENS}",
                send=_calls(request_bytes(encoder, lengths, attention=asked, dtype=dtype), 1),
                in_flight=1,
                latency=True,
                target=Target(of="plain", most=most) if most else None,
                limits=_runs(graph, graph.one_in_flight(_ATTENTION_TOKENS)),
                plain_send=_calls(request_bytes(encoder, lengths), 1),
            )
        encode = partial(encode_loop, model=encoder.name, inputs=sequences(encoder, lengths), in_flight=1)
        yield Scenario(
            name=f"all attention, AsyncClient, T = {_ATTENTION_TOKENS}",
            send=partial(encode, attention=True),
            in_flight=1,
            latency=True,
            target=Target(of="plain", most=1.15),
            limits=_runs(graph, graph.one_in_flight(_ATTENTION_TOKENS)),
            plain_send=encode,
        )

    def _measure(self, encoder: BenchEncoder, scenario: Scenario) -> BenchRow:
        """Measure one scenario and its references in turn."""
        half = self._seconds / 2
        measures: dict[str, Callable[[], Sample]] = {
            name: partial(run, half) for name, run in scenario.limits.items()
        }
        with ExitStack() as stack:
            if scenario.echo_bytes:
                echo = stack.enter_context(echo_server(scenario.echo_bytes))
                send = scenario.echo_send or scenario.send
                measures["floor"] = partial(put_load, partial(send, echo), half, scenario.batch)
            if scenario.plain_send:
                plain = replace(scenario, send=scenario.plain_send)
                measures["plain"] = partial(self._serve, self._server, plain)
            if self._baseline:
                measures["baseline"] = partial(self._serve, self._baseline, scenario)
            measures[POLYHEAD] = partial(self._serve, self._server, scenario)
            what = f"{encoder.name}: {scenario.name}, {scenario.in_flight} in flight"
            samples = compare(what, measures, self._rounds)
        return BenchRow(
            encoder=encoder.name,
            traffic=scenario.name,
            in_flight=scenario.in_flight,
            field="p50_ms" if scenario.latency else "rate",
            target=scenario.target,
            candidates=list(scenario.limits),
            share=scenario.share,
            samples=samples,
        )

    def _serve(self, server: ServerProcess, scenario: Scenario) -> Sample:
        """Load a server."""
        seconds = self._seconds
        if scenario.expected_rate:
            seconds = max(seconds, 2 * scenario.in_flight / scenario.expected_rate)
        send = partial(scenario.send, server.address, server=server.cpu_seconds)
        return put_load(send, seconds, scenario.batch)


def _calls(requests: Sequence[bytes], in_flight: int) -> Send:
    """Return the load of calls."""
    return partial(closed_loop, requests=requests, in_flight=in_flight)


def _runs(graph: InProcess, configs: Iterable[RunConfig]) -> dict[str, Callable[[float], Sample]]:
    """Return runs in process by name."""
    return {str(config): partial(graph.measure, config) for config in configs}


def main() -> int:
    """Run the benchmark, and return 0 if every target is met."""
    parser = options(__doc__, "serving", models="bench", seconds=1.5, rounds=3)
    names = [encoder.name for encoder in ENCODERS]
    parser.add_argument("--encoders", nargs="+", choices=names, default=names)
    parser.add_argument("--baseline", type=Path, help="another checkout, whose server takes part")
    chosen = parser.parse_args()
    encoders = [encoder for encoder in ENCODERS if encoder.name in chosen.encoders]
    with ExitStack() as stack:
        with console.status("exporting"):
            export_missing(encoders, chosen.models)
            baseline = None
            if chosen.baseline:
                baseline = stack.enter_context(baseline_server(chosen.baseline.resolve(), encoders))
            server = stack.enter_context(serve(chosen.models, []))
        bench = Bench(server, baseline, seconds=chosen.seconds, rounds=chosen.rounds)
        for encoder in encoders:
            bench.run(encoder, chosen.models)
    return finish(
        chosen,
        "make bench",
        "What serving costs on top of onnxruntime",
        sections(bench.rows, cores=CORES),
        conditions=targets(bench.rows),
        intro=INTRO,
        facts={"rows": bench.rows},
    )


if __name__ == "__main__":
    sys.exit(main())
