"""Tests that a table stops if another program dropped or renamed a column of its Delta table."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from sluice.spark_jobs.batch.context import BatchContext
from sluice.spark_jobs.batch.run_batch import merge_batch
from sluice.spark_jobs.errors import MergeError, TableError
from sluice.spark_jobs.merging.merge import with_columns
from sluice.spark_jobs.session import open_sessions
from sluice.spark_jobs.sql_text import delta_path
from sluice.spark_jobs.staged_batch import DELETED, app_id_of
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.table_owner import FoundTable, LakeWriter, Owner, TableRecord, refuse_unless_ours
from sluice.spark_jobs.tables.alterations import KEPT_PROPERTY, PLAN_PROPERTY
from sluice.spark_jobs.tables.delta_table import METADATA_COLUMNS, NO_TABLE, DeltaTable
from sluice.spark_jobs.targets.report import TableTarget
from sluice.spark_jobs.targets.shards import Shard
from tests.spark.conftest import Lake
from tests.spark.staged import INSERT, Changes, Image, Records, Schema, SchemaChange, Segment, Truncate, stage

NAME = "shop.orders"
OURS = Owner(ledger_id="0123456789ab", destination="shop", table=NAME)
ORDERS = Schema({"id": "bigint", "name": "string", "gone": "string"}, key=("id",))
WITHOUT = Schema({"id": "bigint", "name": "string"}, key=("id",))
MAPPED = "ALTER TABLE {} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
DROPPED = {"version": 6, "operation": "DROP COLUMNS", "operationParameters": {"columns": '["`Name`","x"]'}}
RENAMED = {"version": 7, "operation": "RENAME COLUMN", "operationParameters": {"oldColumnPath": "name"}}


@pytest.mark.found
@pytest.mark.parametrize("commit", [DROPPED, RENAMED], ids=["drop", "rename"])
@pytest.mark.parametrize(
    ("version", "columns", "stops"),
    [(5, ["id"], True), (7, ["id"], False), (5, ["id", "name"], False)],
    ids=["lacking", "recorded", "back"],
)
def test_identity_columns_that_another_program_removed_after_the_record_are_missed(
    commit: dict[str, object], version: int, columns: list[str], stops: bool
) -> None:
    """Defect 1079: another program's DROP COLUMN or RENAME COLUMN was not noticed. The merge added the column again, with NULL."""
    writer = LakeWriter(owner=OURS, epoch=1, delivery=1, columns={"id", "name"})
    record = TableRecord(table_id="t", version=version)
    found = FoundTable(
        exists=True, path="/lake", table_id="t", version=7, owner=OURS.to_text(), commits=[commit], columns=columns
    )
    if stops:
        with pytest.raises(TableError, match="by another program, and Sluice still needs name") as refused:
            refuse_unless_ours(writer, record, found)
        assert (refused.value.state, refused.value.for_good) == ("TABLE_RESTORED", True)
    else:
        refuse_unless_ours(writer, record, found)


@pytest.mark.found
@pytest.mark.parametrize(
    ("operation", "parameters", "column"),
    [
        ("DROP COLUMNS", {"queryId": "20261130_00001"}, "name"),
        ("RENAME COLUMN", {}, "name"),
        ("RENAME COLUMN", {"oldColumnPath": "0"}, "0"),
        ("RENAME COLUMN", {"oldColumnPath": "null"}, "null"),
        ("DROP COLUMNS", {"columns": '["_sluice_deleted"]'}, "_sluice_deleted"),
    ],
    ids=["drop without names", "rename without names", "number", "null", "own"],
)
def test_identity_a_removal_is_noticed_whatever_its_commit_says(
    operation: str, parameters: dict[str, str], column: str
) -> None:
    """Defect 1082: a removal was not noticed if its commit does not name the columns, as with Trino, or if the name of a renamed column is
    a number or `null`.
    """
    writer = LakeWriter(owner=OURS, epoch=1, delivery=1, columns={"id", column})
    commit = {"version": 6, "operation": operation, "operationParameters": parameters}
    found = FoundTable(
        exists=True, path="/lake", table_id="t", version=6, owner=OURS.to_text(), commits=[commit], columns=["id"]
    )
    with pytest.raises(TableError, match=f"Sluice still needs {column}:"):
        refuse_unless_ours(writer, TableRecord(table_id="t", version=5), found)
    back = dataclasses.replace(found, columns=["id", column])
    refuse_unless_ours(writer, TableRecord(table_id="t", version=5), back)


@pytest.mark.found
@pytest.mark.parametrize(
    ("options", "needed"),
    [
        ({}, set()),
        ({"deletes": "soft"}, {"id", "name", DELETED}),
        ({"shard": Shard(column="shop", name="north")}, {"id", "name"}),
    ],
    ids=["emptied", "soft", "shard"],
)
def test_identity_a_truncate_that_leaves_rows_does_not_excuse_a_removed_column(
    tmp_path: Path, options: dict[str, Any], needed: set[str]
) -> None:
    """Defect 1083: a column that another program removed was added again with NULL, if the batch began with a TRUNCATE and the Delta table
    had rows of other shards or deleted rows. If the program removed `_sluice_deleted`, deleted rows were no longer marked.
    """
    batch = read_staged_batch(stage(tmp_path / "staging", {NAME: [Truncate(1), _insert(WITHOUT, 2)]}))
    target = TableTarget(path=str(tmp_path / "none"), **options)
    table, writer = DeltaTable(NAME, target.path, "", {}), LakeWriter(owner=OURS, epoch=1, delivery=1)
    own = {column.name for column in METADATA_COLUMNS} if needed else set()
    assert set(with_columns(writer, batch.tables[0], table, target).columns) == needed | own


@pytest.mark.found
def test_identity_a_backfill_does_not_need_a_column_that_the_source_dropped_later(tmp_path: Path) -> None:
    """Defect 1086: a backfill of changes from before a DROP COLUMN was refused, if a user had removed the kept column from the lake."""
    batch = read_staged_batch(stage(tmp_path / "staging", {NAME: [_insert(ORDERS, 1)]}))
    table, writer = DeltaTable(NAME, "none", "", {}), LakeWriter(owner=OURS, epoch=1, delivery=1)
    table.snapshot = dataclasses.replace(NO_TABLE, properties={KEPT_PROPERTY: '["Gone"]'})
    needed = set(with_columns(writer, batch.tables[0], table, TableTarget(path="none")).columns)
    assert needed == {"id", "name", *(column.name for column in METADATA_COLUMNS)}


@pytest.mark.found
@pytest.mark.parametrize(
    ("alteration", "there", "begun", "needed"),
    [
        ({"kind": "rename", "column": "name", "new_name": "title"}, "id", False, {"id", "name"}),
        ({"kind": "rename", "column": "name", "new_name": "title"}, "id", True, {"id"}),
        ({"kind": "rename", "column": "name", "new_name": "title"}, "title", False, {"id"}),
        ({"kind": "add", "column": "title"}, "id", False, {"id"}),
        ({"kind": "convert", "column": "title"}, "id", False, {"id", "title"}),
    ],
    ids=["renamed", "renamed in part", "renamed in an earlier epoch", "added", "converted"],
)
def test_identity_a_statement_needs_the_columns_that_the_table_had_before_it(
    tmp_path: Path, alteration: dict[str, str], there: str, begun: bool, needed: set[str]
) -> None:
    """Defect 1101: if the first statement of a batch renamed a column that another program had removed, the removal was not noticed. The
    column with the new name had NULL in earlier rows.
    """
    altered = SchemaChange(1, Schema({"id": "bigint", "title": "string"}, key=("id",)), (alteration,))
    batch = read_staged_batch(stage(tmp_path / "staging", {NAME: [altered]}))
    table, writer = DeltaTable(NAME, "none", "", {}), LakeWriter(owner=OURS, epoch=1, delivery=1)
    plan = {"name": f"{app_id_of(OURS)}@1", "stage": "begun", "plan": {"kept": []}}
    properties = {PLAN_PROPERTY: json.dumps(plan)} if begun else {}
    table.snapshot = dataclasses.replace(NO_TABLE, properties=properties, columns={there: (there, "string")})
    found = set(with_columns(writer, batch.tables[0], table, TableTarget(path="none")).columns)
    assert found == needed | {column.name for column in METADATA_COLUMNS}


def _merge(lake: Lake, records: Records, *segments: Segment) -> list[str]:
    """Merges a batch of one table and returns the names of the Delta table's columns."""
    batch = read_staged_batch(lake.stage({NAME: segments}))
    merge_batch(batch, {NAME: lake.target(NAME)}, lake.spark, BatchContext(records=records))
    return [field.name for field in lake.log(NAME).schema().fields]


def _insert(schema: Schema, at: int) -> Changes:
    return Changes(schema, [Image(INSERT, at, dict.fromkeys(schema.columns, "v") | {"id": at})])


def _execute(lake: Lake, *statements: str) -> None:
    with open_sessions(lake.spark, 1) as (session,):
        for statement in statements:
            session.spark.sql(statement.format(delta_path(lake.path(NAME))))


@pytest.mark.found
@pytest.mark.spark
@pytest.mark.parametrize(("way", "removal"), [("auto", "DROP COLUMN name"), ("spark", "RENAME COLUMN name TO called")])
def test_identity_a_column_that_a_user_removed_stops_the_table_until_the_version_before_is_restored(
    lake: Lake, way: str, removal: str
) -> None:
    """Defect 1079: if a user removed a column that Sluice still needed, the merge added the column again, with NULL. The user may drop
    `gone`, which the source no longer has.
    """
    lake.way = way  # type: ignore[assignment]
    records = Records()
    without = SchemaChange(2, WITHOUT, ({"kind": "drop", "column": "gone", "plan": "keep", "new_name": ""},))
    _merge(lake, records, _insert(ORDERS, 1), without)
    _execute(lake, MAPPED, "ALTER TABLE {} DROP COLUMN gone")
    _merge(lake, records, _insert(WITHOUT, 3))
    before = lake.log(NAME).version()
    _execute(lake, f"ALTER TABLE {{}} {removal}")
    with pytest.raises(MergeError, match="by another program, and Sluice still needs name"):
        _merge(lake, records, _insert(WITHOUT, 4))
    assert lake.log(NAME).version() == before + 1
    _execute(lake, f"RESTORE TABLE {{}} TO VERSION AS OF {before}")
    assert "name" in _merge(lake, records, _insert(WITHOUT, 4))
    with open_sessions(lake.spark, 1) as (session,):
        rows = session.spark.sql(f"SELECT id, name FROM {delta_path(lake.path(NAME))} ORDER BY id").collect()
    assert [tuple(row) for row in rows] == [(1, "v"), (3, "v"), (4, "v")]
