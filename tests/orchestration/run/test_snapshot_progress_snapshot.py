"""Tests what Dagster's records show of a table while a snapshot reads its rows. The job is real, and the reading is replaced."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from sluice.cdc_engine.position import Position
from sluice.cdc_engine.snapshot import groups
from sluice.cdc_engine.snapshot.record import SnapshotRecord, wanted
from sluice.cdc_engine.snapshot.work import SnapshotDependencies
from sluice.orchestration.base.table_catalog import delta_key
from sluice.orchestration.code_location import build_definitions
from sluice.orchestration.run import snapshot_run
from sluice.orchestration.run.consistent_snapshots import SnapshotAmendments
from sluice.orchestration.run.snapshot_run import LONG_READ_ROWS
from sluice.spark_jobs.consistent_snapshots import AmendedTable
from sluice.spark_jobs.errors import TableError
from tests.orchestration.fix_location import make_config, make_fake_ports, write_tables

ROWS_EXPECTED, ROWS, SECONDS = 1000, 250, 10.0
ORDERS, ITEMS = "shop.orders", "shop.items"


def being_read(now: float) -> SnapshotRecord:
    """Returns the record of a snapshot that began ten seconds before `now` and has read a quarter of the rows."""
    begin = Position(epoch=1, file="b.000001", offset=400)
    record = wanted(ORDERS, None, now - SECONDS)
    record = record.began(begin, version="1", key=("id",), columns=(), rows_expected=ROWS_EXPECTED, now=now - SECONDS)
    return record.with_chunks(1, ROWS, 4096)


def reported_during(
    root: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[SnapshotDependencies], None]
) -> dict[str, list[dict[str, Any]]]:
    """Runs the snapshot job, in which `read` replaces the reading. Returns the metadata of each table's observations, oldest first, as they
    are when `read` ends.
    """
    config, found = make_config(root), dict[str, list[dict[str, Any]]]()
    write_tables(config.destination_dir("shop"))
    job = build_definitions(config, make_fake_ports(config).ports()).resolve_job_def("snapshot_shop_job")
    with dg.DagsterInstance.ephemeral(tempdir=str(root)) as instance:

        def run_all(hands: SnapshotDependencies, _: float) -> None:
            read(hands)
            for name in (ORDERS, ITEMS):
                records = instance.fetch_observations(delta_key("shop", name), limit=100, ascending=True).records
                events = [each.asset_observation for each in records]
                found[name] = [{key: each.value for key, each in event.metadata.items()} for event in events if event]

        monkeypatch.setattr(groups, "run_all", run_all)
        assert job.execute_in_process(instance=instance).success
    return found


def test_rows_percent_rate_and_end_are_reported_while_rows_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = list[float]()

    def read(hands: SnapshotDependencies) -> None:
        now.append(time.time())
        hands.progress(being_read(now[0]))
        hands.progress(wanted(ITEMS, None, now[0]))

    found = reported_during(tmp_path, monkeypatch, read)
    (reported,), (unknown,) = found[ORDERS], found[ITEMS]
    assert (reported["snapshot_rows"], reported["snapshot_rows_expected"], reported["snapshot_percent"]) == (
        250,
        1000,
        25.0,
    )
    assert reported["snapshot_rows_per_second"] == pytest.approx(ROWS / SECONDS, rel=0.2)
    assert reported["snapshot_seconds_left"] == pytest.approx(30.0, rel=0.2)
    assert reported["snapshot_ends_about"] == pytest.approx(now[0] + 30.0, abs=6.0)
    assert reported["snapshot_state"] == "READING"
    assert (unknown["snapshot_rows"], "snapshot_ends_about" in unknown) == (0, False), (
        "where nothing is known no end is named"
    )


def test_a_table_is_reported_every_few_seconds_and_not_with_each_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(hands: SnapshotDependencies) -> None:
        record, clock = being_read(time.time()), time.time()
        for chunk in range(2, 8):
            with monkeypatch.context() as patch:
                patch.setattr(time, "time", lambda at=clock + 5.0 * chunk: at)
                hands.progress(record.with_chunks(chunk, chunk * 100, 4096))

    reported = reported_during(tmp_path, monkeypatch, read)[ORDERS]
    assert [each["snapshot_rows"] for each in reported] == [200, 400, 600]
    ends = [each["snapshot_ends_about"] for each in reported]
    assert len(set(ends)) == len(ends), "each report estimates the end again"


class Amendments(SnapshotAmendments):
    """Simulates published tables that are not yet in the newest consistent snapshot. Counts how often this snapshot is written. If
    `refused` is set, the first write fails with this reason.
    """

    def __init__(self, refused: str = "") -> None:
        self.waiting, self.written, self._refused = {ITEMS: AmendedTable(tables={}, label=1, newest=1)}, 0, refused

    def write(self, refusal: Callable[[], str]) -> None:
        assert not refusal(), "the run lock is held"
        self.written += 1
        if self._refused:
            reason, self._refused = self._refused, ""
            raise TableError(ITEMS, reason)


@pytest.mark.parametrize("refused", ["", "the disk is full"])
def test_published_tables_are_in_the_newest_snapshot_before_a_large_table_is_read_completely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """Published tables are written into the newest consistent snapshot while the run still reads other tables. Otherwise, after a kill of
    the run, they would be missing there until the next batch. If the write fails, the run continues to read.
    """
    amendments, written = Amendments(refused), list[int]()
    monkeypatch.setattr(snapshot_run, "SnapshotAmendments", lambda *_: amendments)

    def read(hands: SnapshotDependencies) -> None:
        record, clock = being_read(time.time()), time.time()
        large = dataclasses.replace(record, table="items", rows_expected=LONG_READ_ROWS)
        for seconds, each in ((0.0, record), (5.0, record), (12.0, record), (13.0, large)):
            with monkeypatch.context() as patch:
                patch.setattr(time, "time", lambda at=clock + seconds: at)
                hands.progress(each)
            written.append(amendments.written)
        with hands.run_lock(), monkeypatch.context() as patch:
            patch.delattr(snapshot_run, "only_writer")  # This would wait for the lock.
            patch.setattr(time, "time", lambda: clock + 30.0)
            hands.progress(record)
        written.append(amendments.written)

    reported_during(tmp_path, monkeypatch, read)
    assert written == [0, 0, 1, 2, 2], (
        "after some seconds; at once for a large table; never while another run holds the lock"
    )
    assert amendments.written == 3, "and at the end of the run"
