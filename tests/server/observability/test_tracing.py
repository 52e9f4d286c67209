"""OpenTelemetry traces: one span for each inference, its stages inside."""

import builtins
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import polyhead_server.observability.tracing
from polyhead_server import Settings
from polyhead_server.errors import StartError
from polyhead_server.observability.tracing import open_tracer

X = np.ones((2, 3, 16), np.float32)
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Keeps the spans that a server would send."""
    one = InMemorySpanExporter()
    monkeypatch.setattr(polyhead_server.observability.tracing, "_exporter", lambda _endpoint: one)
    return one


def spans(server: Any, exporter: InMemorySpanExporter) -> list[Any]:
    """Every span, after the server has sent them all."""
    server.drain(10)
    return list(exporter.get_finished_spans())


def test_a_span_has_its_stages_inside_and_its_callers_above(
    serve: Any, exporter: InMemorySpanExporter
) -> None:
    server = serve(trace_endpoint="http://collector:4317")
    sampled = (("traceparent", f"00-{TRACE}-{PARENT}-01"), ("x-request-id", "r1"))
    server.call("ModelInfer", server.request("tiny-tokens", {"text": ["the cat", "a dog"]}), metadata=sampled)

    *stages, request = spans(server, exporter)

    assert [span.name for span in stages] == ["parse", "tokenise", "queue", "compute", "serialise"]
    assert request.name == "ModelInfer"
    assert f"{request.context.trace_id:032x}" == TRACE
    assert f"{request.parent.span_id:016x}" == PARENT
    assert request.attributes["polyhead.model"] == "tiny-tokens"
    assert request.attributes["polyhead.batch"] == 2
    assert request.attributes["polyhead.request_id"] == "r1"
    assert request.attributes["rpc.grpc.status_code"] == 0
    assert request.resource.attributes["service.name"] == "polyhead"
    for span in stages:
        assert span.parent.span_id == request.context.span_id
        assert span.start_time <= span.end_time
        assert span.start_time >= request.start_time
    begun = [span.start_time for span in stages]
    assert begun == sorted(begun)


def test_what_failed_says_how(serve: Any, exporter: InMemorySpanExporter) -> None:
    server = serve(trace_endpoint="http://collector:4317")
    with pytest.raises(grpc.RpcError):
        server.infer("tiny", {"y": X})

    (request,) = spans(server, exporter)

    assert request.parent is None
    assert request.attributes["rpc.grpc.status_code"] == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert not request.status.is_ok


def test_every_request_of_a_stream_has_a_span(serve: Any, exporter: InMemorySpanExporter) -> None:
    server = serve(trace_endpoint="http://collector:4317")
    stream = server.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
    payload = server.request("tiny", {"x": X}).SerializeToString()

    assert len(list(stream(iter([payload, payload]), timeout=30))) == 2

    assert [span.name for span in spans(server, exporter)].count("ModelInfer") == 2


def test_a_caller_that_does_not_trace_decides(serve: Any, exporter: InMemorySpanExporter) -> None:
    server = serve(trace_endpoint="http://collector:4317")
    metadata = (("traceparent", f"00-{TRACE}-{PARENT}-00"),)
    server.call("ModelInfer", server.request("tiny", {"x": X}), metadata=metadata)

    assert spans(server, exporter) == []


def test_the_ratio_counts_where_the_caller_has_not_decided(
    serve: Any, exporter: InMemorySpanExporter
) -> None:
    server = serve(trace_endpoint="http://collector:4317", trace_ratio=0)
    server.infer("tiny", {"x": X})

    assert spans(server, exporter) == []


def test_without_an_endpoint_there_is_no_tracer() -> None:
    assert open_tracer(Settings(models=Path("models"))) is None


def test_a_missing_extra_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)

    with pytest.raises(StartError, match=r"pip install 'polyhead\[trace\]'"):
        open_tracer(Settings(models=Path("models"), trace_endpoint="http://127.0.0.1:4317"))
