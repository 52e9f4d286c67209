"""`make calls`: how many of polyhead's functions one warm request enters, in the server and in its client.

A count is nearly the same on every machine: only a list runs in as many pieces as pay there. Many different
functions cost more than few that repeat: after a run of the model, the processor's caches hold weights.
"""

import http.client
import json
import sys
import tempfile
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from signal import SIGUSR1
from typing import Any

from benchmarks.call_trace import CallTrace, Entered
from benchmarks.contenders import Contender, polyhead
from benchmarks.encoders import MINILM, TINY_TEXTS, embeddings_body, export_missing
from benchmarks.page import begun, finish, options
from benchmarks.rounds import Condition, markdown_table
from polyhead_client import Client

_TEXT = "The cat sat on the mat."
_POST = "`POST /v1/embeddings`"
_WARM_UP = 4
"""Calls before those that count: plans are cached, connections are there."""
_MOST: Mapping[tuple[str, str], Mapping[str, int]] = {
    ("a text, pooled", "server"): {"calls": 110, "functions": 90, "files": 16},
    ("a text, pooled", "client"): {"calls": 40, "functions": 35, "files": 6},
    ("a text, attention of a layer", "server"): {"calls": 120},
    ("a text, attention of a layer", "client"): {"calls": 60},
    ("32 texts, pooled", "server"): {"calls": 160},
    ("32 texts, pooled", "client"): {"calls": 40},
    (_POST, "server"): {"calls": 105, "files": 16},
}
"""What a side of a request may enter at most."""


def record(
    server: Contender, file: Path, model: str, layer: int, chosen: Namespace
) -> Iterator[tuple[str, str, list[Entered]]]:
    """Yield each request, the side, and what that enters; of several calls, the one with the fewest.

    Args:
        server: A server that records its calls.
        file: The file that it writes them to.
        model: An encoder of texts that it serves.
        layer: A layer of it.
        chosen: How often, and how long a server may go on after its reply.
    """
    trace, over_http = CallTrace(), http.client.HTTPConnection(server.http)

    def theirs() -> list[Entered]:
        server.process.send_signal(SIGUSR1)
        while not file.exists():
            time.sleep(0.01)
        entered = [(name, function, line) for name, function, line in json.loads(file.read_text())]
        file.unlink()
        return entered

    def post() -> None:
        body = embeddings_body(model, [_TEXT])
        over_http.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
        over_http.getresponse().read()

    with Client(server.address) as client, closing(over_http):
        encode = partial(client.encode, model=model)
        pooled = partial(encode, output=False, tokens=False)
        requests: dict[str, Callable[[], object]] = {
            "a text, pooled": partial(pooled, _TEXT),
            "a text, attention of a layer": partial(encode, _TEXT, attention=[layer]),
            "32 texts, pooled": partial(pooled, [_TEXT] * 32),
            _POST: post,
        }
        for name, send in requests.items():
            for _ in range(_WARM_UP):
                send()
            seen = []
            for _ in range(chosen.rounds):
                theirs(), trace.take()
                send()
                ours = trace.take()
                time.sleep(chosen.seconds)
                seen.append({"server": theirs(), "client": ours})
            for side, entered in min(seen, key=lambda sides: len(sides["server"])).items():
                if entered:
                    yield name, side, entered


def main() -> int:
    """Count, and return 0 if every condition holds."""
    chosen = begun(options(__doc__).parse_args(), seconds=0.2, rounds=5)
    encoder = TINY_TEXTS if chosen.tiny else MINILM
    export_missing([encoder], chosen.models)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "calls.json"
        program = [sys.executable, "-m", "benchmarks.call_trace", str(file)]
        with polyhead(chosen.models, program=program, http=True) as server:
            found = list(record(server, file, encoder.name, encoder.config.layers - 1, chosen))
    rows = [
        {
            "request": request,
            "side": side,
            "calls": len(entered),
            "functions": len(set(entered)),
            "files": len({name for name, _, _ in entered}),
        }
        for request, side, entered in found
    ]
    return finish(
        chosen,
        "calls",
        "make calls",
        "Functions that a request enters",
        markdown_table(rows),
        conditions=list(judge(rows)),
        intro=["Calls of our Python functions; a resumed coroutine is one. A list may run in pieces."],
        facts={
            "counts": rows,
            "entered": {
                f"{request}, {side}": dict(Counter(f"{name}:{function}" for name, function, _ in entered))
                for request, side, entered in found
            },
        },
    )


def judge(rows: Sequence[Mapping[str, Any]]) -> Iterator[Condition]:
    """Yield whether each count is within its limit."""
    for row in rows:
        for what, most in _MOST.get((row["request"], row["side"]), {}).items():
            name = f"{row['request']}: {what} in the {row['side']} ≤ {most}"
            yield Condition(name=name, holds=row[what] <= most, seen=str(row[what]))


if __name__ == "__main__":
    sys.exit(main())
