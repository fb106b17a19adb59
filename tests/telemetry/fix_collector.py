"""Provides an OpenTelemetry collector for tests. It accepts OTLP over HTTP and parses the Protobuf messages. With `holding`, it accepts
requests and never answers.
"""

from __future__ import annotations

import gzip
import http.server
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from sluice.console.toolchain.ports import LOOPBACK
from tests.waiting import wait_for


class Collector:
    """The collector. `spans` are all spans that it received, and `services` the senders' `service.name`. `requests` has the path and the
    headers of each request.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        self.requests: list[tuple[str, Mapping[str, str]]] = []
        self.may_answer, self.reached = threading.Event(), threading.Event()
        self.may_answer.set()
        self.server = http.server.ThreadingHTTPServer((LOOPBACK, 0), self._handler())
        self.server.daemon_threads = True
        self.address = f"http://{LOOPBACK}:{self.server.server_port}"

    def of_trace(self, trace_id: int) -> dict[str, Span]:
        """Returns the spans of a trace by name."""
        wanted = trace_id.to_bytes(16)
        return {span.name: span for span in list(self.spans) if span.trace_id == wanted}

    def traces(self) -> dict[bytes, list[Span]]:
        found: dict[bytes, list[Span]] = {}
        for span in list(self.spans):
            found.setdefault(span.trace_id, []).append(span)
        return found

    def wait_for_trace(self, trace_id: int, complete: Callable[[Mapping[str, Span]], bool]) -> dict[str, Span]:
        def found() -> dict[str, Span] | None:
            there = self.of_trace(trace_id)
            return there if complete(there) else None

        return wait_for("the trace is at the collector", found)

    def _take(self, path: str, headers: Mapping[str, str], body: bytes) -> None:
        self.requests.append((path, headers))
        self.reached.set()
        self.may_answer.wait()
        content = gzip.decompress(body) if headers.get("Content-Encoding") == "gzip" else body
        for each in ExportTraceServiceRequest.FromString(content).resource_spans:
            self.services |= {a.value.string_value for a in each.resource.attributes if a.key == "service.name"}
            self.spans += [span for scope in each.scope_spans for span in scope.spans]

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        collector = self

        class Answer(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector._take(self.path, dict(self.headers.items()), body)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Discards log messages."""

        return Answer


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    thread = threading.Thread(target=collector.server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.may_answer.set()
        collector.server.shutdown()
        collector.server.server_close()
        thread.join()


def failed(span: Span) -> bool:
    return span.status.code == Status.STATUS_CODE_ERROR
