"""Tests that a separate thread writes row groups: in order, with a limit on waiting groups, and an error in it fails the batch."""

from __future__ import annotations

import errno
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sluice.cdc_engine.binlog.rows.decoder import ORDER_KEY
from sluice.cdc_engine.contracts import Batch, RowEventKind
from sluice.cdc_engine.errors import StagingError
from sluice.cdc_engine.staging import segment_writer, stage
from sluice.cdc_engine.staging.background_writer import WRITES_MAX, BackgroundWriter
from tests.binlog.rows.event_bytes import ORDERS
from tests.staging.test_staging import batch, changes, rows_block, whole

GROUPS = 5
SECONDS_MAX = 30.0


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Batch:
    """Returns a batch in which each row becomes a row group."""
    monkeypatch.setattr(segment_writer, "ROW_GROUP_ROWS", 1)
    rows = [(ORDERS, RowEventKind.INSERT, [(number, number, "x")]) for number in range(GROUPS)]
    return batch(*(whole(rows_block(each, start=4 + 200 * number)) for number, each in enumerate(rows)))


def test_work_is_done_in_order_and_waits_for_a_free_slot() -> None:
    background, gate, done = BackgroundWriter(), threading.Event(), list[int]()

    def work(number: int) -> None:
        assert gate.wait(SECONDS_MAX)
        done.append(number)

    for number in range(WRITES_MAX):
        background.submit(partial(work, number))
    more = threading.Thread(target=background.submit, args=(partial(work, WRITES_MAX),))
    more.start()
    more.join(0.05)
    assert more.is_alive()
    gate.set()
    more.join(SECONDS_MAX)
    background.close()
    assert done == list(range(WRITES_MAX + 1))


def test_row_groups_are_in_the_order_of_the_rows_with_bounds_of_the_order_key_alone(
    groups: Batch, tmp_path: Path
) -> None:
    staged = stage(groups, "shop", 1, tmp_path)
    (segment,) = changes(staged.path)
    with pq.ParquetFile(staged.path / segment.file) as file:
        footer = file.metadata
        columns = [footer.row_group(0).column(number) for number in range(footer.num_columns)]
        assert footer.num_row_groups == GROUPS
        assert [each.path_in_schema for each in columns if each.is_stats_set] == [ORDER_KEY]
        assert file.read().column("id").to_pylist() == list(range(GROUPS))


@pytest.mark.parametrize("written", range(GROUPS))
def test_a_disk_that_becomes_full_fails_the_batch(
    groups: Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    write, done = segment_writer.SegmentWriter._write, list[Any]()

    def fails(writer: segment_writer.SegmentWriter, rows: Any) -> None:
        if len(done) == written:
            raise OSError(errno.ENOSPC, "No space left on device")
        done.append(rows)
        write(writer, rows)

    monkeypatch.setattr(segment_writer.SegmentWriter, "_write", fails)
    with pytest.raises(StagingError, match="No space left"):
        stage(groups, "shop", 1, tmp_path)
    assert not list(tmp_path.iterdir())
