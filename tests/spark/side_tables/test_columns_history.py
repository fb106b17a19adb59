"""Tests that open versions of a history continue after DDL: after a key gets another type or name, columns swap their names, or tables are
renamed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deltalake
import pytest

from sluice.equality import history_side
from sluice.equality.history_side import HistorySide
from sluice.equality.table_plan import ORDER_KEY
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.merging.context import MergeContext
from sluice.spark_jobs.side_tables.columns import SOURCE, MappedColumns, mapping_of
from sluice.spark_jobs.side_tables.side_table import SideTable
from sluice.spark_jobs.side_tables.write import Share, names_given, write_side_tables
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.targets.report import TableTarget
from tests.spark.side_tables.fix_side_tables import NAME, ORDERS, LoggedTable, changes, delete, insert, update
from tests.spark.staged import Changes, Image, Schema, SchemaChange, stage

NARROW = Schema({"id": "int", "note": "string"}, ("id",))
TEXT = Schema({"id": "string", "note": "string"}, ("id",))


@pytest.fixture
def logged(tmp_path: Path) -> LoggedTable:
    return LoggedTable(tmp_path)


def images(schema: Schema, *given: tuple[int, int, dict[str, Any]]) -> Changes:
    """Returns (operation, position, values) of each image."""
    found = [Image(*each) for each in given]
    return Changes(schema, found, log=found)


def altered(kind: str, column: str, new_name: str = "") -> tuple[dict[str, str], ...]:
    return ({"kind": kind, "column": column, "new_name": new_name},)


def found(logged: LoggedTable, columns: str) -> list[tuple[Any, ...]]:
    order = "_sluice_from_order_key"
    return logged.rows(logged.target.history, f"{columns}, {order}, _sluice_to_order_key", f"{order}, note")


def test_a_key_of_another_type_closes_what_was_open_and_so_it_does_back_again_history(logged: LoggedTable) -> None:
    first = images(NARROW, (1, 16, {"id": 1, "note": "a"}), (1, 16, {"id": 2, "note": "b"}))
    wider = SchemaChange(32, ORDERS, alterations=altered("widen", "id"))
    logged.write(logged.stage(first))
    logged.write(logged.stage(wider, changes([update(1, 48, "A"), insert(3, 48, "c")])))
    assert found(logged, "id, id__bigint, note") == [
        (1, 1, "a", 16, 48),
        (2, 2, "b", 16, None),
        (None, 1, "A", 48, None),
        (None, 3, "c", 48, None),
    ]
    narrower = SchemaChange(64, NARROW, alterations=altered("convert", "id"))
    logged.write(
        logged.stage(narrower, images(NARROW, (4, 80, {"id": 3, "note": "c"}), (4, 80, {"id": 2, "note": "b"})))
    )
    assert [row[2:5] for row in found(logged, "id, id__bigint, note") if row[4]] == [
        ("a", 16, 48),
        ("b", 16, 80),
        ("c", 48, 80),
    ]


def test_a_crash_between_the_new_column_and_its_values_is_made_good_history(
    logged: LoggedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged.write(logged.stage(images(NARROW, (1, 16, {"id": 1, "note": "a"}))))
    directory = logged.stage(changes([update(1, 48, "A")]))  # No segment contains the statement.
    add = SideTable.add

    def dies(self: SideTable, columns: Any) -> None:
        add(self, columns)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SideTable, "add", dies)
        with pytest.raises(KeyboardInterrupt):
            logged.write(directory)
    logged.write(directory)
    assert found(logged, "id__bigint, note") == [(1, "a", 16, 48), (1, "A", 48, None)]


def test_a_renamed_key_closes_what_was_open_history(logged: LoggedTable) -> None:
    logged.write(logged.stage(changes([insert(1, 16, "a")])))
    named = Schema({"Nr": "bigint", "note": "string"}, ("Nr",))
    change = SchemaChange(32, named, alterations=altered("rename", "id", "Nr"))
    logged.write(logged.stage(change, images(named, (3, 48, {"Nr": 1, "note": "A"}))))
    assert found(logged, 'id, "Nr", note') == [(1, 1, "a", 16, 48), (None, 1, "A", 48, None)]


def test_columns_that_swap_their_names_swap_once_history(logged: LoggedTable) -> None:
    two = Schema({"id": "bigint", "note": "string", "other": "string"}, ("id",))
    logged.write(logged.stage(images(two, (1, 16, {"id": 1, "note": "a", "other": "b"}))))
    swap = (*altered("rename", "note", "other"), *altered("rename", "other", "note"))
    directory = logged.stage(SchemaChange(32, two, alterations=swap))
    for _ in range(2):
        logged.write(directory)
    assert found(logged, "note, other") == [("b", "a", 16, None)]


def test_a_column_that_is_added_again_has_no_values_of_the_one_before_history(logged: LoggedTable) -> None:
    priced = Schema({**ORDERS.columns, "price": "int"}, ("id",))
    logged.write(logged.stage(images(priced, (1, 16, {"id": 1, "note": "a", "price": 7}))))
    dropped = SchemaChange(32, ORDERS, alterations=altered("drop", "price"))
    again = SchemaChange(
        48, Schema({**ORDERS.columns, "price": "bigint"}, ("id",)), alterations=altered("add", "price")
    )
    logged.write(logged.stage(dropped, again))
    assert found(logged, "price, price__bigint") == [(7, None, 16, None)]


TYPED = Schema({"id": "bigint", "note": "string", "a": "int", "a__bigint": "bigint"}, ("id",))
WIDENED = Schema({**TYPED.columns, "a": "bigint"}, ("id",))
BEGUN = images(TYPED, (1, 16, {"id": 1, "note": "x", "a": 2, "a__bigint": 3}))


def logged_values(logged: LoggedTable, columns: str) -> list[tuple[Any, ...]]:
    fields = ", ".join(f"after.{name}" for name in columns.split(", "))
    return logged.rows(logged.target.change_log, fields, "order_key")


@pytest.mark.found
def test_a_column_of_another_type_gets_no_column_that_stores_another_column_of_the_source_history(
    logged: LoggedTable,
) -> None:
    """Defect 1103: the source has a column `a__bigint`, and its column `a` becomes a BIGINT. The history and the change log stored both
    columns in the column `a__bigint`.
    """
    widened = SchemaChange(32, WIDENED, alterations=altered("widen", "a"))
    after = images(WIDENED, (3, 48, {"id": 1, "note": "x", "a": 20, "a__bigint": 30}))
    logged.write(logged.stage(BEGUN))
    for segments in ((widened, after), (images(WIDENED, (3, 64, {"id": 1, "note": "x", "a": 21, "a__bigint": 31})),)):
        logged.write(logged.stage(*segments))
    names = "a, a__bigint, a__bigint_2"
    assert found(logged, names) == [(2, 3, 2, 16, 48), (None, 30, 20, 48, 64), (None, 31, 21, 64, None)]
    later = [row for row in logged_values(logged, names) if row != (None, None, None)]
    assert later == [(2, 3, None), (None, 30, 20), (None, 31, 21)]
    side = HistorySide(NAME, logged.target.history, {}, WIDENED.columns)
    assert (side.spelled("a"), side.spelled("a__bigint")) == ("a__bigint_2", "a__bigint")


@pytest.mark.found
def test_a_new_column_of_the_source_gets_no_column_that_stores_values_of_another_type_history(
    logged: LoggedTable,
) -> None:
    """Test for defect 1103: here `a` becomes a BIGINT first, and then the source gets a column `a__bigint`."""
    before, between = (
        Schema({name: kind for name, kind in of.columns.items() if name != "a__bigint"}, ("id",))
        for of in (TYPED, WIDENED)
    )
    logged.write(logged.stage(images(before, (1, 16, {"id": 1, "note": "x", "a": 2}))))
    widened = SchemaChange(32, between, alterations=altered("widen", "a"))
    logged.write(logged.stage(widened, images(between, (3, 48, {"id": 1, "note": "x", "a": 20}))))
    more = SchemaChange(64, WIDENED, alterations=altered("add", "a__bigint"))
    after = images(WIDENED, (3, 80, {"id": 1, "note": "x", "a": 21, "a__bigint": 31}))
    logged.write(logged.stage(more, after))
    names = "a, a__bigint, a__bigint__bigint"
    assert found(logged, names) == [(2, 2, None, 16, 48), (None, 20, None, 48, 80), (None, 21, 31, 80, None)]
    later = [row for row in logged_values(logged, names) if row != (None, None, None)]
    assert later == [(2, None, None), (None, 20, None), (None, 21, 31)]


def as_before(path: str) -> None:
    """Removes the recorded columns of the source, which earlier versions of Sluice did not record."""
    log = deltalake.DeltaTable(path)
    schema = log.schema().to_json().replace(json.dumps({SOURCE: "a"}, separators=(",", ":")), "{}")
    assert SOURCE not in schema
    there = log.metadata()
    metadata = {
        "id": str(there.id),
        "name": there.name,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": [],
        "configuration": there.configuration,
    }
    Path(path, "_delta_log", f"{log.version() + 1:020}.json").write_text(json.dumps({"metaData": metadata}))


@pytest.mark.found
@pytest.mark.parametrize("kind", ["add", "rename"])
@pytest.mark.parametrize("recorded", [True, False])
def test_columns_that_an_earlier_version_added_keep_their_values_after_the_source_uses_their_names_history(
    logged: LoggedTable, kind: str, recorded: bool
) -> None:
    """Earlier versions of Sluice did not record the column of the source. If the source then renamed `a` to `a__bigint`, the values of the
    open versions were lost. If the source got a column `a__bigint`, this column got the values of `a`.
    """
    typed, wide = ({"id": "bigint", "note": "string", "a": kind} for kind in ("int", "bigint"))
    before, between = Schema(typed, ("id",)), Schema(wide, ("id",))
    rows = [{"id": number, "note": "x", "a": number} for number in (1, 2)]
    widened = SchemaChange(32, between, alterations=altered("widen", "a"))
    logged.write(logged.stage(images(before, *((1, 16, row) for row in rows)), widened))
    logged.write(logged.stage(images(between, *((3, 48, {**row, "a": 10}) for row in rows))))
    if not recorded:
        for path in logged.paths.values():
            as_before(path)
    logged.write(logged.stage(images(between, (3, 64, {**rows[0], "a": 11}))))
    kept = {"a": 12} if kind == "add" else {}
    after = Schema({"id": "bigint", "note": "string", **dict.fromkeys((*kept, "a__bigint"), "bigint")}, ("id",))
    change = SchemaChange(80, after, alterations=altered(kind, *(("a__bigint",) if kept else ("a", "a__bigint"))))
    logged.write(logged.stage(change, images(after, (3, 96, {"id": 1, "note": "x", **kept, "a__bigint": 5}))))
    names = "id, a__bigint, a__bigint__bigint"
    opened = [row[:3] for row in found(logged, names) if row[4] is None]
    assert sorted(opened) == [(1, kept.get("a"), 5), (2, 10, None if kept else 10)]
    assert logged_values(logged, names)[-1] == (1, kept.get("a"), 5)


@pytest.mark.found
def test_the_comparison_of_a_history_maps_all_columns_at_once_history(
    logged: LoggedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison mapped all columns again for each column, which took a minute for a table of 1,000 columns."""
    logged.write(logged.stage(BEGUN))
    side, calls = HistorySide(NAME, logged.target.history, {}, WIDENED.columns), list[int]()

    def counted(*given: Any) -> MappedColumns:
        calls.append(len(given[0]))
        return mapping_of(*given)

    monkeypatch.setattr(history_side, "mapping_of", counted)
    assert side.columns() == {"id": "bigint", "note": "string", "a": "int", "a__bigint": "bigint", ORDER_KEY: "bigint"}
    assert calls == [4]


def test_a_key_whose_values_do_not_fit_the_new_type_stops_by_name_history(logged: LoggedTable) -> None:
    logged.write(logged.stage(changes([insert(1, 16, "a")])))
    change = SchemaChange(32, TEXT, alterations=altered("convert", "id"))
    with pytest.raises(TableError, match="begins with the current rows") as refused:
        logged.write(logged.stage(change, images(TEXT, (3, 48, {"id": "1", "note": "A"}))))
    assert refused.value.for_good


def renamed(logged: LoggedTable, pairs: Sequence[tuple[str, str]]) -> None:
    """Merges a batch that renames tables at order key 64 into their histories. `pairs` has the old and the new name of each table. The
    current-state tables already have the new names. The batch is written twice, so that a repeated merge must change nothing.
    """
    tables = {new: [SchemaChange(64, ORDERS, renamed_from=old)] for old, new in pairs}
    batch = read_staged_batch(stage(logged.folder / "staging", tables, delivery=next(logged.deliveries)))
    for table in batch.tables:
        share = Share(
            batch=batch,
            staged=table,
            target=target(logged, table.name),
            context=MergeContext(target_of=lambda name: target(logged, name)),
            renamed=names_given(batch),
        )
        for _ in range(2):
            write_side_tables(None, share)


def target(logged: LoggedTable, name: str) -> TableTarget:
    path = f"{logged.folder}/lake/{name.replace('.', '/')}"
    return dataclasses.replace(logged.target, path=path, change_log="", history=f"{path}__history")


def test_a_table_that_got_a_name_has_versions_from_there_and_the_old_name_none_history(logged: LoggedTable) -> None:
    rows = changes([insert(1, 16, "a"), insert(2, 32, "b")])
    logged.write(logged.stage(rows))
    other = LoggedTable(logged.folder, logged.deliveries, name="shop.past")
    # A rename moves the current-state table to the new name before the histories are written, so the test fills this table first.
    other.merge(other.stage(changes([*rows.images, delete(9, 64)])))
    renamed(logged, [("shop.orders", "shop.past")])
    assert logged.history() == [(1, "a", 16, 64, False), (2, "b", 32, 64, False)]
    assert other.history() == [(1, "a", 64, None, True), (2, "b", 64, None, True)]


def test_tables_that_swap_their_names_keep_what_came_with_the_statement_history(logged: LoggedTable) -> None:
    other = LoggedTable(logged.folder, logged.deliveries, name="shop.past")
    for each, mine, theirs in ((logged, "a", "b"), (other, "b", "a")):
        each.write(each.stage(changes([insert(1, 16, mine), insert(2, 16, "same")])))
        each.merge(each.stage(changes([insert(1, 16, theirs), insert(2, 16, "same"), delete(9, 64)])))
    renamed(logged, [("shop.orders", "shop.past"), ("shop.past", "shop.orders")])
    assert logged.history() == [(1, "a", 16, 64, False), (1, "b", 64, None, True), (2, "same", 16, None, True)]
    assert other.history() == [(1, "b", 16, 64, False), (1, "a", 64, None, True), (2, "same", 16, None, True)]
