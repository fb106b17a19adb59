"""Tests history tables, which have every version of every row, merged by deltalake. test_history_on_spark.py merges them by Spark too."""

from __future__ import annotations

import dataclasses
import datetime as dt
from pathlib import Path

import deltalake
import pytest

from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.side_tables.history import History
from sluice.spark_jobs.side_tables.side_table import SideTable
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.tables.delta_table import DeltaTable
from tests.spark.side_tables.fix_side_tables import NAME, ORDERS, LoggedTable, before, changes, delete, insert, update
from tests.spark.staged import TIME_US, Changes, Image, Schema, SchemaChange, Truncate


@pytest.fixture
def logged(tmp_path: Path) -> LoggedTable:
    return LoggedTable(tmp_path)


def test_each_change_of_a_key_is_a_version_also_within_one_batch_history(logged: LoggedTable) -> None:
    logged.write(logged.stage(changes([insert(1, 16), update(1, 32), update(1, 48), insert(2, 48)])))
    logged.write(logged.stage(changes([delete(2, 64), update(1, 80)])))
    assert logged.history() == [
        (1, "n16", 16, 32, False),
        (1, "n32", 32, 48, False),
        (1, "n48", 48, 80, False),
        (1, "n80", 80, None, True),
        (2, "n48", 48, 64, False),
    ]
    times = logged.rows(logged.target.history, "valid_from, valid_to", "id, _sluice_from_order_key")
    first, until = times[0]
    assert first is not None
    assert until is not None
    assert [round(each.timestamp() * 1e6) for each in (first, until)] == [TIME_US + 16, TIME_US + 32]


def test_a_changed_key_closes_the_old_and_opens_the_new_history(logged: LoggedTable) -> None:
    logged.write(logged.stage(changes([insert(1, 16, "a")])))
    logged.write(logged.stage(changes([before(1, 32, "a"), update(2, 32, "a"), insert(1, 48, "b")])))
    assert logged.history() == [(1, "a", 16, 32, False), (1, "b", 48, None, True), (2, "a", 32, None, True)]


def test_of_a_transaction_that_changes_a_row_twice_the_last_state_counts_history(logged: LoggedTable) -> None:
    logged.write(logged.stage(changes([insert(1, 16, "a"), update(1, 16, "b"), delete(1, 32), insert(1, 32, "c")])))
    assert logged.history() == [(1, "b", 16, 32, False), (1, "c", 32, None, True)]


def test_a_truncate_closes_all_and_what_comes_after_opens_history(logged: LoggedTable) -> None:
    directory = logged.stage(changes([insert(1, 16), insert(2, 16)]), Truncate(32), changes([insert(1, 48)]))
    logged.write(directory)
    logged.write(directory)
    assert logged.history() == [(1, "n16", 16, 32, False), (1, "n48", 48, None, True), (2, "n16", 16, 32, False)]
    assert deltalake.DeltaTable(logged.target.history).version() == 3


def test_a_batch_that_comes_again_with_the_same_or_another_end_changes_nothing_history(logged: LoggedTable) -> None:
    images = [insert(1, 16), update(1, 32), delete(1, 48), insert(1, 64)]
    logged.write(logged.stage(changes(images[:2])))
    logged.write(logged.stage(changes(images)))
    seen = logged.history()
    logged.write(logged.stage(changes(images[1:])))
    assert logged.history() == seen
    assert [row[2:4] for row in seen] == [(16, 32), (32, 48), (64, None)]


def test_a_statement_that_adds_a_column_with_a_value_makes_new_versions_history(logged: LoggedTable) -> None:
    wider = Schema({**ORDERS.columns, "price": "int"}, ("id",))
    logged.write(logged.stage(changes([insert(1, 16, "a"), insert(2, 16, "b")]), changes([delete(2, 32)])))
    logged.write(logged.stage(SchemaChange(48, wider, fills=(("price", "7"),))))
    found = logged.rows(logged.target.history, "id, price, _sluice_from_order_key", "id, _sluice_from_order_key")
    assert found == [(1, None, 16), (1, 7, 48), (2, None, 16)]


@pytest.mark.found
def test_an_added_timestamp_with_a_default_makes_new_versions_history(logged: LoggedTable) -> None:
    """Defect 1206: after ADD of a TIMESTAMP with a DEFAULT, the merge of a small history failed with ArrowInvalid at each attempt."""
    wider = Schema({**ORDERS.columns, "made": "timestamp"}, ("id",))
    logged.write(logged.stage(changes([insert(1, 16)])))
    logged.write(logged.stage(SchemaChange(48, wider, fills=(("made", "2024-02-29 01:02:03.5"),))))
    found = logged.rows(logged.target.history, "made, _sluice_from_order_key", "_sluice_from_order_key")
    assert found == [(None, 16), (dt.datetime(2024, 2, 29, 1, 2, 3, 500_000, dt.UTC), 48)]


def test_a_column_that_comes_without_a_value_is_no_new_version_history(logged: LoggedTable) -> None:
    wider = Schema({**ORDERS.columns, "price": "int"}, ("id",))
    logged.write(logged.stage(changes([insert(1, 16)])))
    image = Image(3, 48, {"id": 1, "note": "x", "price": 3})
    logged.write(logged.stage(SchemaChange(32, wider), Changes(wider, [image], log=[image])))
    found = logged.rows(logged.target.history, "id, price, _sluice_from_order_key", "_sluice_from_order_key")
    assert found == [(1, None, 16), (1, 3, 48)]


def test_a_history_that_is_added_to_a_table_with_rows_begins_with_them_history(logged: LoggedTable) -> None:
    logged.merge(logged.stage(changes([insert(1, 16, "a"), insert(2, 32, "b")])))
    directory = logged.stage(changes([update(1, 48, "A"), update(1, 64, "AA")]))
    logged.merge(directory)
    logged.write(directory)
    assert logged.history() == [
        (1, "a", 16, 48, False),
        (1, "A", 48, 64, False),
        (1, "AA", 64, None, True),
        (2, "b", 32, None, True),
    ]


def test_rows_that_were_read_open_versions_and_close_what_is_gone_history(logged: LoggedTable) -> None:
    """The history takes its rows from the current-state table, after a snapshot has created this table again."""
    logged.write(logged.stage(changes([insert(1, 16, "a"), insert(2, 16, "b"), insert(3, 16, "c")])))
    logged.merge(logged.stage(changes([insert(1, 16, "a"), insert(2, 96, "B"), insert(4, 96, "d")])))
    batch = read_staged_batch(logged.stage(changes([insert(9, 96)])))
    (staged,) = batch.tables
    table = SideTable(
        NAME, logged.target.history, f"sluice/shop/{batch.ledger_id}/history/{NAME}", {}, fence=BY_HAND
    ).open()
    current_state = DeltaTable(NAME, logged.target.path, batch.app_id(staged), {})
    given = History(table=table, folder=logged.folder)
    at = (96, TIME_US + 96)
    assert given.take(current_state, current_state.refresh().version, ["id"], at, "{}")
    assert logged.history() == [
        (1, "a", 16, None, True),
        (2, "b", 16, 96, False),
        (2, "B", 96, None, True),
        (3, "c", 16, 96, False),
        (4, "d", 96, None, True),
    ]
    again = dataclasses.replace(given, table=table.open())
    assert not again.take(current_state, current_state.snapshot.version, ["id"], at, "{}")


@pytest.mark.parametrize(
    ("segment", "sentence"),
    [
        (Changes(Schema(ORDERS.columns), [insert(1, 16)]), "the table has no key"),
        (Changes(ORDERS, [Image(3, 16, {"id": 1})], partial=True), "binlog_row_image=FULL"),
        (
            Changes(Schema({"id": "bigint", "valid_to": "string"}, ("id",)), [Image(1, 16, {"id": 1})]),
            "a column valid_to, and the history needs a column of its own",
        ),
        (Changes(Schema({"id": "bigint", "a b": "string"}, ("id",)), [Image(1, 16, {"id": 1})]), "'a b'"),
    ],
)
def test_what_has_no_history_is_refused_by_a_sentence_history(
    logged: LoggedTable, segment: Changes, sentence: str
) -> None:
    with pytest.raises(TableError, match=sentence) as refused:
        logged.write(logged.stage(segment), change_log="")
    assert refused.value.for_good
