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
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from benchmarks.encoders import ENCODERS, MINILM, export_minilm, export_missing, request_bytes, sequences
from benchmarks.frame import (
    Condition,
    Rounds,
    Sample,
    at_most,
    compare,
    console,
    finish,
    markdown_table,
    options,
    spell_number,
    spell_ratios,
)
from benchmarks.load_generator import HEALTH, LoadResult, Send, closed_loop, http_loop
from benchmarks.servers import ServerProcess, serve
from benchmarks.slow_clients import slow_clients
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


Loads = Mapping[str, tuple[Send, Callable[[], AbstractContextManager[object]]]]
"""Loads that take turns, each with what else goes on meanwhile; the others are compared with the first."""

SENTENCE = "One sentence, one in flight"
BINARY = "bench-384, binary tensors, 8 in flight"
IDLE = "gRPC beside an HTTP server, {} in flight"
SLOW = f"gRPC beside {_SLOW:,} slow HTTP clients, 8 in flight"
WITHOUT, BESIDE = "without", "beside"
HEALTH_CHECKS = "Health checks beside load on the other protocol"


def targets(measured: Mapping[str, Rounds]) -> list[Condition]:
    """Return what must hold."""
    sentence = measured[SENTENCE]
    pairs = zip(sentence.values("/v1/embeddings", "p50_ms"), sentence.values("gRPC", "p50_ms"), strict=True)
    more = sorted(own - base for own, base in pairs)
    health = {
        name: max(measured[HEALTH_CHECKS].values(name, "p99_ms"))
        for name in measured[HEALTH_CHECKS].samples
        if "beside" in name
    }
    errors = sum(each.errors(name) for each in measured.values() for name in each.samples)
    return [
        Condition(
            name=f"{SENTENCE}: p50 of /v1/embeddings ≤ gRPC's + {_MORE_MS} ms",
            holds=median(more) <= _MORE_MS,
            seen=f"{median(more):+.2f} ({more[0]:+.2f} to {more[-1]:+.2f}) ms",
        ),
        at_most(f"{BINARY}: p50", _BINARY, "gRPC's", measured[BINARY].ratios("HTTP", "gRPC", "p50_ms")),
        *(
            at_most(f"{idle}: p50", _IDLE, "that without", measured[idle].ratios(BESIDE, WITHOUT, "p50_ms"))
            for idle in map(IDLE.format, (1, 8))
        ),
        at_most(f"{SLOW}: p99", _SLOW_P99, "that without", measured[SLOW].ratios(BESIDE, WITHOUT, "p99_ms")),
        Condition(
            name=f"{HEALTH_CHECKS}: p99 ≤ {_HEALTH_MS:g} ms in every round",
            holds=max(health.values()) <= _HEALTH_MS,
            seen=", ".join(f"{name} {ms:.1f} ms" for name, ms in health.items()),
        ),
        Condition(name="every request was answered", holds=not errors, seen=f"{errors} were not"),
    ]


def rows(loads: Rounds) -> Iterator[dict[str, str]]:
    """Yield a row for each load."""
    first = next(iter(loads.samples))
    for name, samples in loads.samples.items():
        server, client = (
            spell_number(median(1e3 * getattr(sample, field) / sample.rate for sample in samples))
            for field in ("server_cores", "client_cores")
        )
        yield {
            "": name,
            "requests/s": spell_number(loads.median(name)),
            "p50 ms": spell_number(loads.median(name, "p50_ms")),
            "×": "" if name == first else spell_ratios(loads.ratios(name, first, "p50_ms")),
            "p99 ms": spell_number(loads.median(name, "p99_ms")),
            "CPU ms: server / client": f"{server} / {client}",
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
                WITHOUT: (without(in_flight), quiet),
                BESIDE: (grpc(tensors, in_flight), quiet),
            }
            for in_flight in (1, 8)
        },
        SLOW: {
            WITHOUT: (grpc(tensors, 8), quiet),
            BESIDE: (grpc(tensors, 8), partial(slow_clients, both.http_port, _SLOW)),
        },
        HEALTH_CHECKS: {
            "gRPC": (check, quiet),
            "gRPC, beside HTTP": (check, loaded(load_http)),
            "HTTP": (probe, quiet),
            "HTTP, beside gRPC": (probe, loaded(load_grpc)),
        },
    }


def measure(what: str, loads: Loads, *, rounds: int, seconds: float) -> Rounds:
    """Load in turn."""

    def load(name: str) -> Sample:
        send, meanwhile = loads[name]
        with meanwhile():
            return Sample.of_load(asyncio.run(send(seconds=seconds)))

    for send, _ in loads.values():
        asyncio.run(send(seconds=seconds / 5))
    return Rounds(samples=compare(what, {name: partial(load, name) for name in loads}, rounds))


def main() -> int:
    """Measure, report, and return 0 if every target is met."""
    chosen = options(__doc__, "http", seconds=1.5, rounds=5).parse_args()
    export_missing([_ENCODER], chosen.models)
    export_minilm(chosen.models)
    with ExitStack() as stack:
        with console.status("starting"):
            both = stack.enter_context(serve(chosen.models, ["--http"]))
            flags = ["--log-level", "warning", "--http-port", "off"]
            alone = stack.enter_context(started_server(chosen.models, flags))
            context = multiprocessing.get_context("spawn")
            others = stack.enter_context(ProcessPoolExecutor(1, mp_context=context))
            others.submit(int).result()
        measured = {
            name: measure(name, loads, rounds=chosen.rounds, seconds=chosen.seconds)
            for name, loads in plan(both, alone, others, chosen.seconds).items()
        }
    return finish(
        chosen,
        "make http",
        "HTTP beside gRPC",
        (line for name, each in measured.items() for line in (f"## {name}", "", *markdown_table(rows(each)))),
        conditions=targets(measured),
        intro=(
            f"Medians of {chosen.rounds} rounds of {chosen.seconds:g} s, in turn. “×” divides by the p50",
            "of the first row in the same round, with the lowest and the highest round in brackets. Client",
            "and server share the machine; their CPU time is for each request. Both clients are asyncio,",
            "send requests that were built before, and do not decode replies. HTTP has a connection for each",
            "request in flight, gRPC has one.",
        ),
        facts={"rounds": chosen.rounds, "seconds": chosen.seconds, "measured": measured},
    )


if __name__ == "__main__":
    sys.exit(main())
