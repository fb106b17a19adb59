"""Tests that a table stops if another program dropped or renamed a column of its change log or history."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import deltalake
import pytest

from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.maintain.side_tables import MaintainedSideTable, vacuum
from sluice.spark_jobs.maintain.tables import MaintainedTable
from sluice.spark_jobs.session import open_sessions
from sluice.spark_jobs.sql_text import delta_path
from sluice.spark_jobs.table_owner import Owner
from tests.spark.conftest import Lake
from tests.spark.side_tables.fix_side_tables import NAME, ORDERS, LoggedTable, changes, insert, update
from tests.spark.staged import LEDGER_ID, Changes, Schema, SchemaChange, Truncate

RENAME = {"kind": "rename", "column": "note", "new_name": "text"}
TEXTS = Schema({"id": "bigint", "text": "string"}, ("id",))


@pytest.fixture
def logged(tmp_path: Path) -> LoggedTable:
    """Sets up a change log and a history with one row."""
    table = LoggedTable(tmp_path)
    write(table, changes([insert(1, 16, "a")]))
    return table


def write(logged: LoggedTable, *segments: Any, only: str = "") -> None:
    """Writes one batch into the change log and the history, or only into one of them."""
    left = {"log": {"history": ""}, "history": {"change_log": ""}}.get(only, {})
    logged.write(logged.stage(*segments), **left)


def remove(path: str, column: str, **parameters: str) -> None:
    """Commits, as another program, the removal of a column or of a struct's field, "struct.field"."""
    log = deltalake.DeltaTable(path)
    schema, there = json.loads(log.schema().to_json()), log.metadata()
    fields, name = schema["fields"], column
    if "." in column:
        outer, name = column.split(".")
        fields = next(field for field in fields if field["name"] == outer)["type"]["fields"]
    fields[:] = [field for field in fields if field["name"] != name]
    metadata = {
        "id": str(there.id),
        "name": there.name,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": [],
        "configuration": there.configuration,
    }
    info = {"timestamp": 1, "operation": "DROP COLUMNS", "operationParameters": parameters}
    commit = Path(path, "_delta_log", f"{log.version() + 1:020}.json")
    commit.write_text(f"{json.dumps({'commitInfo': info})}\n{json.dumps({'metaData': metadata})}\n")


def maintain(logged: LoggedTable, kind: str) -> None:
    """Maintains the change log or the history."""
    owner = Owner(ledger_id=LEDGER_ID, destination="shop", table=NAME)
    current_state = MaintainedTable(owner=owner, path=logged.target.path, records=logged.records, fence=BY_HAND)
    assert vacuum(MaintainedSideTable(current_state=current_state, path=logged.paths[kind], kind=kind), 168)


REMOVED = [("log", "before.note"), ("log", "after.note"), ("history", "note"), ("history", "valid_to")]


@pytest.mark.found
@pytest.mark.parametrize("named", [True, False], ids=["named", "nameless"])
@pytest.mark.parametrize("maintained", [True, False], ids=["maintained", "at once"])
@pytest.mark.parametrize(("kind", "column"), REMOVED)
def test_identity_a_removed_column_of_a_log_or_history_stops_the_table_history(
    logged: LoggedTable, kind: str, column: str, *, maintained: bool, named: bool
) -> None:
    """Defect 1102: if another program removed a column of a change log or history, the column was added again with NULL in earlier rows,
    or four runs failed with an error of deltalake.
    """
    path = logged.paths[kind]
    remove(path, column, **({"columns": json.dumps([column])} if named else {}))
    if maintained:
        maintain(logged, kind)
    version = deltalake.DeltaTable(path).version()
    for segments in ([changes([update(1, 32, "A")])], [Truncate(32), changes([insert(1, 48)])]):
        with pytest.raises(TableError, match=f"Sluice still needs {column}: .* move this table away") as refused:
            write(logged, *segments)
        assert (refused.value.state, refused.value.for_good) == ("TABLE_RESTORED", True)
    assert deltalake.DeltaTable(path).version() == version
    with pytest.raises(TableError, match=f"Sluice still needs {column}:"):
        write(logged, SchemaChange(64, TEXTS, (RENAME,))) if "note" in column else write(
            logged, changes([insert(2, 64)])
        )


@pytest.mark.found
@pytest.mark.parametrize(("kind", "column"), [("log", "after.id__int"), ("history", "id__int")])
def test_identity_a_removed_column_for_another_type_stops_the_table_also_after_maintenance_history(
    logged: LoggedTable, kind: str, column: str
) -> None:
    """Test for defect 1102: maintenance stored the version of the table from which a program had removed the column, so that the next batch
    did not notice this.
    """
    narrow = dataclasses.replace(ORDERS, columns={**ORDERS.columns, "id": "int"})
    first, second = ([update(1, order_key, "A")] for order_key in (32, 48))
    write(logged, Changes(narrow, first, log=first))
    remove(logged.paths[kind], column, columns=json.dumps([column]))
    maintain(logged, kind)
    with pytest.raises(TableError, match=f"Sluice still needs {column}:"):
        write(logged, Changes(narrow, second, log=second), only=kind)


@pytest.mark.found
@pytest.mark.parametrize(("kind", "column"), [("log", "after.more"), ("history", "more")])
def test_a_column_that_the_source_dropped_may_be_removed_from_a_log_or_history_history(
    logged: LoggedTable, kind: str, column: str
) -> None:
    """Test for defect 1102."""
    wider = dataclasses.replace(ORDERS, columns={**ORDERS.columns, "more": "string"})
    images = [insert(2, 32)]
    write(logged, Changes(wider, images, log=images))
    remove(logged.paths[kind], column, columns=json.dumps([column]))
    write(logged, changes([insert(3, 48)]), only=kind)


@pytest.mark.found
@pytest.mark.spark
def test_identity_the_version_before_a_removed_column_is_restored_in_log_and_history_history(
    lake: Lake, logged: LoggedTable
) -> None:
    """Test for defect 1102: Spark removes the columns, and the advice of the error is followed."""
    removals = {"log": "RENAME COLUMN after.`note` TO other", "history": "DROP COLUMN note"}
    with open_sessions(lake.spark, 1) as (session,):
        for number, (kind, removal) in enumerate(removals.items(), start=1):
            table = delta_path(logged.paths[kind])
            before = deltalake.DeltaTable(logged.paths[kind]).version()
            session.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
            session.spark.sql(f"ALTER TABLE {table} {removal}")
            with pytest.raises(TableError, match=r"by another program, and Sluice still needs (after\.)?note:"):
                write(logged, changes([update(1, 32 * number, "A")]), only=kind)
            session.spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF {before}")
            write(logged, changes([update(1, 32 * number, "B")]), only=kind)
        found = session.spark.sql(f"SELECT after.note FROM {delta_path(logged.paths['log'])} ORDER BY order_key")
        assert [row[0] for row in found.collect()] == ["a", "B"]
        found = session.spark.sql(f"SELECT note FROM {delta_path(logged.paths['history'])} ORDER BY valid_from")
        assert [row[0] for row in found.collect()] == ["a", "B"]
