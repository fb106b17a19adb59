"""Tests the rules for when files of a table are rewritten, and how long removed files stay."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.spark_jobs.maintain.rule import (
    CLUSTER_BYTES_MAX,
    COMPACT_BYTES_MAX,
    DELETED_SHARE_MAX,
    DEPTH_FILES_MIN,
    DEPTH_MAX,
    MARGIN_HOURS,
    RETENTION_HOURS,
    SMALL_FILES_MAX,
    FileFacts,
    MaintenanceAct,
    depth_of,
    due,
    hours_kept,
    hours_of,
    log_hours,
    snapshot_hours,
)
from sluice.spark_jobs.maintain.tables import (
    CLUSTERED_PROPERTY,
    MaintainedTable,
    catch_up,
    facts_of,
    lags,
    logged_hours,
)
from sluice.spark_jobs.table_owner import NoRecords, Owner, TableRecord
from sluice.spark_jobs.tables.delta_table import METADATA_COLUMNS

DEEP = FileFacts(files=9, large_files=9, fresh_files=3, rows=9, depth=DEPTH_MAX + 0.1)


@pytest.mark.parametrize(
    ("facts", "act"),
    [
        (FileFacts(), MaintenanceAct.NOTHING),
        (FileFacts(files=SMALL_FILES_MAX, small_files=SMALL_FILES_MAX, rows=100), MaintenanceAct.NOTHING),
        (FileFacts(files=SMALL_FILES_MAX + 1, small_files=SMALL_FILES_MAX + 1, rows=100), MaintenanceAct.COMPACT),
        (FileFacts(files=1, rows=1000, deleted=round(1000 * DELETED_SHARE_MAX)), MaintenanceAct.NOTHING),
        (FileFacts(files=1, rows=1000, deleted=round(1000 * DELETED_SHARE_MAX) + 1), MaintenanceAct.COMPACT),
        (FileFacts(files=9, large_files=9, fresh_files=9, rows=9, depth=DEPTH_MAX), MaintenanceAct.NOTHING),
        (DEEP, MaintenanceAct.CLUSTER),
        (
            FileFacts(files=9, large_files=DEPTH_FILES_MIN - 1, fresh_files=9, rows=9, depth=99.0),
            MaintenanceAct.NOTHING,
        ),
        # If a key has few values, files still overlap after CLUSTER. So CLUSTER is not due again before enough files are fresh.
        (dataclasses.replace(DEEP, fresh_files=1), MaintenanceAct.NOTHING),
        (dataclasses.replace(DEEP, bytes=CLUSTER_BYTES_MAX + 1), MaintenanceAct.NOTHING),
    ],
)
def test_files_are_rewritten_where_it_pays(facts: FileFacts, act: MaintenanceAct) -> None:
    assert due(facts)[0] is act
    assert due(facts)[1]


@pytest.mark.parametrize("facts", [FileFacts(files=21, small_files=21), FileFacts(files=1, rows=1000, deleted=999)])
def test_maintenance_that_would_delay_merges_for_long_is_done_only_by_request(facts: FileFacts) -> None:
    most = dataclasses.replace(facts, compact_bytes=COMPACT_BYTES_MAX)
    assert due(most)[0] is MaintenanceAct.COMPACT
    more = dataclasses.replace(facts, compact_bytes=COMPACT_BYTES_MAX + 1)
    assert due(more)[0] is MaintenanceAct.NOTHING
    assert "sluice maintain DESTINATION --tables DATABASE.TABLE --optimize" in due(more)[1]
    assert due(more, wanted=True)[0] is MaintenanceAct.COMPACT


def test_a_forced_maintenance_does_all_that_can_be_done() -> None:
    assert due(FileFacts(files=2, small_files=2, rows=9), wanted=True)[0] is MaintenanceAct.COMPACT
    assert due(FileFacts(files=1, small_files=1, rows=9, deleted=1), wanted=True)[0] is MaintenanceAct.COMPACT
    assert due(FileFacts(files=1, small_files=1, rows=9), wanted=True)[0] is MaintenanceAct.NOTHING, (
        "one file is one file"
    )
    assert (
        due(dataclasses.replace(DEEP, fresh_files=1, bytes=CLUSTER_BYTES_MAX + 1), wanted=True)[0]
        is MaintenanceAct.CLUSTER
    )
    assert due(dataclasses.replace(DEEP, fresh_files=0), wanted=True)[0] is MaintenanceAct.NOTHING, (
        "it was in order a moment ago"
    )


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 9)), max_size=12))
def test_the_depth_is_the_number_of_files_that_may_have_a_key(ranges: list[tuple[int, int]]) -> None:
    spans = [(low, low + width) for low, width in ranges]
    met = [sum(a <= d and c <= b for c, d in spans) for a, b in spans]
    expected = sum(met) / len(met) if met else 0.0
    assert depth_of([low for low, _ in spans], [high for _, high in spans]) == pytest.approx(expected)


def test_the_newest_consistent_snapshot_can_always_be_read() -> None:
    assert hours_kept(168.0, None) == 168.0
    assert hours_kept(168.0, 0.1) == 168.0
    assert hours_kept(168.0, 400.0) == 400.0 + MARGIN_HOURS, "a destination that stood still for long"
    assert hours_kept(0.0, 0.0) == MARGIN_HOURS
    assert hours_kept(0.0, 0.01) == MARGIN_HOURS + 1, "whole hours"
    assert hours_kept(0.0, None) == MARGIN_HOURS, "a commit that is under way has files too"


def test_the_log_names_files_for_as_long_as_they_stay() -> None:
    assert log_hours(30, 168.0) == 720
    assert log_hours(30, 8760.0) == 8784


@pytest.mark.parametrize(
    ("reported", "hours"),
    [
        ("interval 2 hours", 2),
        ("INTERVAL 1 week", 168),
        ("interval 30 days", 720),
        ("", RETENTION_HOURS),
        ("some", RETENTION_HOURS),
    ],
)
def test_a_table_says_for_how_long_it_remembers_files(reported: str, hours: float) -> None:
    assert hours_of(reported) == hours


@pytest.mark.found
@pytest.mark.parametrize(
    ("written", "hours"),
    [
        ("30 days", 720),
        ("1 day", 24),
        ("interval 1 day 12 hours", 36),
        ("interval 90 minutes", 1.5),
        ("INTERVAL  2 weeks", 336),
    ],
)
def test_a_retention_without_the_word_interval_is_understood(written: str, hours: float) -> None:
    """Defect 1058: a retention such as "1 day", as users of Databricks write it, counted as a week. So consistent snapshots stayed after
    VACUUM had removed their files, and with a longer retention too many snapshots were removed.
    """
    assert hours_of(written) == hours


def test_no_consistent_snapshot_stays_whose_files_the_log_has_forgotten() -> None:
    assert snapshot_hours(168.0, 168.0, 0.1) == 168.0
    assert snapshot_hours(720.0, 168.0, 0.1) == 168.0, "the longer retention of the table is new"
    assert snapshot_hours(2.0, 168.0, 0.1) == 2.0
    assert snapshot_hours(401.0, 168.0, 400.0) == 401.0, "the newest stays"


def test_files_are_counted_as_they_can_be_joined(tmp_path: Path) -> None:
    table = MaintainedTable(
        owner=Owner(ledger_id="0" * 12, destination="shop", table="shop.t"), path=str(tmp_path / "t"), key="n"
    )
    assert facts_of(table) is None
    assert logged_hours(table) is None
    rows = pa.table({"n": [1, 2, 3], "day": [1, 1, 2]})
    for _ in range(2):
        deltalake.write_deltalake(table.path, rows.slice(0, 2), partition_by=["day"], mode="append")
    deltalake.write_deltalake(table.path, rows.slice(2), partition_by=["day"], mode="append")
    facts = facts_of(table)
    assert facts is not None
    assert (facts.files, facts.small_files, facts.rows) == (3, 2, 5), "the other day has one alone"
    assert (facts.compact_bytes, facts.version) == (facts.bytes, 2)
    assert logged_hours(table) == RETENTION_HOURS


def test_files_count_as_fresh_until_all_is_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = MaintainedTable(
        owner=Owner(ledger_id="0" * 12, destination="shop", table="shop.t"), path=str(tmp_path / "t"), key="n"
    )
    monkeypatch.setattr("sluice.spark_jobs.maintain.tables.SMALL_BYTES", 1)
    deltalake.write_deltalake(table.path, pa.table({"n": [1, 2]}))
    before = facts_of(table)
    assert before is not None
    assert (before.large_files, before.fresh_files) == (1, 1)
    log = deltalake.DeltaTable(table.path)
    (newest,) = pa.table(log.get_add_actions(flatten=True))["modification_time"].to_pylist()
    log.alter.set_table_properties({CLUSTERED_PROPERTY: str(newest)}, raise_if_not_exists=False)
    after = facts_of(table)
    assert after is not None
    assert (after.large_files, after.fresh_files) == (1, 0)


class Kept(NoRecords):
    """Implements `TableRecords` in memory."""

    def __init__(self, record: TableRecord) -> None:
        self.record = record

    def get(self, name: str) -> TableRecord | None:  # noqa: ARG002
        return self.record

    def keep(self, name: str, record: TableRecord) -> None:  # noqa: ARG002
        self.record = record

    def keep_all(self, records: Mapping[str, TableRecord]) -> None:
        (self.record,) = records.values()


def test_a_commit_that_no_record_came_to_know_is_known_at_the_next_look(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    for _ in range(2):
        deltalake.write_deltalake(path, pa.table({"n": [1, 2]}), mode="append")
    log = deltalake.DeltaTable(path)
    records = Kept(TableRecord(table_id=str(log.metadata().id), version=1))
    owner = Owner(ledger_id="0" * 12, destination="shop", table="shop.t")
    table = MaintainedTable(owner=owner, path=path, key="n", records=records)
    facts = facts_of(table)
    assert facts is not None
    assert not lags(table, facts)
    log.optimize.compact()  # A run did this, and was killed then.
    facts = facts_of(table)
    assert facts is not None
    assert lags(table, facts)
    catch_up(table)
    assert records.record.version == 2
    assert not lags(table, facts)


@pytest.mark.found
@pytest.mark.parametrize("parameters", [{"columns": '["name"]'}, {"queryId": "20261130_1"}], ids=["named", "nameless"])
@pytest.mark.parametrize(("captured", "version"), [(["N", "name"], 1), (["n"], 2), ([], 2)])
def test_a_removed_column_of_the_source_stays_unrecorded_until_the_next_merge(
    tmp_path: Path, parameters: dict[str, str], captured: list[str], version: int
) -> None:
    """Defect 1081: if another program removed a column, the next maintenance stored the table's new version. So the next merge did not
    notice the removal, and added the column again with NULL. Defect 1104: if the source never had the column, maintenance did not store the
    new version either. Consistent snapshots then named a version whose files VACUUM had deleted.
    """
    path = str(tmp_path / "t")
    own = {column.name: [1] for column in METADATA_COLUMNS}
    deltalake.write_deltalake(path, pa.table({"n": [1], **own}))
    deltalake.write_deltalake(path, pa.table({"n": [2], **own}), mode="append")
    remove = {"timestamp": 1, "operation": "DROP COLUMNS", "operationParameters": parameters}
    (tmp_path / "t/_delta_log/00000000000000000002.json").write_text(json.dumps({"commitInfo": remove}))
    log = deltalake.DeltaTable(path)
    records = Kept(TableRecord(table_id=str(log.metadata().id), version=1))
    owner = Owner(ledger_id="0" * 12, destination="shop", table="shop.t")
    catch_up(MaintainedTable(owner=owner, path=path, key="n", columns=tuple(captured), records=records))
    assert records.record.version == version
