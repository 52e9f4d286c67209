"""Prometheus metrics.

The counters are read when metrics are scraped: requests pay for nothing but counting.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import version

from prometheus_client import ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from polyhead_server.observability import counter_slots as slots
from polyhead_server.observability.shared_counters import NO_MODEL, SharedCounters

_MODEL = ("model", "version")

_HISTOGRAMS = {
    "polyhead_request_seconds": (
        slots.REQUEST,
        "Time of an answered request, from its bytes to its reply's.",
    ),
    "polyhead_parse_seconds": (slots.PARSE, "Time to read and check an answered request."),
    "polyhead_tokenise_seconds": (slots.TOKENISE, "Time to tokenise the text of an answered request."),
    "polyhead_queue_seconds": (slots.QUEUE, "Time of an answered request in the queue."),
    "polyhead_compute_seconds": (slots.COMPUTE, "Time of the run that an answered request was part of."),
    "polyhead_serialise_seconds": (slots.SERIALISE, "Time to write the reply to an answered request."),
}
_COUNTERS = {
    "polyhead_sequences": (slots.SEQUENCES, "Sequences in answered requests."),
    "polyhead_tokens": (slots.TOKENS, "Tokens computed, without padding."),
    "polyhead_padded_tokens": (slots.PADDED_TOKENS, "Tokens that layers computed, padding included."),
}
_GAUGES = {
    "polyhead_model_ready": (slots.READY, "Workers in which the model is ready."),
    "polyhead_queued_tokens": (slots.QUEUED_TOKENS, "Tokens to compute in the queue."),
}

_Models = Mapping[tuple[str, str], Sequence[int]]


class Metrics(Collector):
    """Collect the metrics of a server. Any of its processes can.

    Args:
        counters: The counters of all workers.
    """

    def __init__(self, counters: SharedCounters) -> None:
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        """Read the counters."""
        totals = dict(self._counters.totals())
        server = totals.pop(NO_MODEL, [0] * slots.SLOTS)
        models = {(name, str(number)): values for (name, number), values in totals.items()}
        yield from _by_label({("", ""): server} | models)
        for name, (histogram, text) in _HISTOGRAMS.items():
            yield _histogram(name, text, histogram, models, 1e9)
        batch = "Sequences in each run of the engine."
        yield _histogram("polyhead_batch_sequences", batch, slots.BATCH, models, 1)
        for kind, families in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
            for name, (slot, text) in families.items():
                family = kind(name, text, labels=_MODEL)
                for labels, values in models.items():
                    family.add_metric(labels, values[slot])
                yield family
        in_flight = "Accepted requests that are not answered yet."
        yield GaugeMetricFamily("polyhead_requests_in_flight", in_flight, value=server[slots.IN_FLIGHT])
        held = "Bytes of received requests and unsent outputs."
        yield GaugeMetricFamily("polyhead_held_bytes", held, value=server[slots.HELD_BYTES])
        info = GaugeMetricFamily(
            "polyhead_model_info", "1; names the provider that runs the model.", labels=(*_MODEL, "provider")
        )
        for labels, values in models.items():
            if provider := slots.decode_provider(values):
                info.add_metric((*labels, provider), 1)
        yield info
        pages = enumerate(self._counters.workers())
        processes = {worker: page[slots.PROCESS] for worker, page in pages if page[slots.PROCESS]}
        yield from _processes(processes)
        build = GaugeMetricFamily("polyhead_build_info", "1; names the version.", labels=("version",))
        build.add_metric((version("polyhead"),), 1)
        yield build
        yield GaugeMetricFamily("polyhead_workers", "Running workers.", value=len(processes))
        text = "Workers that ended and were replaced."
        yield CounterMetricFamily("polyhead_worker_restarts", text, value=server[slots.RESTARTS])


def _processes(processes: Mapping[int, int]) -> Iterable[Metric]:
    """Collect prometheus_client's `process_*` metrics of each worker."""
    families: dict[str, Metric] = {}
    for worker, process in processes.items():
        for one in ProcessCollector(pid=partial(str, process), registry=None).collect():
            family = families.setdefault(one.name, Metric(one.name, one.documentation, one.type))
            for sample in one.samples:
                labels = {**sample.labels, "worker": str(worker)}
                family.add_sample(sample.name, labels, sample.value)
    return families.values()


def _by_label(models: _Models) -> Iterator[Metric]:
    text = "Inference requests, by protocol and gRPC status."
    requests = CounterMetricFamily("polyhead_requests", text, labels=(*_MODEL, "protocol", "code"))
    for protocol, codes in slots.CODE.items():
        always = "OK" if protocol == slots.GRPC else None
        _add_counts(requests, models, codes, (protocol,), always)
    yield requests
    text = "Work that was rejected or dropped, by the reason."
    drops = CounterMetricFamily("polyhead_drops", text, labels=(*_MODEL, "reason"))
    _add_counts(drops, models, slots.DROP)
    yield drops


def _add_counts(
    family: CounterMetricFamily,
    models: _Models,
    slots: Mapping[str, int],
    labels: tuple[str, ...] = (),
    always: str | None = None,
) -> None:
    """Add what has been counted for each model, and for models the label that is always there."""
    for model, values in models.items():
        for label, slot in slots.items():
            if values[slot] or (label == always and model[0]):
                family.add_metric((*model, *labels, label), values[slot])


def _histogram(name: str, text: str, histogram: slots.Histogram, models: _Models, unit: float) -> Metric:
    family = HistogramMetricFamily(name, text, labels=_MODEL)
    for labels, values in models.items():
        count = 0
        buckets: list[tuple[str, float]] = []
        for index, bound in enumerate((*histogram.bounds, None)):
            count += values[histogram.first + index]
            buckets.append(("+Inf" if bound is None else repr(bound / unit), count))
        family.add_metric(labels, buckets, values[histogram.sum] / unit)
    return family
