"""Tests how the progress of a snapshot is shown: a bar on a terminal, lines elsewhere, and at the end a sentence with the result."""

from __future__ import annotations

import io
import time
from pathlib import Path

from rich.console import Console

from sluice.cdc_engine.position import Position
from sluice.cdc_engine.progress import BINLOG, ROWS, figures, measured
from sluice.cdc_engine.snapshot.record import SnapshotRecord, SourceEnd, progress, wanted
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.console.acts.snapshot import described
from sluice.console.demo.rows_before import RowsBefore
from sluice.console.lake.progress_bars import ProgressBars
from tests.waiting import wait_for

NAME, COUNT = "shop.visits", 2_000_000
POSITION = Position(epoch=1, file="binlog.000001", offset=4)


def reading(records: SnapshotRecords, rows: int) -> SnapshotRecord:
    """Returns the record of a snapshot that has read `rows` rows in ten seconds."""
    begun = wanted(NAME, POSITION, 0.0).began(
        POSITION, version="v", key=("id",), columns=(), rows_expected=COUNT, now=time.time() - 10
    )
    record = begun.with_chunks(3, rows, 4711)
    records.begin(wanted(NAME, POSITION, 0.0))
    return records.update(NAME, lambda _: record)


def test_a_snapshot_is_a_bar_with_rows_percent_rate_and_time_left(tmp_path: Path) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=160)
    record = reading(SnapshotRecords(tmp_path), 500_000)
    with ProgressBars(screen, ROWS) as bars:
        made = progress(record, record.reading_at + 10)
        bars.show(record.name, made, described(record, "the stream has to come further"))
        screen.print("a line above")
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    for words in (
        "READING: the stream has to come further",
        "500,000 of some 2,000,000 rows",
        "25 %",
        "rows/s",
        "30 s left",
    ):
        assert words in shown
    assert "a line above" in shown


def test_the_demo_says_how_a_snapshot_ended_though_it_was_over_before_the_first_picture(tmp_path: Path) -> None:
    screen, records = Console(file=io.StringIO(), force_terminal=False, width=300), SnapshotRecords(tmp_path)
    with RowsBefore(records, NAME, screen, "Its page: http://here") as before:
        record = reading(records, COUNT)
        wait_for("a line is said", lambda: "is READING: 2,000,000" in screen.file.getvalue(), 30)  # type: ignore[attr-defined]
        read = record.finished(SourceEnd(file="binlog.000001", offset=9), record.reading_at + 8)
        records.update(NAME, lambda _: read.published(5, read.read_at + 1))
        before.wait(lambda: None)
    said = screen.file.getvalue()  # type: ignore[attr-defined]
    assert (
        "the 2,000,000 rows of its initial snapshot were read in 8 s while the stream continued (250,000 rows/s)"
        in said
    )
    assert (
        "published in one commit 1 s later. From now on, the stream keeps the table up to date. Its page: http://here"
        in said
    )
    again = Console(file=io.StringIO(), width=300)
    with RowsBefore(records, NAME, again, "") as later:
        later.wait(lambda: None)
    assert not again.file.getvalue()  # type: ignore[attr-defined]


def test_the_demo_says_why_a_snapshot_failed(tmp_path: Path) -> None:
    screen, records = Console(file=io.StringIO(), width=300), SnapshotRecords(tmp_path)
    record = reading(records, 7)
    records.update(NAME, lambda _: record.failed("no such column"))
    with RowsBefore(records, NAME, screen, "") as before:
        before.wait(lambda: None)
    assert "shop.visits is FAILED: no such column" in screen.file.getvalue()  # type: ignore[attr-defined]
    assert "7 of some 2,000,000 rows" in figures(progress(record, time.time()), ROWS)


def test_the_binlog_that_a_backfill_reads_is_counted_in_mib() -> None:
    assert figures(measured(3 << 20, 12 << 20, 3.0), BINLOG) == "3 of some 12 MiB, 25 %, 1 MiB/s, 9 s left"
    assert figures(measured(3 << 20, 12 << 20, 3.0, complete=True), BINLOG) == "3 MiB, 100 %, 1 MiB/s"
