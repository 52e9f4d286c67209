"""What Prometheus sees, and what probes are answered."""

import re
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import grpc
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.server.conftest import Gate, Running, fails
from tests.servers import serving_metrics
from tests.waiting import until

from polyhead_proto import messages as pb
from polyhead_server import Settings
from polyhead_server.errors import StartError
from polyhead_server.observability import metrics

Ask = Callable[[str], int]

LARGE = Running.request("tiny", {"x": np.ones((1, 300, 16), np.float32)})
OPERATIONS = Path(__file__).parents[3] / "docs" / "operations.md"


def settings(port: int | Literal["auto"] = 0, host: str = "127.0.0.1") -> Settings:
    """Settings that serve metrics here."""
    return Settings(models=Path("models"), http_host=host, http_port=port)


class Metrics:
    """What `/metrics` says, by sample; of counters, and of gauges that add up, since `before`."""

    def __init__(self, before: "Metrics | None" = None) -> None:
        metrics.start(restarts=2)
        with (
            serving_metrics(settings()) as port,
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as reply,
        ):
            text = reply.read().decode()
        self._before: dict[Any, float] = {} if before is None else before.samples
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples: dict[Any, float] = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def __call__(self, name: str, model: str | None = "tiny", **labels: str) -> float:
        whose = {} if model is None else {"model": model, "version": "1" if model else ""}
        key = (name, *sorted((whose | labels).items()))
        return self.samples[key] - self._before.get(key, 0)


def test_requests_runs_and_failures_show(serve: Any) -> None:
    server = serve()
    before = Metrics()
    for batch in (1, 3, 3):
        server.infer("tiny", {"x": np.ones((batch, 2, 16), np.float32)})
    server.infer("tiny-tokens", {"text": ["the cat"]})
    for model, inputs, code in (
        ("tiny", {"y": np.ones((1, 2, 16), np.float32)}, grpc.StatusCode.INVALID_ARGUMENT),
        ("none", {}, grpc.StatusCode.NOT_FOUND),
    ):
        with fails(code):
            server.infer(model, inputs)
    statistics = server.call("ModelStatistics", pb.ModelStatisticsRequest(name="tiny")).model_stats[0]

    counted = Metrics(before)

    assert counted("polyhead_requests_total", protocol="grpc", code="OK") == 3
    assert counted("polyhead_requests_total", protocol="grpc", code="INVALID_ARGUMENT") == 1
    assert counted("polyhead_requests_total", "", protocol="grpc", code="NOT_FOUND") == 1
    assert counted("polyhead_failed_seconds_total") > 0
    assert counted("polyhead_sequences_total") == 7
    assert counted("polyhead_tokens_total") == counted("polyhead_padded_tokens_total") == 14
    assert counted("polyhead_batch_sequences_count") == 3
    assert counted("polyhead_batch_sequences_bucket", le="2.0") == 1
    assert counted("polyhead_batch_sequences_bucket", le="4.0") == 3
    for stage in ("request", "parse", "queue", "compute", "serialise"):
        assert counted(f"polyhead_{stage}_seconds_count") == 3
        assert counted(f"polyhead_{stage}_seconds_bucket", le="+Inf") == 3
    assert counted("polyhead_tokenise_seconds_count") == 0
    assert counted("polyhead_tokenise_seconds_count", "tiny-tokens") == 1
    now = Metrics()
    assert now("polyhead_compute_seconds_sum") == pytest.approx(
        statistics.inference_stats.compute_infer.ns / 1e9
    )
    assert now("polyhead_model_ready") == 1
    assert now("polyhead_model_info", provider="CPUExecutionProvider") == 1
    assert now("polyhead_workers", None) == 1
    assert now("polyhead_worker_restarts_total", None) == 2
    assert now("process_resident_memory_bytes", None, worker="0") > 2**20


def test_triton_has_names_for_the_same(serve: Any) -> None:
    server = serve()
    before = Metrics()
    for batch in (1, 3):
        server.infer("tiny-tokens", {"text": ["the cat"] * batch})
    with fails(grpc.StatusCode.INVALID_ARGUMENT):
        server.infer("tiny-tokens", {"y": np.ones((1, 2, 16), np.float32)})

    counted = Metrics(before)

    def triton(name: str) -> float:
        return counted(f"nv_inference_{name}", "tiny-tokens")

    assert (triton("request_success"), triton("request_failure")) == (2, 1)
    assert (triton("count"), triton("exec_count")) == (4, 2)
    assert triton("pending_request_count") == 0
    times = [triton(f"{time}_duration_us") for time in ("queue", "compute_infer", "compute_output")]
    assert all(time > 0 for time in times)
    parsed = counted("polyhead_parse_seconds_sum", "tiny-tokens")
    tokenised = counted("polyhead_tokenise_seconds_sum", "tiny-tokens")
    assert triton("compute_input_duration_us") == pytest.approx(1e6 * (parsed + tokenised))
    assert triton("request_duration_us") >= sum(times) + triton("compute_input_duration_us")
    named = [family for family in counted.families if family.startswith("nv_")]
    assert len(named) == 10
    assert {*named} == {*re.findall(r"`(nv_\w+)`", OPERATIONS.read_text())}
    for name in named:
        assert {frozenset(sample.labels) for sample in counted.families[name].samples} == {
            frozenset({"model", "version"})
        }


def test_what_waits_shows(serve: Any, gate: Gate) -> None:
    server = serve()
    with gate.closed():
        calls = [server.method("ModelInfer").future(LARGE)]
        gate.until_held()  # it waits in the queue no longer
        calls += [server.method("ModelInfer").future(LARGE) for _ in range(2)]
        until(lambda: Metrics()("polyhead_queued_requests") == 2)
        assert Metrics()("nv_inference_pending_request_count") == 2
        assert Metrics()("polyhead_queued_tokens") == 2 * 300
        until(lambda: Metrics()("polyhead_requests_in_flight", None) == 3)
        assert Metrics()("polyhead_held_bytes", None) > 3 * 300 * 16 * 4
    for call in calls:
        call.result(120)
    until(lambda: Metrics()("polyhead_requests_in_flight", None) == 0)


def test_the_documentation_describes_what_is_exported(serve: Any) -> None:
    server = serve()
    server.runtime.lifecycle.draining.set()
    with pytest.raises(grpc.RpcError):
        server.infer("tiny", {"x": np.ones((1, 2, 16), np.float32)})
    families = {
        f"{name}_total" if family.type == "counter" else name: family
        for name, family in Metrics().families.items()
    }

    table = re.findall(r"^\| `((?:polyhead|process)_\w+)` \| (\w+) \| (.*?) \|", OPERATIONS.read_text(), re.M)

    assert len(table) == 8
    for name, kind, labels in table:
        assert families[name].type == kind, name
        documented = set(re.findall(r"`(\w+)`", labels))
        shown = {label for sample in families[name].samples for label in sample.labels} - {"le"}
        assert shown == documented, name


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8"),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text; version=1.0.0"),
        ("application/openmetrics-text; version=none", "text/plain; version=0.0.4; charset=utf-8"),
    ],
)
def test_a_scraper_gets_the_format_that_it_accepts(accept: str, media_type: str) -> None:
    text, shown = metrics.exposition(accept)

    assert shown.startswith(media_type)
    assert text.endswith(b"# EOF\n") == ("openmetrics" in media_type)


# ---- Where they are served ---------------------------------------------------------------------


def serve_nothing(settings: Settings) -> int | None:
    """Serves the metrics of no worker for a moment; returns the port."""
    with serving_metrics(settings) as port:
        return port


def test_a_requested_port_must_be_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            StartError, match=rf"cannot serve metrics on 127\.0\.0\.1 port {port}: Address already"
        ):
            serve_nothing(settings(port))


def test_what_is_no_address_is_a_clear_error() -> None:
    with pytest.raises(StartError, match=r"cannot serve metrics on .* port 0: it must be the name of a host"):
        serve_nothing(settings(host="nonsense.."))


def test_the_usual_port_need_not_be_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr("polyhead_server.http.listener.DEFAULT_PORT", taken.getsockname()[1])

        assert serve_nothing(settings("auto")) is None


def test_metrics_can_be_turned_off() -> None:
    assert serve_nothing(replace(settings(), http_port="off")) is None


# ---- Probes ------------------------------------------------------------------------------------


@pytest.fixture
def ask(serve: Any) -> Iterator[tuple[Any, Ask]]:
    """A server with room for one connection, and the status of a path on its metrics port."""
    server = serve(grpc_option=["grpc.max_allowed_incoming_connections=1"])

    def status(path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=120) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            return error.code

    with serving_metrics(settings()) as port:
        yield server, status


def test_readiness_follows_the_server_and_liveness_stays(ask: tuple[Any, Ask]) -> None:
    server, status = ask
    assert [status(path) for path in ("/healthz", "/readyz", "/metrics")] == [200, 200, 200]

    server.drain(10)

    assert [status(path) for path in ("/healthz", "/readyz", "/metrics")] == [200, 503, 200]


def test_probes_are_answered_when_grpc_takes_no_more_connections(ask: tuple[Any, Ask]) -> None:
    server, status = ask
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port))):
        assert [status(path) for path in ("/healthz", "/readyz")] == [200, 200]
