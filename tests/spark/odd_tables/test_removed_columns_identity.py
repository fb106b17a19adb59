"""Tests that a table stops if another program dropped or renamed a column of its Delta table."""

from __future__ import annotations

import pytest

from sluice.spark_jobs.batch.context import BatchContext
from sluice.spark_jobs.batch.run_batch import merge_batch
from sluice.spark_jobs.errors import MergeError, TableError
from sluice.spark_jobs.session import open_sessions
from sluice.spark_jobs.sql_text import delta_path
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.table_owner import FoundTable, LakeWriter, Owner, TableRecord, refuse_unless_ours
from tests.spark.conftest import Lake
from tests.spark.staged import INSERT, Changes, Image, Records, Schema, SchemaChange, Segment

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
        with pytest.raises(TableError, match="by another program, and the source still has name") as refused:
            refuse_unless_ours(writer, record, found)
        assert (refused.value.state, refused.value.for_good) == ("TABLE_RESTORED", True)
    else:
        refuse_unless_ours(writer, record, found)


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
    """Defect 1079. The user may drop a column that the source no longer has."""
    lake.way = way  # type: ignore[assignment]
    records = Records()
    without = SchemaChange(2, WITHOUT, ({"kind": "drop", "column": "gone", "plan": "keep", "new_name": ""},))
    _merge(lake, records, _insert(ORDERS, 1), without)
    _execute(lake, MAPPED, "ALTER TABLE {} DROP COLUMN gone")
    _merge(lake, records, _insert(WITHOUT, 3))
    before = lake.log(NAME).version()
    _execute(lake, f"ALTER TABLE {{}} {removal}")
    with pytest.raises(MergeError, match="by another program, and the source still has name"):
        _merge(lake, records, _insert(WITHOUT, 4))
    assert lake.log(NAME).version() == before + 1
    _execute(lake, f"RESTORE TABLE {{}} TO VERSION AS OF {before}")
    assert "name" in _merge(lake, records, _insert(WITHOUT, 4))
    with open_sessions(lake.spark, 1) as (session,):
        rows = session.spark.sql(f"SELECT id, name FROM {delta_path(lake.path(NAME))} ORDER BY id").collect()
    assert [tuple(row) for row in rows] == [(1, "v"), (3, "v"), (4, "v")]
