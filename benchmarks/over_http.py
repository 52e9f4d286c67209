"""`make http`: what HTTP costs beside gRPC, and whether it costs gRPC anything.

One server answers both; another has no HTTP at all. A trained MiniLM embeds a sentence of 32 tokens by
`/v1/embeddings` and over gRPC; bench-384 answers binary tensors over both. Then gRPC is called beside an HTTP
server that is idle, and beside 1,000 slow clients of it, and health checks of each protocol beside load on
the other. What is compared takes turns within a round, and each round gives its own ratios.
"""

import asyncio
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from benchmarks.encoders import ENCODERS, MINILM, export_minilm, export_missing, request_bytes, sequences
from benchmarks.load_generator import HEALTH, LoadResult, Send, closed_loop, http_loop
from benchmarks.report import (
    Condition,
    conclude,
    conditions_rows,
    console,
    heading,
    markdown_table,
    options,
    spell_number,
    with_fingerprint,
)
from benchmarks.servers import ServerProcess, serve
from benchmarks.slow_clients import slow_clients
from benchmarks.turns import in_turn, paired_ratios
from polyhead_load.sweep.server import OwnServer, started_server
from polyhead_proto import messages as pb
from polyhead_proto.datatypes import pack_strings

_ENCODER = ENCODERS[1]
_SENTENCE = " ".join(["the"] * 30)
"""32 tokens, with those that begin and end it."""
_SLOW = 1000
_MORE_MS = 1.5
_BINARY = 1.3
_IDLE = 1.05
_SLOW_P99 = 1.5
_HEALTH_MS = 50.0
_BEGIN_SECONDS = 0.3
"""In which another process begins to load."""


@dataclass(frozen=True, kw_only=True)
class HttpSample:
    """One load."""

    p50_ms: float
    p99_ms: float
    rate: float
    errors: int
    server_ms: float
    """CPU time of the server for each request."""
    client_ms: float

    @classmethod
    def of(cls, load: LoadResult) -> "HttpSample":
        """Sum up a load."""
        return cls(
            p50_ms=load.percentile_ms(50),
            p99_ms=load.percentile_ms(99),
            rate=load.rate,
            errors=load.errors,
            server_ms=1e3 * load.server_cores / load.rate,
            client_ms=1e3 * load.client_cores / load.rate,
        )


Loads = Mapping[str, tuple[Send, Callable[[], AbstractContextManager[object]]]]
"""Loads that take turns, each with what else goes on meanwhile; the others are compared with the first."""
Samples = Mapping[str, Sequence[HttpSample]]
"""By load; one of each round."""

SENTENCE = "One sentence, one in flight"
BINARY = "bench-384, binary tensors, 8 in flight"
IDLE = "gRPC beside an HTTP server, {} in flight"
SLOW = f"gRPC beside {_SLOW:,} slow HTTP clients, 8 in flight"
HEALTH_CHECKS = "Health checks beside load on the other protocol"


def ratios(samples: Samples, load: str, field: str) -> list[float]:
    """Return a load's numbers divided by the first one's in the same round, ascending."""
    first = next(iter(samples))
    own, base = ([getattr(sample, field) for sample in samples[name]] for name in (load, first))
    return paired_ratios(own, base)


def targets(measured: Mapping[str, Samples]) -> list[Condition]:
    """Return what must hold."""
    sentence = measured[SENTENCE]
    more = [
        own.p50_ms - base.p50_ms
        for own, base in zip(sentence["/v1/embeddings"], sentence["gRPC"], strict=True)
    ]
    binary = ratios(measured[BINARY], "HTTP", "p50_ms")
    found = [
        Condition(
            name=f"{SENTENCE}: p50 of /v1/embeddings ≤ gRPC's + {_MORE_MS:g} ms",
            holds=median(more) <= _MORE_MS,
            seen=_spread(sorted(more), "+.2f") + " ms",
        ),
        Condition(
            name=f"{BINARY}: p50 ≤ {_BINARY:g} × gRPC's",
            holds=median(binary) <= _BINARY,
            seen=_spread(binary),
        ),
    ]
    for in_flight in (1, 8):
        idle = ratios(measured[IDLE.format(in_flight)], "beside", "p50_ms")
        found.append(
            Condition(
                name=f"{IDLE.format(in_flight)}: p50 ≤ {_IDLE:g} × that without",
                holds=median(idle) <= _IDLE,
                seen=_spread(idle),
            )
        )
    slow = ratios(measured[SLOW], "beside", "p99_ms")
    health = {
        name: max(sample.p99_ms for sample in samples)
        for name, samples in measured[HEALTH_CHECKS].items()
        if "beside" in name
    }
    errors = sum(sample.errors for each in measured.values() for own in each.values() for sample in own)
    return [
        *found,
        Condition(
            name=f"{SLOW}: p99 ≤ {_SLOW_P99:g} × that without",
            holds=median(slow) <= _SLOW_P99,
            seen=_spread(slow),
        ),
        Condition(
            name=f"{HEALTH_CHECKS}: p99 ≤ {_HEALTH_MS:g} ms in every round",
            holds=max(health.values()) <= _HEALTH_MS,
            seen=", ".join(f"{name} {ms:.1f} ms" for name, ms in health.items()),
        ),
        Condition(name="every request was answered", holds=not errors, seen=f"{errors} were not"),
    ]


def _spread(ascending: Sequence[float], form: str = ".2f") -> str:
    return f"{median(ascending):{form}} ({ascending[0]:{form}} to {ascending[-1]:{form}})"


def page(result: Mapping[str, Any]) -> str:
    """Return the comparison as a page in Markdown."""
    lines = [
        *heading("HTTP beside gRPC", "http", result),
        f"Medians of {result['rounds']} rounds of {result['seconds']:g} s, in turn. “×” divides by the p50",
        "of the first row in the same round, with the lowest and the highest round in brackets. Client and",
        "server share the machine; their CPU time is for each request. Both clients are asyncio, send",
        "requests that were built before, and do not decode replies. HTTP has a connection for each request",
        "in flight, gRPC has one.",
        "",
        *conditions_rows(result["targets"]),
    ]
    for name, samples in result["measured"].items():
        lines += [f"## {name}", "", *markdown_table(_rows(samples))]
    return "\n".join(lines)


def _rows(samples: Samples) -> Iterator[dict[str, str]]:
    for number, (name, own) in enumerate(samples.items()):

        def middle(field: str, own: Sequence[HttpSample] = own) -> str:
            return spell_number(median(getattr(sample, field) for sample in own))

        yield {
            "": name,
            "requests/s": middle("rate"),
            "p50 ms": middle("p50_ms"),
            "×": _spread(ratios(samples, name, "p50_ms")) if number else "",
            "p99 ms": middle("p99_ms"),
            "CPU ms: server / client": f"{middle('server_ms')} / {middle('client_ms')}",
        }


def http_request(path: str, body: bytes = b"", **headers: str) -> bytes:
    """Return a request with its head."""
    lines = [
        f"{'POST' if body else 'GET'} {path} HTTP/1.1",
        "Host: localhost",
        f"Content-Length: {len(body)}",
    ]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def _binary(array: np.ndarray[Any, Any]) -> bytes:
    """Return an inference of bench-384 with binary tensors, both ways."""
    x = array[None]
    lengths = np.array([len(array)], np.int32)
    inputs = [
        {
            "name": name,
            "datatype": datatype,
            "shape": one.shape,
            "parameters": {"binary_data_size": one.nbytes},
        }
        for name, datatype, one in (("x", "FP32", x), ("lengths", "INT32", lengths))
    ]
    outputs = [{"name": "output", "parameters": {"binary_data": True}}]
    text = json.dumps({"inputs": inputs, "outputs": outputs}).encode()
    return http_request(
        f"/v2/models/{_ENCODER.name}/infer",
        text + x.tobytes() + lengths.tobytes(),
        Content_Type="application/octet-stream",
        Inference_Header_Content_Length=str(len(text)),
    )


def _embeddings(**fields: str) -> bytes:
    body = json.dumps({"model": MINILM, "input": _SENTENCE, **fields}).encode()
    return http_request("/v1/embeddings", body, Content_Type="application/json")


def _text() -> bytes:
    """Return the same sentence for gRPC."""
    request = pb.ModelInferRequest(model_name=MINILM)
    request.inputs.add(name="text", datatype="BYTES", shape=[1])
    request.raw_input_contents.append(pack_strings([_SENTENCE.encode()]))
    request.outputs.add(name="pooled")
    return bytes(request.SerializeToString())


def _load(send: Send, seconds: float) -> LoadResult:
    return asyncio.run(send(seconds=seconds))


@contextmanager
def beside(others: ProcessPoolExecutor, send: Send, seconds: float) -> Iterator[None]:
    """Load a server from another process, for a while, from before the block to its end."""
    future = others.submit(_load, send, seconds)
    try:
        time.sleep(_BEGIN_SECONDS)
        yield
    finally:
        future.result()


def plan(
    both: ServerProcess, alone: OwnServer, others: ProcessPoolExecutor, seconds: float
) -> dict[str, Loads]:
    """Return what takes turns, by the page's headings."""
    http = f"127.0.0.1:{both.http_port}"
    cpu = both.cpu_seconds
    tensors = request_bytes(_ENCODER, [_ENCODER.tokens] * 16)
    binary = [_binary(array) for array in sequences(_ENCODER, [_ENCODER.tokens] * 16)]
    quiet = nullcontext[None]

    def grpc(requests: Sequence[bytes], in_flight: int) -> Send:
        return partial(closed_loop, both.address, requests, in_flight=in_flight, server=cpu)

    def over_http(requests: Sequence[bytes], in_flight: int) -> Send:
        return partial(http_loop, http, requests, in_flight=in_flight, server=cpu)

    def without(in_flight: int) -> Send:
        return partial(
            closed_loop,
            alone.address,
            tensors,
            in_flight=in_flight,
            server=lambda: alone.cpu_seconds() or 0.0,
        )

    load_grpc = partial(closed_loop, both.address, tensors, in_flight=8)
    load_http = partial(http_loop, http, binary, in_flight=8)
    check = partial(closed_loop, both.address, [b""], in_flight=1, path=HEALTH, server=cpu)
    probe = over_http([http_request("/v2/health/ready")], 1)
    longer = seconds + 1

    def loaded(send: Send) -> Callable[[], AbstractContextManager[object]]:
        return partial(beside, others, send, longer)

    return {
        SENTENCE: {
            "gRPC": (grpc([_text()], 1), quiet),
            "/v1/embeddings": (over_http([_embeddings()], 1), quiet),
            "/v1/embeddings, base64": (over_http([_embeddings(encoding_format="base64")], 1), quiet),
        },
        BINARY: {"gRPC": (grpc(tensors, 8), quiet), "HTTP": (over_http(binary, 8), quiet)},
        **{
            IDLE.format(in_flight): {
                "without": (without(in_flight), quiet),
                "beside": (grpc(tensors, in_flight), quiet),
            }
            for in_flight in (1, 8)
        },
        SLOW: {
            "without": (grpc(tensors, 8), quiet),
            "beside": (grpc(tensors, 8), partial(slow_clients, both.http_port, _SLOW)),
        },
        HEALTH_CHECKS: {
            "gRPC": (check, quiet),
            "gRPC, beside HTTP": (check, loaded(load_http)),
            "HTTP": (probe, quiet),
            "HTTP, beside gRPC": (probe, loaded(load_grpc)),
        },
    }


def measure(loads: Loads, *, rounds: int, seconds: float) -> dict[str, list[HttpSample]]:
    """Load in turn, in every second round backwards."""
    samples: dict[str, list[HttpSample]] = {name: [] for name in loads}
    for send, _ in loads.values():
        asyncio.run(send(seconds=seconds / 5))
    for order in in_turn(samples, rounds):
        for name in order:
            send, meanwhile = loads[name]
            with meanwhile():
                samples[name].append(HttpSample.of(asyncio.run(send(seconds=seconds))))
    return samples


def main() -> int:
    """Measure, report, and return 0 if every target is met."""
    parser = options(__doc__, "http")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each load")
    chosen = parser.parse_args()
    export_missing([_ENCODER], chosen.models)
    export_minilm(chosen.models)
    measured: dict[str, Samples] = {}
    with ExitStack() as stack:
        status = stack.enter_context(console.status("starting"))
        both = stack.enter_context(serve(chosen.models, ["--http"]))
        alone = stack.enter_context(
            started_server(chosen.models, ["--log-level", "warning", "--http-port", "off"])
        )
        context = multiprocessing.get_context("spawn")
        others = stack.enter_context(ProcessPoolExecutor(1, mp_context=context))
        others.submit(int).result()
        for name, loads in plan(both, alone, others, chosen.seconds).items():
            status.update(name)
            measured[name] = measure(loads, rounds=chosen.rounds, seconds=chosen.seconds)
    conditions = targets(measured)
    result = with_fingerprint(
        {
            "rounds": chosen.rounds,
            "seconds": chosen.seconds,
            "targets": conditions,
            "measured": measured,
        }
    )
    return conclude(chosen.out, result, page(result), conditions)


if __name__ == "__main__":
    sys.exit(main())
