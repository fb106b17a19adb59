"""Tests that Spark merges a history as deltalake does, and that a merge writes the current-state table, the change log and the history."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from pathlib import Path

import pytest

from sluice.spark_jobs.batch.run_batch import merge_batch
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.merging.context import BY_HAND_CONTEXT
from sluice.spark_jobs.session import open_sessions
from sluice.spark_jobs.side_tables.history import History
from sluice.spark_jobs.side_tables.side_table import SideTable, side_app_id
from sluice.spark_jobs.side_tables.write import Share, write_side_tables
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.tables.delta_table import DeltaTable
from tests.spark.conftest import Lake
from tests.spark.side_tables.fix_side_tables import NAME, LoggedTable, before, changes, delete, insert, update
from tests.spark.staged import DELETE, Changes, Image, Schema, SchemaChange, Truncate

pytestmark = pytest.mark.spark

OTHER = Schema({"id": "decimal(20,0)", "text": "string"}, ("id",))


@pytest.fixture
def logged(tmp_path: Path) -> LoggedTable:
    return LoggedTable(tmp_path)


def test_by_spark_a_history_is_as_by_deltalake_history(logged: LoggedTable, lake: Lake) -> None:
    batches = [
        logged.stage(changes([insert(1, 16), update(1, 32), insert(2, 32), insert(3, 32)])),
        logged.stage(changes([before(1, 48, "n32"), update(4, 48), delete(2, 48), insert(2, 64)])),
        logged.stage(Truncate(80), changes([insert(1, 96), insert(2, 96)])),
    ]
    by_spark = dataclasses.replace(logged.target, change_log="", merge="spark", history=f"{logged.folder}/by_spark")
    with open_sessions(lake.spark, 1, BY_HAND) as (session,):
        for directory in batches:
            logged.write(directory)
            batch = read_staged_batch(directory)
            for _ in range(2):  # The batch is delivered twice.
                write_side_tables(
                    session,
                    Share(batch=batch, staged=batch.tables[0], target=by_spark, context=BY_HAND_CONTEXT),
                )
        columns = "id, note, valid_from, valid_to, _sluice_from_order_key, _sluice_to_order_key, is_current, _sluice_operation"
        order = "id, _sluice_from_order_key"
        assert logged.rows(by_spark.history, columns, order) == logged.rows(logged.target.history, columns, order)
        logged.merge(logged.stage(changes([insert(1, 96, "n96"), insert(5, 112)])))
        batch = read_staged_batch(logged.stage(changes([insert(9, 112)])))
        current_state = DeltaTable(NAME, logged.target.path, batch.app_id(batch.tables[0]), {})
        version = current_state.refresh().version
        for path, each in ((by_spark.history, session), (logged.target.history, None)):
            table = SideTable(NAME, path, side_app_id(batch, batch.tables[0], "history"), {}, fence=BY_HAND).open()
            given = History(table=table, folder=logged.folder, session=each, by_spark=each is not None)
            given.take(current_state, version, ["id"], (112, 1_000), "{}")
        alterations = ({"kind": "rename", "column": "note", "new_name": "text"}, {"kind": "convert", "column": "id"})
        gone = [Image(DELETE, 144, {"id": Decimal(5), "text": "x"})]
        directory = logged.stage(SchemaChange(128, OTHER, alterations=alterations), Changes(OTHER, gone, log=gone))
        batch = read_staged_batch(directory)
        logged.write(directory, change_log="")
        write_side_tables(session, Share(batch=batch, staged=batch.tables[0], target=by_spark, context=BY_HAND_CONTEXT))
        seen = f"{columns}, id__decimal_20_0, text"
        assert logged.rows(by_spark.history, seen, order) == logged.rows(logged.target.history, seen, order)
        assert {row[0] for row in logged.rows(by_spark.history, "text", "text")} == {"n112", "n96", None}
        for path, each in ((by_spark.history, session), (logged.target.history, None)):
            table = SideTable(NAME, path, side_app_id(batch, batch.tables[0], "history"), {}, fence=BY_HAND).open()
            History(table=table, folder=logged.folder, session=each, by_spark=each is not None).leave(160, 1_000, "{}")
    assert logged.rows(by_spark.history, columns, order) == logged.rows(logged.target.history, columns, order)
    assert [row[:2] for row in logged.history() if row[3] == 160] == [(1, "n96")]
    assert not [row for row in logged.history() if row[4]]


def test_a_merge_writes_current_state_table_log_and_history_history(logged: LoggedTable, lake: Lake) -> None:
    images = [insert(1, 16, "a"), update(1, 32, "b")]
    directory = logged.stage(changes(images, [images[0], before(1, 32, "a"), images[1]]))
    for _ in range(2):
        (report,) = merge_batch(read_staged_batch(directory), {NAME: logged.target}, lake.spark)
        assert report.name == NAME
    assert logged.rows(logged.target.path, "id, note", "id") == [(1, "b")]
    assert logged.rows(logged.target.change_log, "operation, before['note']", "order_key") == [
        ("insert", None),
        ("update", "a"),
    ]
    assert logged.history() == [(1, "a", 16, 32, False), (1, "b", 32, None, True)]
