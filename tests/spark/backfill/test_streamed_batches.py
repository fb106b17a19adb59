"""Tests that a query whose rows are written into a table reads only a limited number of batches ahead of the table."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from sluice.spark_jobs.backfill import into

SCHEMA = pa.schema([("id", pa.int64())])
BATCHES = 50


def test_a_query_reads_a_limited_number_of_batches_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, read = threading.Event(), list[int]()

    class Watched(queue.Queue[Any]):
        """A queue that reports when a batch does not fit into it."""

        def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
            if self.maxsize and self.qsize() >= self.maxsize:
                waits.set()
            super().put(item, block, timeout)

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(BATCHES):
            read.append(number)
            yield pa.record_batch({"id": [number]}, schema=SCHEMA)
        waits.set()

    monkeypatch.setattr(queue, "Queue", Watched)
    monkeypatch.setattr(into, "BATCHES_WAITING_MAX", 2)
    streamed = into.streamed(batches(), SCHEMA)
    first = next(streamed)
    assert waits.wait(60.0)
    assert len(read) <= 2 + 2, "one was taken, two wait, one does not fit"
    assert [first["id"][0].as_py(), *(each["id"][0].as_py() for each in streamed)] == [*range(BATCHES)]
