"""Tests tables above the limit of small merges: only Spark reads the rows of a history's changes, and the rows of the history for a
schema change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow.parquet as pq
import pytest

from sluice.spark_jobs.batch.context import BatchContext
from sluice.spark_jobs.batch.run_batch import merge_batch
from sluice.spark_jobs.errors import SparkUnavailableError
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.merging.context import BY_HAND_CONTEXT
from sluice.spark_jobs.session import LakeSession, SparkSettings, open_sessions
from sluice.spark_jobs.side_tables import history
from sluice.spark_jobs.side_tables.write import Share, write_side_tables
from sluice.spark_jobs.staged_files.read import read_staged_batch
from tests.spark.conftest import Lake
from tests.spark.side_tables.fix_side_tables import NAME, LoggedTable, before, changes, delete, insert, update
from tests.spark.snapshot.test_publish_snapshot import Holding
from tests.spark.staged import UPDATE_AFTER, Changes, Image, Schema, SchemaChange

pytestmark = pytest.mark.spark

WIDER = Schema({"id": "bigint", "note": "string", "price": "decimal(10,2)", "mark": "binary"}, ("id",))
COLUMNS = "id, note, valid_from, valid_to, _sluice_from_order_key, _sluice_to_order_key, is_current, _sluice_operation"


@pytest.fixture
def logged(tmp_path: Path) -> LoggedTable:
    return LoggedTable(tmp_path)


@pytest.fixture
def session(lake: Lake) -> Iterator[LakeSession]:
    with open_sessions(lake.spark, 1, BY_HAND) as (opened,):
        yield opened


def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("this process reads rows")


def write_large(logged: LoggedTable, session: LakeSession, directory: Path, patch: pytest.MonkeyPatch) -> str:
    """Writes the history of a batch twice, as two deliveries do, while this process may read no rows. Returns the path of the history."""
    batch, path = read_staged_batch(directory), f"{logged.folder}/large"
    target = dataclasses.replace(logged.target, change_log="", merge="auto", history=path)
    with patch.context() as limited:
        limited.setattr(history, "ROWS_MAX", 0)
        limited.setattr(history, "QueryBuilder", refuse)
        limited.setattr(pq, "read_table", refuse)
        for _ in range(2):  # The batch is delivered twice.
            share = Share(batch=batch, staged=batch.tables[0], target=target, context=BY_HAND_CONTEXT)
            write_side_tables(session, share)
    return path


def test_a_large_history_is_as_a_small_one_history(
    logged: LoggedTable, session: LakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = [insert(1, 16), update(1, 32, "a"), update(1, 32, "b"), insert(2, 32), insert(3, 32), insert(4, 32)]
    moved = [before(1, 48, "b"), update(5, 48), delete(2, 48), insert(2, 64), update(3, 64), delete(4, 64)]
    fills = (("price", "7.50"), ("mark", "00ff"))
    again = Image(UPDATE_AFTER, 96, {"id": 3, "note": "c", "price": Decimal("1.25"), "mark": b"x"})
    for segments in (
        [changes(first)],
        [changes(moved)],
        [SchemaChange(80, WIDER, fills=fills)],
        [Changes(WIDER, [again], log=[again])],
    ):
        directory = logged.stage(*segments)
        logged.write(directory)
        path = write_large(logged, session, directory, monkeypatch)
        columns = f"{COLUMNS}, price, mark" if "price" in deltalake.DeltaTable(path).schema().to_json() else COLUMNS
        order = "id, _sluice_from_order_key"
        found = logged.rows(path, columns, order)
        assert found == logged.rows(logged.target.history, columns, order)
    assert [row[0] for row in found if row[4] == 80] == [2, 3, 5]


def test_spark_reads_a_large_history_while_the_snapshot_of_its_table_runs_history(
    logged: LoggedTable, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch has only this table, whose changes are buffered. So it needs Spark only because the history is large."""
    holds = Holding(logged.folder / "held")
    holds.begin(NAME)
    directories = [logged.stage(changes([insert(1, 16), insert(2, 16)])), logged.stage(changes([update(1, 32)]))]
    context, target = BatchContext(buffers=holds), dataclasses.replace(logged.target, merge="auto")
    no_spark = SparkSettings(remote="sc://127.0.0.1:1")
    merge_batch(read_staged_batch(directories[0]), {NAME: target}, no_spark, context)
    with monkeypatch.context() as limited:
        limited.setattr(history, "ROWS_MAX", 1)
        with pytest.raises(SparkUnavailableError):
            merge_batch(read_staged_batch(directories[1]), {NAME: target}, no_spark, context)
        limited.setattr(deltalake.DeltaTable, "merge", refuse)
        merge_batch(read_staged_batch(directories[1]), {NAME: target}, lake.spark, context)
    assert logged.history() == [(1, "n16", 16, 32, False), (1, "n32", 32, None, True), (2, "n16", 16, None, True)]


def test_spark_reads_a_large_current_state_table_that_a_new_history_lacks_history(
    logged: LoggedTable, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history was enabled while a re-snapshot reads the rows of the table. So it begins with the rows of the current-state table."""
    logged.merge(logged.stage(changes([insert(1, 16), insert(2, 16)])))
    holds = Holding(logged.folder / "held")
    holds.begin(NAME)
    directory, target = logged.stage(changes([update(1, 32)])), dataclasses.replace(logged.target, merge="auto")
    context = BatchContext(buffers=holds)
    with monkeypatch.context() as limited:
        limited.setattr(history, "ROWS_MAX", 2)
        with pytest.raises(SparkUnavailableError):
            merge_batch(read_staged_batch(directory), {NAME: target}, SparkSettings(remote="sc://127.0.0.1:1"), context)
        limited.setattr(history, "ROWS_MAX", 1)
        limited.setattr(history, "QueryBuilder", refuse)
        merge_batch(read_staged_batch(directory), {NAME: target}, lake.spark, context)
    assert logged.history() == [(1, "n16", 16, 32, False), (1, "n32", 32, None, True), (2, "n16", 16, None, True)]
