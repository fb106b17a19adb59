"""Tests the trace of a batch from its take to its ack, with the spans of engine and run, at a real collector. A collector that is away
changes nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from sluice.cdc_engine.contracts import OutstandingBatch
from sluice.cdc_engine.telemetry import otlp
from sluice.cdc_engine.telemetry.otlp import is_wanted, trace_sender
from sluice.cdc_engine.telemetry.run_spans import RunSpans, spans_of_runs
from sluice.cdc_engine.telemetry.spans import Span, Trace
from sluice.cdc_engine.telemetry.traces import Traces
from sluice.console.toolchain.ports import LOOPBACK, free_port
from tests.handlers.fix_handlers import batch
from tests.telemetry.fix_collector import Collector, collecting, failed

TRACE = Trace(ledger_id=batch().ledger_id, delivery=7)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ensures that nothing is sent after the end of a test."""
    made: list[Any] = []
    for name in otlp.ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(otlp, "_senders", made)
    monkeypatch.setattr(otlp, "SEND_MILLISECONDS", 20)
    yield
    for sender in made:
        sender._processor.span_exporter.shutdown()  # This ends its attempts, for which the processor would wait.
        sender._processor.shutdown()


@pytest.fixture
def collector(fresh: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as made:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.address)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=secret")
        yield made


def played(folder: Path, traces: Traces, word: str = "ack", error: str = "") -> OutstandingBatch:
    """Reports the spans of one batch, as its engine and its run do. Returns the batch."""
    given = batch()
    (folder / given.path).mkdir(parents=True, exist_ok=True)
    traces.staged(given, taken_ns=10**18)
    run = RunSpans(folder / given.path, given.delivery, "run-one")
    run.merged("shop.orders", 40, 6, "spark")
    run.ended(error)
    traces.settled(given, word, 2 * 10**18, error)
    return given


def has(*names: str) -> Callable[[Mapping[str, object]], bool]:
    return lambda there: set(names) <= there.keys()


def test_a_batch_is_one_trace_of_engine_and_run(collector: Collector, tmp_path: Path) -> None:
    traces = Traces("shop", tmp_path, trace_sender())
    played(tmp_path, traces)
    there = collector.wait_for_trace(TRACE.trace_id, has("batch", "stage", "run", "merge shop.orders", "ack"))
    whole, run = there["batch"], there["run"]
    assert whole.parent_span_id == b""
    assert {there[name].parent_span_id for name in ("stage", "run", "ack")} == {whole.span_id}
    assert there["merge shop.orders"].parent_span_id == run.span_id
    assert len({span.span_id for span in there.values()}) == 5
    assert not any(map(failed, there.values()))
    assert whole.start_time_unix_nano == there["stage"].start_time_unix_nano == 10**18
    reported = {each.key: each.value for each in whole.attributes}
    assert reported["sluice.destination"].string_value == "shop"
    assert (reported["sluice.delivery"].int_value, reported["sluice.rows"].int_value) == (7, 3)
    assert [each.string_value for each in reported["sluice.tables"].array_value.values] == ["shop.orders"]
    path, headers = collector.requests[0]
    assert (path, {key.lower(): value for key, value in headers.items()}["x-key"]) == ("/v1/traces", "secret")
    assert collector.services == {"sluice"}


def test_a_rollback_and_its_run_are_errors_and_the_next_delivery_another_trace(
    collector: Collector, tmp_path: Path
) -> None:
    traces = Traces("shop", tmp_path, trace_sender())
    played(tmp_path, traces, "rollback", "the connection to Spark was lost")
    there = collector.wait_for_trace(TRACE.trace_id, has("batch", "run", "rollback"))
    assert failed(there["batch"])
    assert failed(there["run"])
    assert there["run"].status.message == "the connection to Spark was lost"
    assert Trace(ledger_id=TRACE.ledger_id, delivery=8).trace_id != TRACE.trace_id


def test_a_batch_that_another_process_settles_begins_where_it_was_staged(collector: Collector, tmp_path: Path) -> None:
    folder = tmp_path / batch().path
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    began = (folder / "manifest.json").stat().st_mtime_ns
    traces = Traces("shop", tmp_path, trace_sender())
    traces.settled(batch(), "ack", began + 10**9)
    assert collector.wait_for_trace(TRACE.trace_id, has("batch"))["batch"].start_time_unix_nano == began


def test_a_collector_that_does_not_answer_delays_nothing(collector: Collector, tmp_path: Path) -> None:
    collector.may_answer.clear()
    traces = Traces("shop", tmp_path, trace_sender())
    played(tmp_path, traces)
    assert collector.reached.wait(60)
    for _ in range(3000):  # These are more than the queue can contain. A caller that waited would wait forever.
        traces.settled(batch(), "ack", 1)
    assert not collector.may_answer.is_set()
    traces.flush()
    assert not collector.spans


def test_a_collector_that_is_away_or_a_folder_that_is_gone_breaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{LOOPBACK}:{free_port()}")
    traces = Traces("shop", tmp_path, trace_sender())
    played(tmp_path, traces)
    with capture_logs() as lines:
        RunSpans(tmp_path / "gone", 7, "run-one").ended()
        (tmp_path / batch().path / "spans-7-torn.json").write_text("[{")
        assert [each.name for each in spans_of_runs(tmp_path / batch().path, 7)] == ["run", "merge shop.orders"]
    assert [each["event"] for each in lines] == ["spans_not_written", "spans_not_read"]


def test_spans_of_another_delivery_are_left(tmp_path: Path) -> None:
    RunSpans(tmp_path, 7, "run-one").ended()
    assert spans_of_runs(tmp_path, 70) == []
    (span,) = spans_of_runs(tmp_path, 7)
    assert Span.from_json(json.loads(json.dumps(span.to_json()))) == span


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/x"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_traces_are_wanted_where_the_environment_names_a_collector(environment: dict[str, str], wanted: bool) -> None:
    assert is_wanted(environment) is wanted


def test_without_a_collector_the_library_is_not_even_read_in() -> None:
    requests = (
        "import sys; from sluice.cdc_engine.telemetry.otlp import trace_sender; "
        "sys.exit(trace_sender() is not None or any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", requests], check=False).returncode == 0
