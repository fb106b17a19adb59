"""Tests renames of tables with Spark: each Delta table gets the rows and columns of the table that has its name now. A second delivery, or
a retry after an interruption, changes nothing more.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.spark_jobs.batch.context import BatchContext
from sluice.spark_jobs.batch.run_batch import merge_batch
from sluice.spark_jobs.errors import MergeError, StagedBatchError
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.merging.context import MergeContext
from sluice.spark_jobs.merging.merge import merge_table
from sluice.spark_jobs.quarantine.replay import ReplayedTable, RowValues, put_back
from sluice.spark_jobs.session import LakeSession, open_sessions
from sluice.spark_jobs.sql_text import delta_path
from sluice.spark_jobs.staged_batch import StagedBatch
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.table_owner import NO_RECORDS, TABLE_MISSING, Owner
from sluice.spark_jobs.targets.report import TableTarget
from tests.spark.conftest import Lake
from tests.spark.staged import (
    DELETE,
    INSERT,
    LEDGER_ID,
    UPDATE_AFTER,
    Changes,
    Image,
    Records,
    Schema,
    SchemaChange,
    Segment,
    Truncate,
)

A = Schema({"id": "bigint", "a": "int", "gone": "string"}, key=("id",))
B = Schema({"code": "string", "a b": "int", "at": "timestamp_ntz"}, key=("code",))
TYPES = {"number": pa.int64(), "order_key": pa.int64()}
LOG = Schema({"word": "string"})


def rows(of: Schema, start: int, operation: int, *values: tuple[Any, ...]) -> Changes:
    names = tuple(of.columns)
    return Changes(
        of, [Image(operation, start + index, dict(zip(names, row, strict=True))) for index, row in enumerate(values)]
    )


def named(key: int, origin: str, schema: Schema) -> SchemaChange:
    return SchemaChange(key, schema, renamed_from=origin)


BEFORE: dict[str, list[Segment]] = {
    "s.a": [rows(A, 1, INSERT, (1, 10, "x"), (2, 20, "y"))],
    "s.b": [rows(B, 3, INSERT, ("k", 1, None), ("l", 2, None))],
    "s.log": [rows(LOG, 5, INSERT, ("one",), ("one",))],
}
CYCLE: dict[str, list[Segment]] = {
    "s.a": [named(20, "s.b", B)],
    "s.b": [named(20, "s.log", LOG)],
    "s.log": [named(20, "s.a", A)],
}
AFTER: dict[str, list[Segment]] = {
    "s.a": [rows(B, 21, UPDATE_AFTER, ("k", 11, None))],
    "s.b": [rows(LOG, 22, INSERT, ("two",))],
    "s.log": [rows(A, 23, DELETE, (1, 10, "x")), rows(A, 24, UPDATE_AFTER, (2, 21, "z"))],
}


def everything(lake: Lake) -> dict[str, list[tuple[Any, ...]]]:
    return {
        "s.a": lake.rows("s.a", "code", '"a b"'),
        "s.b": lake.rows("s.b", "word"),
        "s.log": lake.rows("s.log", "id", "a", "gone"),
    }


MOVED = {
    "s.a": [("k", 1), ("l", 2)],
    "s.b": [("one",), ("one",)],
    "s.log": [(1, 10, "x"), (2, 20, "y")],
}
GONE_ON = {
    "s.a": [("k", 11), ("l", 2)],
    "s.b": [("one",), ("one",), ("two",)],
    "s.log": [(2, 21, "z")],
}


@pytest.mark.spark
def test_ddl_tables_that_swap_names_swap_rows_and_columns(lake: Lake) -> None:
    """Three tables exchange their names in a circle: one with a key, one with another key, and one without a key. Afterwards, each Delta
    table gets the changes of the source table that has its name now.
    """
    lake.merge(BEFORE)
    directory = lake.stage(CYCLE)
    lake.merge_staged(directory, CYCLE)
    assert everything(lake) == MOVED
    owners = {name: lake.log(name).metadata().configuration["sluice.owner"] for name in CYCLE}
    assert all(f'"{name}"' in owner for name, owner in owners.items())
    assert [lake.log(name).transaction_version(f"sluice/shop/{LEDGER_ID}/{name}") for name in CYCLE] == [20] * 3
    lake.merge(AFTER)
    assert everything(lake) == GONE_ON
    assert all(report.skipped for report in lake.merge_staged(directory, CYCLE).values())
    assert everything(lake) == GONE_ON, "a rename that comes again, as after a resume, does nothing"


class SessionThatBreaks(LakeSession):
    """A Spark session that is interrupted before or after its write."""

    def __init__(self, session: LakeSession, *, after: bool) -> None:
        super().__init__(session.spark)
        self.fence = session.fence
        self.after = after

    def commit(self, name: str, statement: str) -> None:
        if self.after:
            super().commit(name, statement)
        raise ConnectionError("cut off")


@pytest.mark.spark
@pytest.mark.parametrize("order", [("s.a", "s.b", "s.log"), ("s.log", "s.b", "s.a")], ids=" ".join)
def test_ddl_identity_a_swap_that_broke_anywhere_is_finished(lake: Lake, order: tuple[str, ...]) -> None:
    """The test merges the tables of the circle in both orders. It interrupts the merge of each table twice: before its commit, and between
    its commit and the record of this commit.
    """
    records = Records()
    targets = {name: lake.target(name) for name in CYCLE}
    merge_batch(read_staged_batch(lake.stage(BEFORE)), targets, lake.spark, BatchContext(records=records))
    batch = read_staged_batch(lake.stage(CYCLE))
    with open_sessions(lake.spark, 1, BY_HAND) as (session,):
        for name, after in itertools.product(order, (False, True)):
            with pytest.raises(ConnectionError):
                _merged(SessionThatBreaks(session, after=after), batch, name, targets, records)
        for name in order:
            _merged(session, batch, name, targets, records)
    assert everything(lake) == MOVED
    assert {name: record.version for name, record in records.kept.items()} == {
        name: lake.log(name).version() for name in CYCLE
    }
    merge_batch(read_staged_batch(lake.stage(AFTER)), targets, lake.spark, BatchContext(records=records))
    assert everything(lake) == GONE_ON


def _merged(
    session: LakeSession, batch: StagedBatch, name: str, targets: dict[str, TableTarget], records: Records
) -> None:
    (table,) = (table for table in batch.tables if table.name == name)
    merge_table(session, batch, table, targets[name], MergeContext(records=records, target_of=targets.get))


@pytest.mark.spark
def test_ddl_a_plain_rename_moves_the_rows(lake: Lake) -> None:
    """Tests three cases: the lake has no table of the new name, the lake already has one, and the lake has no table of the old name."""
    lake.merge(BEFORE)
    first: dict[str, list[Segment]] = {"s.c": [named(20, "s.a", A)], "s.a": [Truncate(20)]}
    second: dict[str, list[Segment]] = {"s.b": [named(30, "s.c", A)], "s.log": [named(30, "s.none", LOG)]}
    for tables in (first, second):
        targets = {name: lake.target(name) for name in tables}
        merge_batch(read_staged_batch(lake.stage(tables)), targets, lake.spark, BatchContext(target_of=lake.target))
    assert lake.rows("s.b", "id", "a", "gone") == lake.rows("s.c", "id", "a", "gone") == MOVED["s.log"]
    assert lake.rows("s.a", "id") == lake.rows("s.log", "word") == []


@pytest.mark.found
@pytest.mark.spark
def test_ddl_a_table_that_is_renamed_or_rewritten_keeps_its_constraints(lake: Lake) -> None:
    """Defect 1100: a renamed table lost the CHECK constraints of the Delta table, and a widened column with a constraint failed."""
    lake.merge({"s.a": BEFORE["s.a"]})
    with open_sessions(lake.spark, 1) as (session,):
        session.spark.sql(f"ALTER TABLE {delta_path(lake.path('s.a'))} ADD CONSTRAINT positive CHECK (a > 0)")
    wide = Schema({**A.columns, "a": "bigint"}, A.key)
    widened = SchemaChange(30, wide, ({"kind": "widen", "column": "a", "plan": "rewrite", "new_name": ""},))
    target = lake.target("s.c")
    for segment in (named(20, "s.a", A), widened):
        batch = read_staged_batch(lake.stage({"s.c": [segment]}))
        merge_batch(batch, {"s.c": target}, lake.spark, BatchContext(target_of=lake.target))
        assert lake.log("s.c").metadata().configuration["delta.constraints.positive"] == "a > 0"
    assert lake.rows("s.c", "id", "a", "gone") == MOVED["s.log"]


@pytest.mark.spark
def test_ddl_marks_of_deleted_rows_and_left_columns_come_along(lake: Lake) -> None:
    dropped = ({"kind": "drop", "column": "gone", "plan": "keep"},)
    less = Schema({"id": "bigint", "a": "int"}, key=("id",))
    before: dict[str, list[Segment]] = {
        "s.a": [*BEFORE["s.a"], rows(A, 10, DELETE, (1, 10, "x")), SchemaChange(11, less, dropped)]
    }
    lake.merge(before, deletes="soft")
    for name, deletes in (("s.soft", "soft"), ("s.hard", "hard")):
        target = lake.target(name, deletes=deletes)
        merge_batch(
            read_staged_batch(lake.stage({name: [named(20, "s.a", less)]})),
            {name: target},
            lake.spark,
            BatchContext(target_of=lake.target),
        )
        lake.merge({name: [rows(less, 21, UPDATE_AFTER, (2, 21))]}, deletes=deletes)
    assert lake.rows("s.soft", "id", "a", "gone", "_sluice_deleted") == [(1, 10, "x", True), (2, 21, None, False)]
    assert lake.rows("s.hard", "id", "a", "gone") == [(2, 21, None)]


@pytest.mark.spark
def test_ddl_identity_rows_of_a_table_that_is_not_as_it_was_left_are_not_taken(lake: Lake) -> None:
    """The table with the old name is missing, for example because a disk is not mounted, or conf/ selects other columns for the new name.
    The merge is refused, and the existing rows stay.
    """
    records = Records()
    targets = {name: lake.target(name) for name in BEFORE}
    merge_batch(read_staged_batch(lake.stage(BEFORE)), targets, lake.spark, BatchContext(records=records))
    away = Path(lake.target("s.a").path)
    away.rename(away.with_name("away"))
    swap: dict[str, list[Segment]] = {"s.b": [named(20, "s.a", A)]}
    context = BatchContext(records=records, target_of=lake.target)
    with pytest.raises(MergeError, match=r"renamed from s\.a.*is missing") as reported:
        merge_batch(read_staged_batch(lake.stage(swap)), {"s.b": targets["s.b"]}, lake.spark, context)
    assert [(each.table, each.state, each.for_good) for each in reported.value.errors] == [("s.b", TABLE_MISSING, True)]
    away.with_name("away").rename(away)
    for other in (Schema({**A.columns, "more": "int"}, A.key), Schema({**A.columns, "a": "bigint"}, A.key)):
        unlike: dict[str, list[Segment]] = {"s.b": [named(20, "s.a", other)]}
        with pytest.raises(MergeError, match="conf/ has different settings for the two names") as reported:
            merge_batch(read_staged_batch(lake.stage(unlike)), {"s.b": targets["s.b"]}, lake.spark, context)
        assert [(each.state, each.for_good) for each in reported.value.errors] == [("DDL_UNSUPPORTED", True)]
    assert lake.rows("s.b", "code") == [("k",), ("l",)]


@pytest.mark.spark
def test_ddl_identity_a_quarantined_value_of_the_table_that_had_the_name_is_not_put_back(lake: Lake) -> None:
    lake.merge({"s.a": [rows(LOG, 1, INSERT, ("one",))]})
    tables: dict[str, list[Segment]] = {"s.b": [named(20, "s.a", LOG)]}
    merge_batch(
        read_staged_batch(lake.stage(tables)),
        {"s.b": lake.target("s.b")},
        lake.spark,
        BatchContext(target_of=lake.target),
    )
    lake.merge({"s.b": [rows(LOG, 21, INSERT, (None,))]})
    file = lake.folder / "values.parquet"
    values: dict[str, list[Any]] = {
        "number": [0, 1],
        "order_key": [1, 21],
        "value": ["one", "two"],
        "named_0": [None, None],
    }
    pq.write_table(pa.table(values, pa.schema({name: TYPES.get(name, pa.string()) for name in values})), file)
    with open_sessions(lake.spark, 1, BY_HAND) as (session,):
        given = RowValues(file=file, type_name="string", names=["other"], keyed=False)
        table = ReplayedTable(
            session=session,
            owner=Owner(ledger_id=LEDGER_ID, destination="shop", table="s.b"),
            target=lake.target("s.b"),
            records=NO_RECORDS,
            storage_options={},
        )
        assert put_back(table, "word", given) == {1}
    assert lake.rows("s.b", "word") == [("one",), ("two",)]


def test_ddl_a_batch_with_rows_and_a_rename_is_refused(tmp_path: Path) -> None:
    lake = Lake(tmp_path, None)  # type: ignore[arg-type]  # nothing is merged
    directory = lake.stage({"s.a": [named(20, "s.b", B)], "s.c": [rows(LOG, 21, INSERT, ("x",))]})
    with pytest.raises(StagedBatchError, match="has rows from before or after the rename"):
        read_staged_batch(directory)
