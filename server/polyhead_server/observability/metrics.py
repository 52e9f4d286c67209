"""Prometheus metrics and probes over HTTP.

The counters are read when metrics are scraped: requests pay for nothing but counting.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from threading import Thread
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from polyhead_server.address import explain, format_address
from polyhead_server.errors import StartError
from polyhead_server.observability import counter_layout as layout
from polyhead_server.observability.http_server import HttpServer
from polyhead_server.observability.logs import LOGGER
from polyhead_server.observability.shared_counters import SharedCounters
from polyhead_server.settings import Settings

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

DEFAULT_PORT = 8002

_MODEL = ("model", "version")
_NO_MODEL = ("", 0)

_HISTOGRAMS = {
    "polyhead_request_seconds": (
        layout.REQUEST,
        "Time of an answered request, from its bytes to its reply's.",
    ),
    "polyhead_parse_seconds": (layout.PARSE, "Time to read and check an answered request."),
    "polyhead_tokenise_seconds": (layout.TOKENISE, "Time to tokenise the text of an answered request."),
    "polyhead_queue_seconds": (layout.QUEUE, "Time of an answered request in the queue."),
    "polyhead_compute_seconds": (layout.COMPUTE, "Time of the run that an answered request was part of."),
    "polyhead_serialise_seconds": (layout.SERIALISE, "Time to write the reply to an answered request."),
}
_COUNTERS = {
    "polyhead_sequences": (layout.SEQUENCES, "Sequences in answered requests."),
    "polyhead_tokens": (layout.TOKENS, "Tokens computed, without padding."),
    "polyhead_padded_tokens": (layout.PADDED_TOKENS, "Tokens computed, with padding."),
}
_GAUGES = {
    "polyhead_model_ready": (layout.READY, "Workers in which the model is ready."),
    "polyhead_queued_tokens": (layout.QUEUED_TOKENS, "Tokens in the queue, with padding."),
}

_Models = Mapping[tuple[str, str], Sequence[int]]


class Metrics(Collector):
    """Collect the metrics of a server.

    Args:
        counters: The counters of all workers.
        workers: The process of each running worker, by its number. May change.
        restarts: How often each worker has been replaced. May change.
    """

    def __init__(
        self, counters: SharedCounters, workers: Mapping[int, int], restarts: Sequence[int] = ()
    ) -> None:
        self._counters = counters
        self._workers = workers
        self._restarts = restarts

    def collect(self) -> Iterator[Metric]:
        """Read the counters."""
        totals = dict(self._counters.totals())
        server = totals.pop(_NO_MODEL, [0] * layout.SLOTS)
        models = {(name, str(number)): values for (name, number), values in totals.items()}
        yield from _by_label({("", ""): server} | models)
        for name, (histogram, text) in _HISTOGRAMS.items():
            yield _histogram(name, text, histogram, models, 1e9)
        batch = "Sequences in each run of the engine."
        yield _histogram("polyhead_batch_sequences", batch, layout.BATCH, models, 1)
        for kind, families in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
            for name, (slot, text) in families.items():
                family = kind(name, text, labels=_MODEL)
                for labels, values in models.items():
                    family.add_metric(labels, values[slot])
                yield family
        in_flight = "Accepted requests that are not answered yet."
        yield GaugeMetricFamily("polyhead_requests_in_flight", in_flight, value=server[layout.IN_FLIGHT])
        held = "Bytes of received requests and unsent outputs."
        yield GaugeMetricFamily("polyhead_held_bytes", held, value=server[layout.HELD_BYTES])
        info = GaugeMetricFamily(
            "polyhead_model_info", "1; names the provider that runs the model.", labels=(*_MODEL, "provider")
        )
        for labels, values in models.items():
            if provider := layout.decode_provider(values):
                info.add_metric((*labels, provider), 1)
        yield info
        yield from self._processes()
        build = GaugeMetricFamily("polyhead_build_info", "1; names the version.", labels=("version",))
        build.add_metric((version("polyhead"),), 1)
        yield build
        yield GaugeMetricFamily("polyhead_workers", "Running workers.", value=len(self._workers))
        restarts = "Workers that ended and were replaced."
        yield CounterMetricFamily("polyhead_worker_restarts", restarts, value=sum(self._restarts))

    def _processes(self) -> Iterable[Metric]:
        """Collect prometheus_client's `process_*` metrics of each worker."""
        families: dict[str, Metric] = {}
        for worker, process in sorted(self._workers.items()):
            for one in ProcessCollector(pid=partial(str, process), registry=None).collect():
                family = families.setdefault(one.name, Metric(one.name, one.documentation, one.type))
                for sample in one.samples:
                    labels = {**sample.labels, "worker": str(worker)}
                    family.add_sample(sample.name, labels, sample.value)
        return families.values()


def _by_label(models: _Models) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "polyhead_requests", "Inference requests, by gRPC status.", labels=(*_MODEL, "code")
    )
    drops = CounterMetricFamily(
        "polyhead_drops", "Work that was rejected or dropped, by the reason.", labels=(*_MODEL, "reason")
    )
    for family, slots, always in ((requests, layout.CODE, "OK"), (drops, layout.DROP, None)):
        for labels, values in models.items():
            for label, slot in slots.items():
                if values[slot] or (label == always and labels[0]):
                    family.add_metric((*labels, label), values[slot])
        yield family


def _histogram(name: str, text: str, histogram: layout.Histogram, models: _Models, unit: float) -> Metric:
    family = HistogramMetricFamily(name, text, labels=_MODEL)
    for labels, values in models.items():
        count = 0
        buckets: list[tuple[str, float]] = []
        for index, bound in enumerate((*histogram.bounds, None)):
            count += values[histogram.first + index]
            buckets.append(("+Inf" if bound is None else repr(bound / unit), count))
        family.add_metric(labels, buckets, values[histogram.sum] / unit)
    return family


@contextmanager
def serve_metrics(
    settings: Settings, counters: SharedCounters, workers: Mapping[int, int], restarts: Sequence[int] = ()
) -> Iterator[int | None]:
    """Serve metrics and probes over HTTP, in threads, until the end of the block.

    Args:
        settings: Say where, and whether at all.
        counters: The counters of all workers.
        workers: The process of each running worker, by its number. May change.
        restarts: How often each worker has been replaced. May change.

    Yields:
        The port, or None where nothing is served.

    Raises:
        StartError: The requested port is taken, or the address is not this machine's.
    """
    if settings.metrics_port == "off":
        yield None
        return
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Metrics(counters, workers, restarts))
    host, port = settings.metrics_host, settings.metrics_port
    number = DEFAULT_PORT if port == "auto" else port
    try:
        server = HttpServer(host, number, _with_probes(make_wsgi_app(registry), counters))
    except (OSError, ValueError) as error:
        if port != "auto":
            raise StartError(f"cannot serve metrics on {host} port {number}: {explain(error)}") from error
        LOGGER.warning("no metrics on %s port %d: %s; see --metrics-port", host, number, explain(error))
        yield None
        return
    thread = Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    LOGGER.info("metrics on http://%s/metrics", format_address(host, server.server_port))
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _with_probes(metrics: "WSGIApplication", counters: SharedCounters) -> "WSGIApplication":
    """Answer `/healthz` and `/readyz`, and leave every other path to `metrics`."""

    def answer(environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        path = environ.get("PATH_INFO")
        if path not in {"/healthz", "/readyz"}:
            return metrics(environ, start)
        fine = path == "/healthz" or counters.total("", 0)[layout.SERVING] > 0
        start("200 OK" if fine else "503 Service Unavailable", [("Content-Type", "text/plain")])
        return [b"ok\n" if fine else b"not ready: loading, draining, or without a model\n"]

    return answer
