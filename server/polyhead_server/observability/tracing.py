"""OpenTelemetry traces: a span for each inference, with its stages inside.

The OpenTelemetry SDK reads the standard `OTEL_*` variables: endpoint, sampler, names. Spans are written when
a request has ended, from times that were taken anyway.
"""

import os
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from grpc import StatusCode

from polyhead_server.errors import StartError
from polyhead_server.observability.access_log import RequestRecord
from polyhead_server.observability.logs import LOGGER

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


class Tracer:
    """Send traces to a collector, in a thread.

    Args:
        exporter: Sends them.
    """

    def __init__(self, exporter: "SpanExporter") -> None:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        names = {"service.name": "polyhead", "service.version": version("polyhead")}
        resource = Resource.create(names | dict(OTELResourceDetector().detect().attributes))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("polyhead", version("polyhead"))
        self._extract = TraceContextTextMapPropagator().extract
        self._trace = trace

    def write(self, record: RequestRecord, metadata: Any) -> None:
        """Write the spans of a request, below the span that the caller's `traceparent` names."""
        carrier = {key: value for key, value in metadata or () if isinstance(value, str)}
        span = self._tracer.start_span(
            "ModelInfer",
            context=self._extract(carrier),
            kind=self._trace.SpanKind.SERVER,
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
            span.set_status(self._trace.StatusCode.ERROR)
        if span.is_recording():
            within = self._trace.set_span_in_context(span)
            for name, (after_ns, took_ns) in record.stages.items():
                begin_ns = record.started_ns + after_ns
                self._tracer.start_span(name, context=within, start_time=begin_ns).end(begin_ns + took_ns)
        span.end(record.ended_ns)

    def close(self) -> None:
        """Send the remaining spans."""
        self._provider.shutdown()


def open_tracer() -> Tracer | None:
    """Return the tracer that the `OTEL_*` variables configure, or None.

    Where an endpoint is set and traces cannot be sent to it, log a warning: such variables are often set for
    all programs of a machine.

    Raises:
        StartError: The SDK rejects the variables.
    """
    endpoint = next((name for name in _ENDPOINTS if os.environ.get(name)), None)
    exporters = (os.environ.get("OTEL_TRACES_EXPORTER") or "otlp").split(",")
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if endpoint is None or disabled or "otlp" not in exporters:
        return None
    protocol = next((name for name in _PROTOCOLS if os.environ.get(name, "grpc") not in {"", "grpc"}), None)
    if protocol is not None:
        LOGGER.warning("no traces: %s must be grpc, was %s", protocol, os.environ[protocol])
        return None
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        return Tracer(OTLPSpanExporter())
    except ModuleNotFoundError:
        LOGGER.warning("no traces: %s needs the trace extra: pip install 'polyhead[trace]'", endpoint)
        return None
    except Exception as error:
        raise StartError(f"cannot send traces as the OTEL_* variables say: {error}") from error
