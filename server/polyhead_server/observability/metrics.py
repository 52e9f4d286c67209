"""The metrics of the server: each is declared here once, and counted where it happens.

A process serves one runtime; several, as in a host that embeds them, count apart, and are shown together.
With several workers, each keeps its values in files that all of them read (prometheus_client's multiprocess
mode, in the folder that `PROMETHEUS_MULTIPROC_DIR` names). What a worker has counted is continued by its
replacement; its gauges vanish.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import Metric, Sample, UnknownMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

_MODEL = ("model", "version")
_SECONDS = (
    *(50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
_TIMED = {
    "request": "Time of an answered request.",
    "parse": "Time to read and check an answered request.",
    "tokenise": "Time to tokenise an answered request.",
    "queue": "Time of an answered request in the queue.",
    "compute": "Time of the run of an answered request.",
    "serialise": "Time to write the reply to a request.",
}

_POWERS = tuple(2**power for power in range(11))

M = TypeVar("M", Counter, Gauge, Histogram)

_of_process = CollectorRegistry()
_gauge = partial(Gauge, multiprocess_mode="livesum", registry=_of_process)
_WORKERS = _gauge("polyhead_workers", "Running workers.")
_PROCESS = _gauge("polyhead_worker_process", "A worker's process.", ("worker",))
_BUILD = _gauge("polyhead_build_info", "1; names the version.", ("version",), multiprocess_mode="livemax")
_RESTARTS = Counter("polyhead_worker_restarts", "Workers that were replaced.", registry=_of_process)

_HIDDEN = {"polyhead_runs", "polyhead_run_seconds", "polyhead_worker_process"}
"""Not in `/metrics`: they would have a sample for each size of a batch, or help nobody."""


class Metrics:
    """The metrics of a runtime, most of them of each version of a model."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        of_models = self._of_models = list[Counter | Gauge | Histogram]()

        def of_model(kind: type[M], name: str, text: str, *labels: str, **options: Any) -> M:
            metric = kind(name, text, (*_MODEL, *labels), registry=registry, **options)
            of_models.append(metric)
            return metric

        count = partial(of_model, Counter)
        time = partial(of_model, Histogram, buckets=_SECONDS)
        size = partial(of_model, Histogram, buckets=_POWERS)
        state = partial(of_model, Gauge, multiprocess_mode="livesum")
        fact = partial(of_model, Gauge, multiprocess_mode="livemax")
        date = partial(of_model, Gauge, multiprocess_mode="max")
        server = partial(Gauge, multiprocess_mode="livesum", registry=registry)

        # Requests. Model and version are empty where a request ended before they were known.
        self.requests = count("polyhead_requests", "Inferences, by protocol and status.", "protocol", "code")
        self.drops = count("polyhead_drops", "Work that was rejected or dropped, by the reason.", "reason")
        self.failed_seconds = count("polyhead_failed_seconds", "Time of requests that were not answered.")
        self.sequences = count("polyhead_sequences", "Sequences in answered requests.")

        # Answered requests.
        self.times = {f"{what}_ns": time(f"polyhead_{what}_seconds", text) for what, text in _TIMED.items()}
        """By the names of the reply's timings."""

        # Runs of the engine.
        self.batch_sequences = size("polyhead_batch_sequences", "Sequences in each run of the engine.")
        self.tokens = count("polyhead_tokens", "Tokens computed, without padding.")
        self.padded_tokens = count("polyhead_padded_tokens", "Tokens that layers computed, with padding.")
        self.last_run = date("polyhead_last_run_timestamp_seconds", "When a run ended last.")
        self.runs = count("polyhead_runs", "Runs, by their size.", "sequences")
        self.run_seconds = count("polyhead_run_seconds", "Time of runs.", "sequences", "stage")

        # State.
        self.model_ready = state("polyhead_model_ready", "Workers in which the model is ready.")
        self.model_info = fact("polyhead_model_info", "1; names what runs the model.", "provider")
        self.queued_tokens = state("polyhead_queued_tokens", "Tokens to compute in the queue.")
        self.queued_requests = state("polyhead_queued_requests", "Requests in the queue.")
        self.in_flight = server("polyhead_requests_in_flight", "Accepted requests that are not answered yet.")
        self.held_bytes = server("polyhead_held_bytes", "Bytes of received requests and unsent outputs.")
        self.ready_workers = server("polyhead_ready_workers", "Workers that are ready for requests.")
        _shown.add(self)

    def collect(self) -> Iterable[Metric]:
        """Collect what this process has counted."""
        return self._registry.collect()

    def totals(self) -> "Mapping[tuple[str, str], Totals]":
        """Add up what all workers have counted, by model and version. May read files: call it in a thread."""
        return _by_version(_of_workers(self.collect()))

    def forget(self, name: str, number: int) -> None:
        """Remove a version that is not served any more. Workers keep what it counted, and gauges at 0."""
        if _folder() is not None:
            for gauge in (self.model_ready, self.queued_tokens, self.queued_requests):
                gauge.labels(name, number).set(0)
            for sample in next(iter(self.model_info.collect())).samples:
                if (sample.labels["model"], sample.labels["version"]) == (name, str(number)):
                    self.model_info.labels(**sample.labels).set(0)
            return
        for metric in self._of_models:
            metric.remove_by_labels({"model": name, "version": str(number)})

    def close(self) -> None:
        """Do not show them any more: their runtime has ended."""
        _shown.discard(self)


_shown: "WeakSet[Metrics]" = WeakSet()


class Totals:
    """What all workers have counted for one version of a model, by the names of `/metrics`."""

    def __init__(self) -> None:
        self.samples: dict[str, list[Sample]] = defaultdict(list)

    def __call__(self, name: str, **labels: str) -> float:
        """Return the sum of the samples that have these labels; 0 if there are none."""
        found = self.samples.get(name, ())
        return sum(sample.value for sample in found if labels.items() <= sample.labels.items())

    @property
    def failures(self) -> float:
        """The number of requests that were not answered."""
        return self("polyhead_requests_total") - self("polyhead_requests_total", code="OK")

    @property
    def input_seconds(self) -> float:
        """The time to make arrays of answered requests."""
        return self("polyhead_parse_seconds_sum") + self("polyhead_tokenise_seconds_sum")


_TRITON: Mapping[str, Callable[[Totals], float]] = {
    "nv_inference_request_success": lambda of: of("polyhead_requests_total", code="OK"),
    "nv_inference_request_failure": lambda of: of.failures,
    "nv_inference_count": lambda of: of("polyhead_sequences_total"),
    "nv_inference_exec_count": lambda of: of("polyhead_batch_sequences_count"),
    "nv_inference_request_duration_us": lambda of: 1e6 * of("polyhead_request_seconds_sum"),
    "nv_inference_queue_duration_us": lambda of: 1e6 * of("polyhead_queue_seconds_sum"),
    "nv_inference_compute_input_duration_us": lambda of: 1e6 * of.input_seconds,
    "nv_inference_compute_infer_duration_us": lambda of: 1e6 * of("polyhead_compute_seconds_sum"),
    "nv_inference_compute_output_duration_us": lambda of: 1e6 * of("polyhead_serialise_seconds_sum"),
    "nv_inference_pending_request_count": lambda of: of("polyhead_queued_requests"),
}
"""Triton's metrics of a model, of which each is one of ours."""


def start(worker: int = 0, restarts: int = 0) -> None:
    """Note that this process is a worker that serves, and how often it has been replaced."""
    disable_created_metrics()
    _WORKERS.set(1)
    _PROCESS.labels(worker).set(os.getpid())
    _BUILD.labels(version("polyhead")).set(1)
    counted = _value_of("polyhead_worker_restarts_total", _RESTARTS.collect())
    _RESTARTS.inc(max(0, restarts - counted))


def any_ready() -> bool:
    """Return whether any worker of this server is ready. Takes microseconds where this one is."""
    name = "polyhead_ready_workers"
    if any(_value_of(name, one.ready_workers.collect()) for one in list(_shown)):
        return True
    files = Path(folder).glob("gauge_livesum_*.db") if (folder := _folder()) else ()
    return _value_of(name, MultiProcessCollector.merge(files)) > 0


def exposition(accept: str = "") -> tuple[bytes, str]:
    """Return the metrics of all workers, and their media type. It may take a while: call it in a thread.

    Args:
        accept: The media types that the caller accepts.
    """
    try:
        encoder, media_type = choose_encoder(accept)
    except TypeError:  # the version that is asked for is none
        encoder, media_type = choose_encoder("")
    return encoder(_Exposed()), media_type


class _Exposed(Collector):
    """What `/metrics` shows."""

    def collect(self) -> Iterator[Metric]:
        """Collect our metrics, Triton's and those of processes."""
        families = [family for one in list(_shown) for family in one.collect()]
        families = list(_of_workers([*_of_process.collect(), *families]))
        yield from (family for family in families if family.name not in _HIDDEN)
        counted = _by_version(families)
        for name, value_of in _TRITON.items():
            triton = UnknownMetricFamily(name, "Triton's name for one of polyhead's.", labels=_MODEL)
            for model, of in counted.items():
                if all(model):
                    triton.add_metric(model, value_of(of))
            yield triton
        yield from _processes(counted["", ""].samples["polyhead_worker_process"])


def _processes(workers: Iterable[Sample]) -> Iterable[Metric]:
    """Collect prometheus_client's `process_*` metrics of each worker."""
    families: dict[str, Metric] = {}
    for worker in workers:
        for one in ProcessCollector(pid=partial(int, worker.value), registry=None).collect():
            family = families.setdefault(one.name, Metric(one.name, one.documentation, one.type))
            for sample in one.samples:
                family.add_sample(sample.name, sample.labels | worker.labels, sample.value)
    return families.values()


def _by_version(families: Iterable[Metric]) -> Mapping[tuple[str, str], Totals]:
    """Group samples by model and version."""
    found: dict[tuple[str, str], Totals] = defaultdict(Totals)
    for family in families:
        for sample in family.samples:
            key = sample.labels.get("model", ""), sample.labels.get("version", "")
            found[key].samples[sample.name].append(sample)
    return found


def _value_of(name: str, families: Iterable[Metric]) -> float:
    """Return the sum of the samples of one name."""
    return sum(sample.value for family in families for sample in family.samples if sample.name == name)


def _folder() -> str | None:
    return os.environ.get("PROMETHEUS_MULTIPROC_DIR")


def _of_workers(own: Iterable[Metric]) -> Iterable[Metric]:
    """Read what all workers have counted; where this process is not one of several, that is its own."""
    folder = _folder()
    return own if folder is None else MultiProcessCollector(None, folder).collect()
