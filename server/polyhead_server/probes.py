"""Probes over HTTP, beside the metrics: they take no connection of gRPC's, of which there may be no more."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from polyhead_server.counters.board import Board
from polyhead_server.counters.layout import SERVING

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


def with_probes(others: "WSGIApplication", board: Board) -> "WSGIApplication":
    """Answers `/healthz` and `/readyz`.

    Args:
        others: Answers everything else.
        board: Where the workers say how they stand.
    """

    def answer(environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        path = environ.get("PATH_INFO")
        if path not in {"/healthz", "/readyz"}:
            return others(environ, start)
        fine = path == "/healthz" or board.total("", 0)[SERVING] > 0
        start("200 OK" if fine else "503 Service Unavailable", [("Content-Type", "text/plain")])
        return [b"ok\n" if fine else b"not ready: loading, draining, or without a model\n"]

    return answer
