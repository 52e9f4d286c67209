"""OpenTelemetry traces: one span for each inference, its stages inside."""

import builtins
from typing import Any

import grpc
import numpy as np
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import polyhead_server.grpc.server
import polyhead_server.observability.tracing
from polyhead_server.errors import StartError
from polyhead_server.observability.tracing import open_tracer

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
X = np.ones((2, 3, 16), np.float32)
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Keeps the spans that a server would send to an endpoint, which the environment names."""
    one = InMemorySpanExporter()
    monkeypatch.setattr("opentelemetry.exporter.otlp.proto.grpc.trace_exporter.OTLPSpanExporter", lambda: one)
    monkeypatch.setattr(polyhead_server.grpc.server, "_LAST_TRACES_SECONDS", 240.0)
    monkeypatch.setenv(ENDPOINT, "http://collector:4317")
    return one


def spans(server: Any, exporter: InMemorySpanExporter) -> list[Any]:
    """Every span, after the server has sent them all."""
    server.drain(10)
    return list(exporter.get_finished_spans())


def test_a_span_has_its_stages_inside_and_its_callers_above(
    serve: Any, exporter: InMemorySpanExporter
) -> None:
    server = serve()
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
    server = serve()
    with pytest.raises(grpc.RpcError):
        server.infer("tiny", {"y": X})

    (request,) = spans(server, exporter)

    assert request.parent is None
    assert request.attributes["rpc.grpc.status_code"] == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert not request.status.is_ok


def test_every_request_of_a_stream_has_a_span(serve: Any, exporter: InMemorySpanExporter) -> None:
    server = serve()
    request = server.request("tiny", {"x": X})

    assert len(list(server.stream(iter([request, request])))) == 2

    assert [span.name for span in spans(server, exporter)].count("ModelInfer") == 2


@pytest.mark.parametrize("caller", [(("traceparent", f"00-{TRACE}-{PARENT}-00"),), ()])
def test_the_caller_decides_and_the_sampler_where_that_has_not(
    serve: Any, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch, caller: Any
) -> None:
    if not caller:
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    server = serve()
    server.call("ModelInfer", server.request("tiny", {"x": X}), metadata=caller)

    assert spans(server, exporter) == []


def test_the_environment_names_the_service(
    serve: Any, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "encoders")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "zone=a")
    server = serve()
    server.infer("tiny", {"x": X})

    attributes = spans(server, exporter)[-1].resource.attributes

    assert (attributes["service.name"], attributes["zone"]) == ("encoders", "a")


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {ENDPOINT: ""},
        {ENDPOINT: "http://collector:4317", "OTEL_SDK_DISABLED": "true"},
        {ENDPOINT: "http://collector:4317", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_there_is_no_tracer_unless_it_is_asked_for(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert open_tracer() is None


@pytest.mark.parametrize("name", [ENDPOINT, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"])
def test_an_endpoint_is_all_that_it_needs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:1")

    tracer = open_tracer()

    assert tracer is not None
    tracer.close()


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was warned of, where there is an endpoint."""
    lines: list[str] = []
    monkeypatch.setattr(
        "polyhead_server.observability.tracing.LOGGER.warning",
        lambda text, *arguments: lines.append(text % arguments),
    )
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:1")
    return lines


def test_a_missing_extra_is_warned_of(monkeypatch: pytest.MonkeyPatch, warnings: list[str]) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)

    assert open_tracer() is None
    assert warnings == [f"no traces: {ENDPOINT} needs the trace extra: pip install 'polyhead[trace]'"]


def test_another_protocol_is_warned_of(monkeypatch: pytest.MonkeyPatch, warnings: list[str]) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")

    assert open_tracer() is None
    assert warnings == ["no traces: OTEL_EXPORTER_OTLP_PROTOCOL must be grpc, was http/protobuf"]


def test_variables_that_the_library_rejects_are_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")

    with pytest.raises(StartError, match=r"cannot send traces as the OTEL_\* variables say: .*soon"):
        open_tracer()
