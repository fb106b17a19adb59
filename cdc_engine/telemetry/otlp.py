"""Sends spans to an OpenTelemetry collector, by OTLP over HTTP. The SDK is imported only if conf/ or the environment names a collector.

The SDK's processor has a bounded queue and a thread: if the collector does not answer, spans are dropped with a line in the log.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from cdc_engine.config.operation import TelemetryConfig
from cdc_engine.environment import filled
from cdc_engine.telemetry.spans import Span, Trace
from cdc_engine.telemetry.traces import TraceSender

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PATH = "/v1/traces"
SEND_MILLISECONDS, FLUSH_SECONDS = 1000, 2.0

_lock = threading.Lock()
_senders: dict[tuple[str, tuple[tuple[str, str], ...]], TraceSender] = {}


def is_wanted(config: TelemetryConfig, environment: Mapping[str, str] = os.environ) -> bool:
    """Returns whether conf/ names a collector, or OpenTelemetry's own variables do and do not turn traces off."""
    if config.otlp:
        return True
    off = (
        environment.get("OTEL_SDK_DISABLED", "").lower() == "true" or environment.get("OTEL_TRACES_EXPORTER") == "none"
    )
    return not off and any(environment.get(name) for name in ENDPOINTS)


def sender_of(config: TelemetryConfig) -> TraceSender | None:
    """Returns the sender, one per process and collector; None if no collector is configured. Raises ConfigurationError if a variable is
    not set.
    """
    if not is_wanted(config):
        return None
    headers = {name: filled(value, f"telemetry.headers.{name}") for name, value in config.headers.items()}
    key = (config.otlp, tuple(sorted(headers.items())))
    with _lock:
        if key not in _senders:
            _senders[key] = OtlpSender(config.otlp, headers)
        return _senders[key]


class OtlpSender:
    """Sends to one collector. `otlp`: its address, such as http://host:4318; if empty, OpenTelemetry's own variables apply."""

    def __init__(self, otlp: str, headers: dict[str, str]) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        self._resource = Resource.create({} if named else {"service.name": "sluice"})
        exporter = OTLPSpanExporter(endpoint=_endpoint(otlp), headers=headers or None)
        self._processor = BatchSpanProcessor(exporter, schedule_delay_millis=SEND_MILLISECONDS)

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


def _endpoint(otlp: str) -> str | None:
    """Returns the address with the path of traces, unless it has a path; None if the variables contain the address."""
    if not otlp:
        return None
    return otlp if "/" in otlp.split("://", 1)[1].rstrip("/") else f"{otlp.rstrip('/')}{PATH}"
