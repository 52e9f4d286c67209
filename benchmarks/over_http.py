"""`make http`: what HTTP costs beside gRPC, and whether it costs gRPC anything.

One server answers both; another has no HTTP at all. A trained MiniLM embeds a sentence of 32 tokens by
`/v1/embeddings` and over gRPC; bench-384 answers binary tensors over both. Then gRPC is called beside an HTTP
server that is idle. What is compared takes turns within a round, and each round gives its own ratios.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from benchmarks.encoders import (
    ENCODERS,
    MINILM,
    export_minilm,
    export_missing,
    request_bytes,
    sequences,
    text_request,
)
from benchmarks.frame import (
    Condition,
    Rounds,
    at_most,
    compare,
    console,
    finish,
    in_rounds,
    markdown_table,
    options,
    put_load,
)
from benchmarks.load_generator import Send, closed_loop, http_loop
from benchmarks.servers import ServerProcess, serve
from polyhead_load.sweep.server import OwnServer, started_server

_ENCODER = ENCODERS[1]
_SENTENCE = " ".join(["the"] * 30)
"""32 tokens, with those that begin and end it."""
_MORE_MS = 1.5
_BINARY = 1.3
_IDLE = 1.05

SENTENCE = "One sentence, one in flight"
BINARY = "bench-384, binary tensors, 8 in flight"
IDLE = "gRPC beside an HTTP server, {} in flight"
WITHOUT, BESIDE = "without", "beside"


def targets(measured: Mapping[str, Rounds]) -> list[Condition]:
    """Return what must hold."""
    sentence = measured[SENTENCE]
    pairs = zip(sentence.values("/v1/embeddings", "p50_ms"), sentence.values("gRPC", "p50_ms"), strict=True)
    more = sorted(own - base for own, base in pairs)
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
        Condition(name="every request was answered", holds=not errors, seen=f"{errors} were not"),
    ]


def _table(loads: Rounds) -> list[str]:
    first = next(iter(loads.samples))
    return markdown_table(loads.row(name, first) for name in loads.samples)


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


def plan(both: ServerProcess, alone: OwnServer) -> dict[str, dict[str, Send]]:
    """Return the loads that take turns, by the page's headings."""
    tensors = request_bytes(_ENCODER, [_ENCODER.tokens] * 16)
    binary = [_binary(array) for array in sequences(_ENCODER, [_ENCODER.tokens] * 16)]

    def grpc(requests: Sequence[bytes], in_flight: int) -> Send:
        return partial(closed_loop, both.address, requests, in_flight=in_flight, server=both.cpu_seconds)

    def over_http(requests: Sequence[bytes], in_flight: int) -> Send:
        address = f"127.0.0.1:{both.http_port}"
        return partial(http_loop, address, requests, in_flight=in_flight, server=both.cpu_seconds)

    def without(in_flight: int) -> Send:
        server = lambda: alone.cpu_seconds() or 0.0  # noqa: E731
        return partial(closed_loop, alone.address, tensors, in_flight=in_flight, server=server)

    return {
        SENTENCE: {
            "gRPC": grpc([text_request(MINILM, [_SENTENCE])], 1),
            "/v1/embeddings": over_http([_embeddings()], 1),
            "/v1/embeddings, base64": over_http([_embeddings(encoding_format="base64")], 1),
        },
        BINARY: {"gRPC": grpc(tensors, 8), "HTTP": over_http(binary, 8)},
        **{
            IDLE.format(in_flight): {WITHOUT: without(in_flight), BESIDE: grpc(tensors, in_flight)}
            for in_flight in (1, 8)
        },
    }


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
        measured = {
            name: Rounds(
                samples=compare(
                    name,
                    {each: partial(put_load, send, chosen.seconds) for each, send in loads.items()},
                    chosen.rounds,
                )
            )
            for name, loads in plan(both, alone).items()
        }
    return finish(
        chosen,
        "make http",
        "HTTP beside gRPC",
        [line for name, each in measured.items() for line in (f"## {name}", "", *_table(each))],
        conditions=targets(measured),
        intro=(
            f"{in_rounds(chosen)} Client and server share the machine. Both clients are asyncio, send",
            "requests that were built before, and do not decode replies. HTTP has a connection for each",
            "request in flight, gRPC has one.",
        ),
        facts={"measured": measured},
    )


if __name__ == "__main__":
    sys.exit(main())
