"""Records the traces of an engine's batches. Does nothing if no collector is configured. No method raises an error; only `flush` waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import structlog

from sluice.cdc_engine.contracts import OutstandingBatch
from sluice.cdc_engine.telemetry.run_spans import spans_of_runs
from sluice.cdc_engine.telemetry.spans import APPEND, BATCH, STAGE, Span, Trace, Value

log = structlog.get_logger()
# The last file that staging writes. Its modification time shows when staging ended.
MANIFEST = "manifest.json"


class TraceSender(Protocol):
    def send(self, trace: Trace, spans: Sequence[Span]) -> None:
        """Queues the spans and returns at once, even if the collector cannot be reached."""

    def flush(self) -> None:
        """Waits until the queued spans are sent, but only for a limited time."""


class Traces:
    """Records the traces of one destination's batches. `sender` is None if no collector is configured."""

    def __init__(self, destination: str, directory: Path, sender: TraceSender | None = None) -> None:
        self._destination, self._directory, self._sender = destination, directory, sender
        self._taken: dict[int, int] = {}  # Delivery number → when the batch was taken from the store, in ns since 1970.
        self._lock = threading.Lock()

    def staged(self, batch: OutstandingBatch, taken_ns: int) -> None:
        """Records the span of staging. The span began at `taken_ns`, when the batch was taken from the store, and ends now."""
        if self._sender is not None:
            with self._lock:
                # The times of earlier deliveries are dropped, because a destination has only one batch in flight.
                self._taken = {batch.delivery: taken_ns}
            stage = Span(path=(BATCH, STAGE), name=STAGE, start_ns=taken_ns, end_ns=time.time_ns())
            self._send(batch, [stage])

    def appended(self, batch: OutstandingBatch, begun_ns: int) -> None:
        """Records the span in which changes were appended to the batch. The span began at `begun_ns` and ends now."""
        self._send(batch, [Span(path=(BATCH, APPEND), name=APPEND, start_ns=begun_ns, end_ns=time.time_ns())])

    def settled(self, batch: OutstandingBatch, word: str, begun_ns: int, error: str = "") -> None:
        """Records the span of an ack or a rollback (`word`), the spans of the batch's runs, and the span of the whole batch. `begun_ns` is
        when the write of the ledger began. `error` is why the batch is handed out again, or empty. Must be called before the batch's files
        are removed.
        """
        if self._sender is None:
            return
        now, runs = time.time_ns(), spans_of_runs(self._directory / batch.path, batch.delivery)
        begun = min([self._begun(batch, begun_ns), *(each.start_ns for each in runs)])
        whole = Span(
            path=(BATCH,), name=BATCH, start_ns=begun, end_ns=now, attributes=self._attributes(batch), error=error
        )
        settle = Span(path=(BATCH, word), name=word, start_ns=begun_ns, end_ns=now)
        self._send(batch, [whole, *runs, settle])

    def flush(self) -> None:
        if self._sender is not None:
            self._sender.flush()

    def _begun(self, batch: OutstandingBatch, otherwise: int) -> int:
        """Returns when the batch was taken from the store, in ns since 1970. If another process took the batch, this process does not know
        the time. In this case, returns when the staging ended (the manifest's modification time), or `otherwise` if the manifest is gone.
        """
        with self._lock:
            taken = self._taken.pop(batch.delivery, 0)
        try:
            return taken or (self._directory / batch.path / MANIFEST).stat().st_mtime_ns
        except OSError:
            return otherwise

    def _attributes(self, batch: OutstandingBatch) -> dict[str, Value]:
        return {
            "sluice.destination": self._destination,
            "sluice.ledger": batch.ledger_id,
            "sluice.delivery": batch.delivery,
            "sluice.start": str(batch.start),
            "sluice.end": str(batch.end),
            "sluice.rows": batch.rows,
            "sluice.bytes": batch.bytes,
            "sluice.tables": batch.tables,
        }

    def _send(self, batch: OutstandingBatch, spans: list[Span]) -> None:
        if self._sender is not None:
            try:
                self._sender.send(Trace(ledger_id=batch.ledger_id, delivery=batch.delivery), spans)
            except Exception as error:  # Catches all errors: if a trace cannot be sent, the batch must not fail.
                log.warning("spans_not_sent", destination=self._destination, reason=type(error).__name__)
