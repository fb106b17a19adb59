"""Tests that Sluice reads back its commits that alter Delta tables and histories or add rows of consistent snapshots, because another
writer may replace such a commit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from sluice.batch_manifest.values import LakeColumn
from sluice.consistent_snapshot.find import consistent_snapshots_path
from sluice.spark_jobs import consistent_snapshots
from sluice.spark_jobs.consistent_snapshots import PublishedTables, publish_consistent_snapshot
from sluice.spark_jobs.errors import LostCommitError, TableError
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.side_tables.columns import mapping_of
from sluice.spark_jobs.side_tables.side_table import SideTable
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.table_owner import TableRecord
from sluice.spark_jobs.tables.alteration_steps import alter
from tests.spark.staged import INSERT, Changes, Image, Schema, stage

ORDERS = Schema({"id": "bigint"}, key=("id",))


class Table:
    """Imitates a Delta table that needs `missing` ALTER TABLE statements. `lost` has the numbers of the commits that another writer
    replaces.
    """

    name, path = "shop.orders", "/lake/orders"

    def __init__(self, missing: int, lost: frozenset[int] = frozenset()) -> None:
        self.snapshot: Any = type("Snapshot", (), {"version": 3})
        self._missing, self._lost, self._seen = missing, lost, missing
        self.commits = 0

    def due(self) -> list[str]:
        return ["ALTER TABLE"] * self._seen

    def refresh(self) -> None:
        self._seen = self._missing

    def commit(self, name: str, statement: str) -> None:  # noqa: ARG002  as LakeSession
        self._missing -= self.commits not in self._lost
        self.commits += 1


def test_fault_alterations_that_are_there_afterwards_are_done_once() -> None:
    table: Any = Table(2)
    alter(table, table, table.due)
    assert (table.due(), table.commits) == ([], 2)
    alter(table, table, table.due)
    assert table.commits == 2


@pytest.mark.parametrize("lost", [0, 1])
def test_fault_an_alteration_whose_commit_was_replaced_is_no_success(lost: int) -> None:
    table: Any = Table(2, frozenset({lost}))
    with pytest.raises(
        LostCommitError, match="has a commit of another writer instead of the commit of this run"
    ) as raised:
        alter(table, table, table.due)
    assert not raised.value.own
    alter(table, table, table.due)
    assert table.due() == [], "the next attempt completes it"


def test_fault_a_table_that_another_program_created_meanwhile_is_refused_for_its_owner() -> None:
    table: Any = Table(1, frozenset({0}))

    def refused(_: Any) -> None:
        raise TableError("shop.orders", "it has another owner")

    with pytest.raises(TableError, match="another owner"):
        alter(table, table, table.due, refused)


@pytest.mark.parametrize("what", ["columns", "properties"])
def test_fault_a_change_of_a_history_whose_commit_was_replaced_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    table = SideTable(name="shop.orders", path=str(tmp_path), app_id="history", storage_options={}, fence=BY_HAND)
    table.make(pa.schema({"id": pa.int64()}), {}, "")
    opened = SideTable.open

    def replaced(given: SideTable) -> SideTable:
        monkeypatch.setattr(SideTable, "open", opened)
        (tmp_path / "_delta_log" / f"{1:020}.json").unlink()
        deltalake.write_deltalake(tmp_path, pa.table({"id": [1]}), mode="append")
        return opened(given)

    def change() -> None:
        if what == "columns":
            table.add(mapping_of([LakeColumn(name="note", type="string")], table.columns))
        else:
            table.keep({"sluice.key": "id"})

    monkeypatch.setattr(SideTable, "open", replaced)
    with pytest.raises(LostCommitError, match="after version 0"):
        change()
    change()
    assert table.version == 2, "the next attempt completes it"
    assert ("note" in table.columns) is (what == "columns")


def test_fault_a_consistent_snapshot_whose_commit_was_replaced_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = read_staged_batch(
        stage(tmp_path / "staging", {"shop.orders": [Changes(ORDERS, [Image(INSERT, 9, {"id": 1})])]})
    )
    path = consistent_snapshots_path(str(tmp_path), "shop")
    tables = {"shop.orders": (f"{tmp_path}/orders", TableRecord(table_id="t", version=1))}
    published = PublishedTables(tables=tables, stopped=(), run="r")
    appended = consistent_snapshots._appended

    def replaced(*given: Any) -> Any:
        appended(*given)
        (newest := Path(path) / "_delta_log" / f"{0:020}.json").unlink()
        deltalake.write_deltalake(path, pa.table({"theirs": [1]}))
        assert newest.exists()
        return deltalake.DeltaTable(path)

    monkeypatch.setattr(consistent_snapshots, "_appended", replaced)
    with pytest.raises(LostCommitError):
        publish_consistent_snapshot(batch, path, published, BY_HAND)
