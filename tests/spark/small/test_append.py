"""Tests the appends that the job of small tables writes with pyarrow: they have the same commit and the same statistics as deltalake's own
append.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import exceptions

from sluice.spark_jobs.small import append
from sluice.spark_jobs.staged_batch import app_id_of
from sluice.spark_jobs.tables.delta_table import DeltaTable
from sluice.spark_jobs.tables.exact_bounds import writer_properties
from tests.spark.readers.locations import Location
from tests.spark.readers.readers import READERS
from tests.spark.small.test_small_merge import ABC, NEW_KEYS, OWNER, VALUES, Table, image
from tests.spark.staged import ARROW_TYPES, DELETE, INSERT

COMMITTED = ("path", "size_bytes", "modification_time")


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def made(path: Path, rows: pa.Table, properties: Mapping[str, str] | None = None) -> DeltaTable:
    settings: Any = dict(properties or {})
    deltalake.DeltaTable.create(str(path), rows.schema, configuration=settings, raise_if_key_not_exists=False)
    found = DeltaTable("shop.orders", str(path), "app", {}, quick=True)
    found.refresh()
    return found


def appended(order_key: int) -> append.Appended:
    return append.Appended(app_id="app", order_key=order_key, user_metadata="")


def files(table: DeltaTable) -> pa.Table:
    table.refresh()
    return pa.table(deltalake.DeltaTable(table.path).get_add_actions(flatten=True))


def actions(table: Table, version: int) -> dict[str, Any]:
    lines = (Path(table.path) / "_delta_log" / f"{version:020d}.json").read_text().splitlines()
    return {name: action for line in lines for name, action in json.loads(line).items()}


def rows_of(names: Mapping[str, Any]) -> pa.Table:
    fields = [pa.field(f"c{index}", ARROW_TYPES[type_name]) for index, type_name in enumerate(names)]
    columns = [pa.array([value, None], field.type) for value, field in zip(names.values(), fields, strict=True)]
    return pa.table(columns, schema=pa.schema(fields))


@pytest.mark.parametrize("indexed", ["32", "-1", "3", "0"])
def test_statistics_are_those_of_deltalake(tmp_path: Path, indexed: str) -> None:
    rows, properties = rows_of(VALUES), {append.INDEXED_PROPERTY: indexed}
    ours, theirs = made(tmp_path / "ours", rows, properties), made(tmp_path / "theirs", rows, properties)
    append.append(ours, rows, appended(1))
    deltalake.write_deltalake(theirs.log, rows, mode="append", writer_properties=writer_properties(rows.schema))
    found, expected = (files(each).to_pylist()[0] for each in (ours, theirs))
    # deltalake rounds the maximum of a time down to milliseconds, and does not count the NULLs of binary columns.
    known = {name: value for name, value in expected.items() if value is not None and name not in COMMITTED}
    exact = {name for name, value in known.items() if not (name.startswith("max") and isinstance(value, dt.datetime))}
    assert {name: found[name] for name in exact} == {name: known[name] for name in exact}
    assert all(found[name] >= known[name] for name in known)
    assert {name for name, value in found.items() if value is not None} - known.keys() <= {*COMMITTED, "null_count.c9"}
    assert ours.log.to_pyarrow_table().equals(theirs.log.to_pyarrow_table())


@pytest.mark.parametrize("reader", READERS)
def test_readers_read_the_rows_as_those_of_deltalake(tmp_path: Path, reader: str) -> None:
    rows = rows_of(VALUES)
    ours, theirs = made(tmp_path / "ours", rows), made(tmp_path / "theirs", rows)
    for number in (1, 2):
        append.append(ours, rows, appended(number))
        ours.refresh()
        deltalake.write_deltalake(theirs.path, rows, mode="append")
    found, expected = (READERS[reader](Location(str(tmp_path)), Path(each.path).name) for each in (ours, theirs))
    assert found == expected
    assert len(found) == 2 * rows.num_rows


def test_a_commit_has_the_transaction_the_record_and_the_counts(table: Table) -> None:
    table.make().merge(*ABC)
    report = table.merge(*NEW_KEYS)
    found = actions(table, 2)
    assert (found["txn"]["appId"], found["txn"]["version"]) == (app_id_of(OWNER), 12)
    assert json.loads(found["commitInfo"]["userMetadata"])["last_order_key"] == 12
    assert found["commitInfo"]["operationMetrics"]["numOutputRows"] == "2"
    assert (report.rows_inserted, report.files_added, report.files_scanned, report.files_pruned) == (2, 1, 0, 1)
    footer = pq.read_metadata(Path(table.path) / found["add"]["path"])
    assert str(footer.created_by).startswith("parquet-cpp"), "pyarrow wrote the file"


def test_an_append_without_rows_is_a_commit_without_a_file(table: Table) -> None:
    table.make().merge(*ABC)
    table.merge(image(INSERT, 11, 9, "x"), image(DELETE, 12, 9, "x"))
    found = actions(table, 2)
    assert (found["txn"]["version"], "add" in found, "remove" in found) == (12, False, False)
    assert len(table.log.file_uris()) == len(list(Path(table.path).glob("*.parquet"))) == 1


@pytest.mark.parametrize(
    "properties",
    [{"delta.columnMapping.mode": "name"}, {append.INDEXED_NAMES_PROPERTY: "Name"}],
    ids=["mapped", "statistics by name"],
)
def test_tables_whose_files_need_more_are_appended_to_by_deltalake(
    table: Table, monkeypatch: pytest.MonkeyPatch, properties: dict[str, str]
) -> None:
    table.make().merge(*ABC)
    reader = DeltaTable("shop.orders", table.path, "", {}, quick=True)
    snapshot = reader.refresh()
    assert append.can_append(reader, pa.table({"id": [1]}))
    reader.snapshot = dataclasses.replace(snapshot, properties={**snapshot.properties, **properties})
    assert not append.can_append(reader, pa.table({"id": [1]}))
    reader.snapshot = snapshot
    monkeypatch.setattr(append, "ROWS_MAX", 2)
    assert not append.can_append(reader, pa.table({"id": [1, 2, 3]}))
    slow = DeltaTable("shop.orders", table.path, "", {})
    slow.refresh()
    assert not append.can_append(slow, pa.table({"id": [1]}))


@pytest.mark.found
@pytest.mark.parametrize(
    "change",
    [
        {"features": frozenset({"inCommitTimestamp"})},
        {"writer_version": 4},
        {"ruled": ("name",)},
        {"partitions": ("name",)},
    ],
    ids=lambda each: next(iter(each)),
)
def test_tables_that_got_rules_between_two_segments_are_appended_to_by_deltalake(
    table: Table, change: dict[str, Any]
) -> None:
    """Defect 49: if a table got features, constraints or partitions between two segments, an append could make an invalid commit. Only the
    table as it was before the first segment was checked.
    """
    table.make().merge(*ABC)
    reader = DeltaTable("shop.orders", table.path, "", {}, quick=True)
    snapshot = reader.refresh()
    assert append.can_append(reader, pa.table({"id": [1]}))
    reader.snapshot = dataclasses.replace(snapshot, **change)
    assert not append.can_append(reader, pa.table({"id": [1]}))


def test_fault_a_commit_that_came_first_is_not_replaced(tmp_path: Path) -> None:
    rows = pa.table({"id": [1]})
    table = made(tmp_path / "orders", rows)
    for key in (1, 2):
        late = DeltaTable("shop.orders", table.path, "app", {}, quick=True)
        late.refresh()
        append.append(table, rows, appended(key))
        with pytest.raises(exceptions.CommitFailedError):
            append.append(late, rows, appended(9))
        assert table.refresh().applied_order_key == key
    assert table.log.to_pyarrow_table().num_rows == 2
