"""Prometheus metrics: what the counters say, in Prometheus' words, over HTTP.

The counters are read when somebody asks, so that metrics cost the requests nothing on top of counting.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
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

from polyhead_server.address import explain
from polyhead_server.errors import StartError
from polyhead_server.observability import counter_layout as at
from polyhead_server.observability.counter_layout import SERVING
from polyhead_server.observability.http_server import HttpServer
from polyhead_server.observability.logs import LOGGER
from polyhead_server.observability.shared_counters import SharedCounters

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


DEFAULT_PORT = 8002

_MODEL = ("model", "version")
_NOBODY = ("", 0)

_TIMES = {
    "polyhead_request_seconds": (at.REQUEST, "Answered requests, from their bytes to their reply's."),
    "polyhead_parse_seconds": (at.PARSE, "Reading and checking an answered request."),
    "polyhead_tokenise_seconds": (at.TOKENISE, "Tokenising an answered request's text."),
    "polyhead_queue_seconds": (at.QUEUE, "Waiting of an answered request for its turn."),
    "polyhead_compute_seconds": (at.COMPUTE, "The run that an answered request was part of."),
    "polyhead_serialise_seconds": (at.SERIALISE, "Writing an answered request's reply."),
}
_COUNTERS = {
    "polyhead_sequences": (at.SEQUENCES, "Sequences of answered requests."),
    "polyhead_tokens": (at.TOKENS, "Tokens that were computed, without padding."),
    "polyhead_padded_tokens": (at.PADDED_TOKENS, "Tokens that were computed, padding included."),
}
_GAUGES = {
    "polyhead_model_ready": (at.READY, "Workers in which the model is ready."),
    "polyhead_queued_tokens": (at.QUEUED_TOKENS, "Tokens that wait for their turn, padding included."),
}


class Counted(Collector):
    """The metrics that all workers' counters add up to.

    Args:
        counters: The counters.
    """

    def __init__(self, counters: SharedCounters) -> None:
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        """Called by the library when somebody asks."""
        totals = self._counters.totals()
        models = {
            (name, str(number)): values
            for (name, number), values in totals.items()
            if (name, number) != _NOBODY
        }
        nobody = totals.get(_NOBODY, [0] * at.SLOTS)
        yield from _requests({("", ""): nobody} | models)
        for name, (histogram, text) in _TIMES.items():
            yield _histogram(name, text, histogram, models, 1e9)
        batch = "Sequences of each run of the engine."
        yield _histogram("polyhead_batch_sequences", batch, at.BATCH, models, 1)
        for name, (slot, text) in _COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=_MODEL)
            for labels, values in models.items():
                counter.add_metric(labels, values[slot])
            yield counter
        for name, (slot, text) in _GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=_MODEL)
            for labels, values in models.items():
                gauge.add_metric(labels, values[slot])
            yield gauge
        in_flight = "Requests that have been accepted and have no answer yet."
        yield GaugeMetricFamily("polyhead_requests_in_flight", in_flight, value=nobody[at.IN_FLIGHT])
        held = "Bytes of requests that have come, and of outputs that have not been taken."
        yield GaugeMetricFamily("polyhead_held_bytes", held, value=nobody[at.HELD_BYTES])
        yield _info(models)


def _requests(models: Mapping[tuple[str, str], Sequence[int]]) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "polyhead_requests", "Inference requests by how they ended.", labels=(*_MODEL, "code")
    )
    drops = CounterMetricFamily(
        "polyhead_drops", "Work that was refused or given up, by the reason.", labels=(*_MODEL, "reason")
    )
    for family, slots, always in ((requests, at.CODE, "OK"), (drops, at.DROP, None)):
        for labels, values in models.items():
            for label, slot in slots.items():
                if values[slot] or (label == always and labels[0]):
                    family.add_metric((*labels, label), values[slot])
        yield family


def _histogram(
    name: str,
    text: str,
    histogram: at.Histogram,
    models: Mapping[tuple[str, str], Sequence[int]],
    unit: float,
) -> Metric:
    family = HistogramMetricFamily(name, text, labels=_MODEL)
    for labels, values in models.items():
        count = 0
        buckets: list[tuple[str, float]] = []
        for index, bound in enumerate((*histogram.bounds, None)):
            count += values[histogram.first + index]
            buckets.append(("+Inf" if bound is None else repr(bound / unit), count))
        family.add_metric(labels, buckets, values[histogram.sum] / unit)
    return family


def _info(models: Mapping[tuple[str, str], Sequence[int]]) -> Metric:
    info = GaugeMetricFamily(
        "polyhead_model_info", "1; says where onnxruntime runs the model.", labels=(*_MODEL, "provider")
    )
    for labels, values in models.items():
        if provider := at.decode_provider(values):
            info.add_metric((*labels, provider), 1)
    return info


class Processes(Collector):
    """The usual `process_*` metrics of each worker.

    Args:
        workers: The process of each worker that runs, by its number.
    """

    def __init__(self, workers: Mapping[int, int]) -> None:
        self._workers = workers

    def collect(self) -> Iterator[Metric]:
        """Called by the library when somebody asks."""
        families: dict[str, Metric] = {}
        for worker, process in sorted(self._workers.items()):
            for one in ProcessCollector(pid=partial(str, process), registry=None).collect():
                family = families.setdefault(one.name, Metric(one.name, one.documentation, one.type))
                for sample in one.samples:
                    labels = {**sample.labels, "worker": str(worker)}
                    family.add_sample(sample.name, labels, sample.value)
        yield from families.values()


class Build(Collector):
    """Which polyhead this is, and how many workers it has.

    Args:
        workers: The process of each worker that runs, by its number.
        restarts: How often each worker has been replaced.
    """

    def __init__(self, workers: Mapping[int, int], restarts: Sequence[int] = ()) -> None:
        self._workers = workers
        self._restarts = restarts

    def collect(self) -> Iterator[Metric]:
        """Called by the library when somebody asks."""
        build = GaugeMetricFamily(
            "polyhead_build_info", "1; says which version this is.", labels=("version",)
        )
        build.add_metric((version("polyhead"),), 1)
        yield build
        yield GaugeMetricFamily("polyhead_workers", "Workers that run.", value=len(self._workers))
        restarts = "Workers that ended and were replaced."
        yield CounterMetricFamily("polyhead_worker_restarts", restarts, value=sum(self._restarts))


def collectors(
    counters: SharedCounters, workers: Mapping[int, int], restarts: Sequence[int] = ()
) -> list[Collector]:
    """All metrics of a server.

    Args:
        counters: The counters.
        workers: The process of each worker that runs, by its number.
        restarts: How often each worker has been replaced.
    """
    return [Counted(counters), Processes(workers), Build(workers, restarts)]


class Exporter:
    """Serves metrics over HTTP, in threads of its own.

    Args:
        collectors: What it tells.
        host: Address to listen on.
        port: None is `DEFAULT_PORT`, and no metrics where that is taken; 0 takes a free one.
        counters: Where the workers say whether they are ready, for probes.

    Raises:
        StartError: The port was asked for and is taken, or the address is not this machine's.
    """

    def __init__(
        self,
        collectors: Iterable[Collector],
        *,
        host: str,
        port: int | None,
        counters: SharedCounters | None = None,
    ) -> None:
        registry = CollectorRegistry(auto_describe=False)
        for collector in collectors:
            registry.register(collector)
        application = make_wsgi_app(registry)
        if counters is not None:
            application = with_probes(application, counters)
        self.port: int | None = None
        self._server: HttpServer | None = None
        try:
            self._server = HttpServer(host, DEFAULT_PORT if port is None else port, application)
        except (OSError, ValueError) as error:
            why = explain(error)
            where = f"{host} port {DEFAULT_PORT if port is None else port}"
            if port is not None:
                raise StartError(f"cannot serve metrics on {where}: {why}") from error
            LOGGER.warning("no metrics: %s is not to be had (%s); see --metrics-port", where, why)
        else:
            self._thread = Thread(target=self._server.serve_forever, name="metrics", daemon=True)
            self._thread.start()
            self.port = self._server.server_port
            LOGGER.info("metrics on http://%s:%d/metrics", f"[{host}]" if ":" in host else host, self.port)

    def close(self) -> None:
        """Stops serving."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()


def with_probes(others: "WSGIApplication", counters: SharedCounters) -> "WSGIApplication":
    """Answers `/healthz` and `/readyz`.

    Args:
        others: Answers everything else.
        counters: Where the workers say how they stand.
    """

    def answer(environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        path = environ.get("PATH_INFO")
        if path not in {"/healthz", "/readyz"}:
            return others(environ, start)
        fine = path == "/healthz" or counters.total("", 0)[SERVING] > 0
        start("200 OK" if fine else "503 Service Unavailable", [("Content-Type", "text/plain")])
        return [b"ok\n" if fine else b"not ready: loading, draining, or without a model\n"]

    return answer
