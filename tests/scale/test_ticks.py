"""Tests the ticks of a destination with a thousand snapshots: they look only at what has changed since the last tick."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.instance.tables.table_snapshots import SnapshotDecisions
from sluice.cdc_engine.snapshot.records import SnapshotRecords, digest_of
from sluice.cdc_engine.snapshot.steps import SnapshotStep
from sluice.cdc_engine.states import SnapshotState
from sluice.cdc_engine.table_meta.table_list.head import HEAD
from sluice.orchestration.checks.stopped import older_tables
from sluice.orchestration.sensor.snapshot_sensor import NAMED_MAX, why_none_is_due
from tests.scale.fix_many_tables import (
    FEW,
    MANY,
    counted,
    keep_lake_tables,
    make_destination,
    request_snapshots,
    settle,
    table_name,
)

STAMPED_CALLS = 12  # The function calls for the stamp of a record.
LOOKED_CALLS = 100  # The function calls for a snapshot that has not changed.


@pytest.mark.scale
@pytest.mark.found
def test_a_tick_reads_and_parses_only_the_snapshots_that_changed(tmp_path: Path) -> None:
    """Defect 27: each tick parsed the list of tables and all records."""
    config, _ = make_destination(tmp_path, MANY)
    records = request_snapshots(config, MANY)
    decisions = SnapshotDecisions(config, "shop")
    assert {decision.step for _, decision in decisions.now()} == {SnapshotStep.BEGIN}
    with counted() as found:
        again = list(decisions.now())
    assert (len(again), set(found.read)) == (MANY, {"meta.json", HEAD})
    assert found.named["from_json"] < 20, "the ledger may be parsed"
    assert found.calls < LOOKED_CALLS * MANY
    records.update(table_name(3), lambda now: now.failed("no right"))
    with counted() as found:
        again = list(decisions.now())
    assert len(again) == MANY - 1
    assert set(found.read) == {"meta.json", HEAD, f"{digest_of(table_name(3))}.json"}


@pytest.mark.scale
def test_a_tick_decides_no_more_than_it_needs_and_names_a_few(tmp_path: Path) -> None:
    config, _ = make_destination(tmp_path, FEW)
    records = request_snapshots(config, MANY)
    decided = iter(SnapshotDecisions(config, "shop").now())
    assert why_none_is_due(decided) == ""
    assert len(list(decided)) == MANY - 1, "one was due"
    for number in range(FEW):
        records.update(table_name(number), lambda now: now.canceled())
    waits = why_none_is_due(SnapshotDecisions(config, "shop").now())
    assert waits.count("the engine does not know the table yet") == NAMED_MAX
    assert waits.endswith(f"and {MANY - FEW - NAMED_MAX} more")


@pytest.mark.scale
def test_tables_that_are_read_again_are_found_without_reading_their_records(tmp_path: Path) -> None:
    config, _ = make_destination(tmp_path, MANY)
    request_snapshots(config, MANY)
    keep_lake_tables(config, MANY)
    directory = config.destination_dir("shop")
    settle(directory)
    assert len(older_tables(directory)) == MANY
    with counted() as found:
        older_tables(directory)
    assert set(found.read) == {"lake-tables.json"}, "as an earlier version would have left it"


@pytest.mark.scale
def test_a_record_that_was_just_written_is_read_again(tmp_path: Path) -> None:
    """The clock of a file system may give two contents the same time. So a record counts as known only some time after its write."""
    config, _ = make_destination(tmp_path, 2)
    records = request_snapshots(config, 2)
    for state in (SnapshotState.FAILED, SnapshotState.WANTED) * 5:
        records.update(
            table_name(0), lambda now: now.failed("x") if now.state == SnapshotState.WANTED else now.retried()
        )
        found = {each.name: each.state for each in SnapshotRecords(config.destination_dir("shop")).all()}
        assert found == {table_name(0): state, table_name(1): SnapshotState.WANTED}


@pytest.mark.scale
def test_a_look_at_snapshots_that_are_as_they_were_parses_sorts_and_hashes_none_of_them(tmp_path: Path) -> None:
    config, _ = make_destination(tmp_path, MANY)
    records = request_snapshots(config, MANY)
    known = records.all()
    with counted() as found:
        assert records.all() is known
    assert not found.read
    assert found.calls < STAMPED_CALLS * MANY, "a file is stamped"
    records.update(table_name(3), lambda now: now.failed("no right"))
    with counted() as found:
        assert len(records.all()) == MANY
    assert set(found.read) == {f"{digest_of(table_name(3))}.json"}
