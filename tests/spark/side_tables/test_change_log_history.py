"""Tests the change log: it has every change exactly once, with the row before and after, even if batches are delivered again."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.spark_jobs.batch.run_batch import merge_batch
from sluice.spark_jobs.cascades.files import DERIVED
from sluice.spark_jobs.errors import StagedBatchError, TableError
from sluice.spark_jobs.merging.context import BY_HAND_CONTEXT
from sluice.spark_jobs.session import SparkSettings
from sluice.spark_jobs.side_tables.write import Share, write_side_tables
from sluice.spark_jobs.staged_files.read import read_staged_batch
from tests.spark.side_tables.fix_side_tables import NAME, ORDERS, LoggedTable, before, changes, delete, insert, update
from tests.spark.staged import Changes, Image, Schema, SchemaChange, Truncate

COLUMNS = 'operation, order_key, "row", before, after'


@pytest.fixture
def logged(tmp_path: Path) -> LoggedTable:
    return LoggedTable(tmp_path)


def log(logged: LoggedTable, columns: str = COLUMNS) -> list[tuple[object, ...]]:
    return logged.rows(logged.target.change_log, columns, 'order_key, "row"')


def test_the_log_of_a_batch_has_each_change_with_before_and_after_history(logged: LoggedTable) -> None:
    images = [insert(1, 16, "a"), insert(2, 16, "b"), before(1, 32, "a"), update(1, 32, "A"), delete(2, 48, "b")]
    logged.write(logged.stage(changes([image for image in images if image.operation != 2], images)))
    assert log(logged) == [
        ("insert", 16, 1, None, {"id": 1, "note": "a"}),
        ("insert", 16, 2, None, {"id": 2, "note": "b"}),
        ("update", 32, 1, {"id": 1, "note": "a"}, {"id": 1, "note": "A"}),
        ("delete", 48, 1, {"id": 2, "note": "b"}, None),
    ]


def test_a_batch_that_comes_again_with_the_same_or_another_end_doubles_nothing_history(logged: LoggedTable) -> None:
    first = logged.stage(changes([insert(1, 16), insert(2, 32)]))
    logged.write(first)
    logged.write(first)
    logged.write(logged.stage(changes([insert(1, 16), insert(2, 32), insert(3, 48)])))
    assert [row[1] for row in log(logged)] == [16, 32, 48]
    assert deltalake.DeltaTable(logged.target.change_log).version() == 2


def test_a_batch_killed_between_the_commits_of_table_and_log_is_finished_history(logged: LoggedTable) -> None:
    directory = logged.stage(changes([insert(1, 16)]))
    logged.merge(directory)  # Then the run dies.
    logged.merge(directory)
    logged.write(directory)
    assert [row[1] for row in log(logged)] == [16]
    assert len(logged.history()) == 1


def test_a_truncate_and_a_statement_are_rows_history(logged: LoggedTable) -> None:
    wider = Schema({**ORDERS.columns, "price": "decimal(10,2)"}, ("id",))
    after = Image(1, 64, {"id": 2, "note": "b", "price": None})
    logged.write(
        logged.stage(
            changes([insert(1, 16, "a")]),
            Truncate(32),
            SchemaChange(48, wider, alterations=({"kind": "add", "column": "price"},)),
            Changes(wider, [after], log=[after]),
        )
    )
    assert [row[:2] for row in log(logged)] == [("insert", 16), ("truncate", 32), ("schema", 48), ("insert", 64)]
    (reported,) = (row[0] for row in log(logged, "detail") if row[0])
    assert [each["column"] for each in json.loads(str(reported))["alterations"]] == ["price"]
    assert log(logged)[0][4] == {"id": 1, "note": "a", "price": None}


def test_a_log_may_begin_with_a_statement_history(logged: LoggedTable) -> None:
    logged.write(logged.stage(SchemaChange(16, ORDERS)))
    logged.write(logged.stage(changes([insert(1, 32, "a")])))
    assert [row[0] for row in log(logged)] == ["schema", "insert"]


def test_a_column_of_another_type_continues_in_a_field_of_its_own_history(logged: LoggedTable) -> None:
    logged.write(logged.stage(changes([insert(1, 16, "a")])))
    other = Schema({"id": "bigint", "note": "timestamp_ntz"}, ("id",))
    image = Image(1, 32, {"id": 2, "note": None})
    logged.write(logged.stage(Changes(other, [image], log=[image])))
    assert log(logged)[1][4] == {"id": 2, "note": None, "note__timestamp_ntz": None}


def test_images_that_lack_columns_say_which_they_have_history(logged: LoggedTable) -> None:
    images = [Image(2, 16, {"id": 1}), Image(3, 16, {"id": 1, "note": "x"})]
    logged.write(logged.stage(Changes(ORDERS, images[1:], partial=True, log=images)), history="")
    ((preimage, now),) = log(logged, "before_present, after_present")
    assert (preimage, now) == (["id"], None)


def test_a_batch_that_was_staged_without_preimages_is_staged_again_history(logged: LoggedTable) -> None:
    """The batch is staged again before anything is merged. No Spark answers here, and none is called."""
    directory = logged.stage(Changes(ORDERS, [insert(1, 16)]))
    with pytest.raises(StagedBatchError, match="staged before change_log was set"):
        merge_batch(read_staged_batch(directory), {NAME: logged.target}, SparkSettings(remote="sc://127.0.0.1:1"))
    assert not (logged.folder / "lake").exists()


def test_what_foreign_keys_changed_is_in_the_log_by_name_history(logged: LoggedTable) -> None:
    """The segment is as `cascades.files` writes it. One file has the staged and the derived images, and the log's file is in the parent
    folder.
    """
    batch = read_staged_batch(logged.stage(changes([insert(1, 16, "a")])))
    (staged,) = batch.tables
    (segment,) = staged.changes
    derived = [delete(2, 16, "b"), update(3, 16, "c")]
    folder = batch.directory / "derived"
    folder.mkdir()
    other = read_staged_batch(logged.stage(changes(derived))).tables[0].changes[0]
    images = pa.concat_tables([pq.read_table(segment.file), pq.read_table(other.file)])
    pq.write_table(images.append_column(DERIVED, pa.array([False, True, True])), folder / "shop.orders.parquet")
    carried = dataclasses.replace(
        segment, file=folder / "shop.orders.parquet", log=f"../{segment.log}", derived=True, rows=3
    )
    share = Share(
        batch=batch,
        staged=dataclasses.replace(staged, segments=(carried,)),
        target=dataclasses.replace(logged.target, history=""),
        context=BY_HAND_CONTEXT,
    )
    for _ in range(2):
        write_side_tables(None, share)
    found = logged.rows(logged.target.change_log, 'operation, "row", before, after, origin', "operation")
    assert found == [
        ("delete", None, {"id": 2, "note": "b"}, None, "foreign key"),
        ("insert", 1, None, {"id": 1, "note": "a"}, None),
        ("update", None, None, {"id": 3, "note": "c"}, "foreign key"),
    ]


def test_a_log_of_another_one_is_not_written_to_history(logged: LoggedTable) -> None:
    logged.write(logged.stage(changes([insert(1, 16)])))
    with pytest.raises(TableError, match="move that table away"):
        logged.write(logged.stage(changes([insert(1, 32)])), change_log=logged.target.history, history="")
