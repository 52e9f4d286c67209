"""OpenTelemetry traces: a span for each inference, with its stages inside.

Spans are written when a request has ended, from times that were taken anyway.
"""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from grpc import StatusCode

from polyhead_server.errors import StartError
from polyhead_server.observability.request_log import Record
from polyhead_server.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter


class OpenTelemetry:
    """Sends traces to a collector, in a thread of its own.

    Args:
        exporter: What sends them.
        ratio: The share of requests that get a trace, where the caller has not decided.
    """

    def __init__(self, exporter: "SpanExporter", ratio: float) -> None:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource.create({"service.name": "polyhead", "service.version": version("polyhead")})
        sampler = ParentBased(TraceIdRatioBased(ratio))
        self._provider = TracerProvider(resource=resource, sampler=sampler, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("polyhead", version("polyhead"))
        self._extract = TraceContextTextMapPropagator().extract
        self._within = trace.set_span_in_context
        self._server = trace.SpanKind.SERVER
        self._failed = trace.Status(trace.StatusCode.ERROR)

    def write(self, record: Record, metadata: Any) -> None:
        """Writes the spans of a request, below the one that the caller's `traceparent` names."""
        carrier = {key: value for key, value in metadata or () if isinstance(value, str)}
        span = self._tracer.start_span(
            "ModelInfer",
            context=self._extract(carrier),
            kind=self._server,
            start_time=record.started_ns,
            attributes={
                "rpc.system": "grpc",
                "rpc.grpc.status_code": StatusCode[record.code].value[0],
                "polyhead.model": record.model,
                "polyhead.version": record.version,
                "polyhead.batch": record.batch,
                "polyhead.request_id": record.request_id,
            },
        )
        if record.code != "OK":
            span.set_status(self._failed)
        if span.is_recording():
            within = self._within(span)
            for name, (after_ns, took_ns) in record.stages.items():
                begin_ns = record.started_ns + after_ns
                self._tracer.start_span(name, context=within, start_time=begin_ns).end(begin_ns + took_ns)
        span.end(record.ended_ns)

    def close(self) -> None:
        """Sends what has not been sent."""
        self._provider.shutdown()


def open_tracer(settings: Settings) -> OpenTelemetry | None:
    """The tracer that the settings ask for; None where they name no endpoint.

    Raises:
        StartError: The extra is not installed.
    """
    if settings.trace_endpoint is None:
        return None
    try:
        return OpenTelemetry(_exporter(settings.trace_endpoint), settings.trace_ratio)
    except ModuleNotFoundError as error:
        raise StartError("--trace-endpoint needs the trace extra: pip install 'polyhead[trace]'") from error


def _exporter(endpoint: str) -> "SpanExporter":
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    # `https://` is TLS, `http://` and a bare host:port are not.
    return OTLPSpanExporter(endpoint=endpoint, insecure=not endpoint.startswith("https://"))
