"""Sends spans to an OpenTelemetry collector, by OTLP over HTTP. Imports OpenTelemetry's SDK only if environment variables name a collector.
The SDK has a queue of limited length, and a thread that sends the spans. If the collector does not answer, the SDK drops spans and logs a
line.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.telemetry.spans import Span, Trace
from sluice.cdc_engine.telemetry.traces import TraceSender
from sluice.extras import Extra, require

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
SEND_MILLISECONDS, FLUSH_SECONDS = 1000, 2.0

_lock = threading.Lock()
_senders: list[OtlpSender] = []  # Contains at most one sender.


def is_wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Returns whether OpenTelemetry's environment variables name a collector and do not disable traces."""
    off = (
        environment.get("OTEL_SDK_DISABLED", "").lower() == "true" or environment.get("OTEL_TRACES_EXPORTER") == "none"
    )
    return not off and any(environment.get(name) for name in ENDPOINTS)


def trace_sender() -> TraceSender | None:
    """Returns the sender of this process, or None if no collector is configured."""
    if not is_wanted():
        return None
    with _lock:
        if not _senders:
            _senders.append(OtlpSender())
        return _senders[0]


class OtlpSender:
    """Sends spans to the collector that OpenTelemetry's environment variables name. Raises ConfigurationError if OpenTelemetry's packages
    are not installed.
    """

    def __init__(self) -> None:
        require(Extra.OTEL, ConfigurationError)
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        self._resource = Resource.create({} if named else {"service.name": "sluice"})
        self._processor = BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=SEND_MILLISECONDS)

    def send(self, trace: Trace, spans: Sequence[Span]) -> None:
        for span in spans:
            self._processor.on_end(self._readable(trace, span))

    def flush(self) -> None:
        thread = threading.Thread(target=self._processor.force_flush, name="telemetry-flush", daemon=True)
        thread.start()
        thread.join(FLUSH_SECONDS)

    def _readable(self, trace: Trace, span: Span) -> Any:
        from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415
        from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags  # noqa: PLC0415

        def context(path: tuple[str, ...]) -> SpanContext:
            return SpanContext(
                trace.trace_id, trace.span_id(path), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)
            )

        return ReadableSpan(
            name=span.name,
            context=context(span.path),
            parent=context(span.path[:-1]) if span.path[1:] else None,
            resource=self._resource,
            attributes=dict(span.attributes),
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.OK),
            start_time=span.start_ns,
            end_time=span.end_ns,
        )
