"""Tests that a consistent snapshot names one version of every table. It is written once per position, also after crashes. deltalake and
DuckDB can read it.
"""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_delta
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from sluice.consistent_snapshot import ConsistentSnapshotError, deltalake_tables, duckdb_views, read_consistent_snapshot
from sluice.consistent_snapshot.find import SCHEMA, consistent_snapshots_path
from sluice.spark_jobs import consistent_snapshots
from sluice.spark_jobs.consistent_snapshots import (
    AmendedTable,
    PublishedTables,
    amend_newest,
    publish_consistent_snapshot,
)
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.maintain.tables import newest_snapshot_age_hours, prune_consistent_snapshots
from sluice.spark_jobs.staged_batch import StagedBatch
from sluice.spark_jobs.table_owner import TableRecord

EPOCH_SECONDS = 1_700_000_000
NAMED_ALIKE = ("shop.Orders", "shop.orders", "shop.orders__2", "SHOP.items", "shop.items")


def batch(end: int, *, delivery: int = 1, ledger: str = "0123456789ab") -> StagedBatch:
    stored_end = {
        "epoch": 1,
        "file": "b.000001",
        "offset": end,
        "time_us": (EPOCH_SECONDS + end) * 1_000_000,
        "gtid_set": "x:1",
    }
    return StagedBatch(
        directory=Path("/nowhere"),
        end_order_key=end,
        destination="shop",
        ledger_id=ledger,
        epoch=1,
        delivery=delivery,
        start={},
        end=stored_end,
        tables=(),
    )


class Shop:
    """Two tables that a transaction changes together."""

    def __init__(self, folder: Path) -> None:
        self.lake = str(folder)
        self.paths = {name: f"{folder}/{name.replace('.', '/')}" for name in ("shop.orders", "shop.items")}
        self.records: dict[str, TableRecord] = {}

    def merge(self, name: str, number: int) -> None:
        write_deltalake(self.paths[name], pa.table({"transaction": [number]}), mode="append")
        log = DeltaTable(self.paths[name])
        self.records[name] = TableRecord(table_id=str(log.metadata().id), version=log.version())

    def publish(self, staged: StagedBatch, *stopped: str) -> bool:
        tables = {name: (self.paths[name], record) for name, record in self.records.items()}
        return publish_consistent_snapshot(
            staged,
            consistent_snapshots_path(self.lake, "shop"),
            PublishedTables(tables=tables, stopped=stopped, run="r"),
            BY_HAND,
        )


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """Sets up two transactions. The first is in both tables and published. The second is only in one of the tables."""
    made = Shop(tmp_path)
    made.merge("shop.orders", 1)
    made.merge("shop.items", 1)
    assert made.publish(batch(100))
    made.merge("shop.orders", 2)
    return made


def connected() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    extension = next(Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension"))
    connection.execute(f"LOAD '{extension}'")
    return connection


def transactions(table: Any) -> list[int]:
    found: list[Any] = pa.table(table.scan())["transaction"].to_pylist()
    return sorted(found)


def test_consistent_snapshot_readers_see_a_transaction_in_all_tables_or_in_none(shop: Shop) -> None:
    snapshot = read_consistent_snapshot(shop.lake, "shop")
    found = {name: transactions(table) for name, table in deltalake_tables(snapshot).items()}
    assert found == {"shop.orders": [1], "shop.items": [1]}
    shop.merge("shop.items", 2)
    assert shop.publish(batch(200))
    snapshot = read_consistent_snapshot(shop.lake, "shop")
    assert (snapshot.order_key, snapshot.file, snapshot.offset, snapshot.gtid_set) == (200, "b.000001", 200, "x:1")
    assert {name: transactions(table) for name, table in deltalake_tables(snapshot).items()} == {
        "shop.orders": [1, 2],
        "shop.items": [1, 2],
    }


def test_consistent_snapshot_duckdb_joins_whole_transactions(shop: Shop) -> None:
    connection = connected()
    assert duckdb_views(connection, read_consistent_snapshot(shop.lake, "shop")) == [
        '"shop"."items"',
        '"shop"."orders"',
    ]
    torn = (
        "SELECT count(*) FROM shop.orders LEFT JOIN shop.items USING (transaction) WHERE shop.items.transaction IS NULL"
    )
    assert connection.execute(torn).fetchall() == [(0,)]


def test_consistent_snapshot_a_crash_before_it_leaves_the_snapshot_before_and_one_after_it_writes_nothing_twice(
    shop: Shop,
) -> None:
    shop.merge("shop.items", 2)
    assert read_consistent_snapshot(shop.lake, "shop").order_key == 100, "the run was killed before its last commit"
    assert shop.publish(batch(200, delivery=2))
    versions = DeltaTable(consistent_snapshots_path(shop.lake, "shop")).version()
    assert not shop.publish(batch(200, delivery=3)), "killed after it: the same batch comes again"
    assert not shop.publish(batch(150, delivery=4)), "and so may a part of it, divided in another way"
    assert DeltaTable(consistent_snapshots_path(shop.lake, "shop")).version() == versions
    assert shop.publish(batch(100, ledger="ba9876543210")), "another ledger has positions of its own"


def test_consistent_snapshot_has_a_table_that_was_published_again_if_it_has_that_position(shop: Shop) -> None:
    """A snapshot gives a table another version, and there may be no batch for a long time after it. If a table has more changes than the
    consistent snapshot, it waits for the next consistent snapshot.
    """
    shop.merge("shop.items", 7)
    recreated = shop.paths["shop.items"], shop.records["shop.items"]
    path = consistent_snapshots_path(shop.lake, "shop")
    assert not amend_newest(path, [AmendedTable(tables={"shop.items": recreated}, label=101, newest=100)], BY_HAND), (
        "it has changes of a batch that is not in all tables"
    )
    assert read_consistent_snapshot(shop.lake, "shop").tables["shop.items"].version == 0
    assert amend_newest(path, [AmendedTable(tables={"shop.items": recreated}, label=100, newest=100)], BY_HAND)
    snapshot = read_consistent_snapshot(shop.lake, "shop")
    assert (snapshot.order_key, snapshot.tables["shop.items"].version, snapshot.tables["shop.orders"].version) == (
        100,
        1,
        0,
    )
    assert not shop.publish(batch(100, delivery=2)), "the position is still the last one"
    assert not amend_newest(
        path + "-of-another", [AmendedTable(tables={"shop.items": recreated}, label=0, newest=100)], BY_HAND
    )


@pytest.mark.parametrize("stopped", [(), ("shop.items",)], ids=["merged", "stopped"])
def test_consistent_snapshot_has_no_table_at_an_earlier_version_after_it_was_amended(
    shop: Shop, stopped: tuple[str, ...]
) -> None:
    """A run adds a published table to the newest consistent snapshot some seconds after the publication. If a batch was merged in between,
    the older version of the table must not replace the newer one.
    """
    published = shop.paths["shop.items"], shop.records["shop.items"]
    shop.merge("shop.items", 7)
    assert shop.publish(batch(200), *stopped)
    path = consistent_snapshots_path(shop.lake, "shop")
    for newest in (100, 200):
        assert not amend_newest(
            path, [AmendedTable(tables={"shop.items": published}, label=100, newest=newest)], BY_HAND
        )
    table = read_consistent_snapshot(shop.lake, "shop").tables["shop.items"]
    assert (table.version, table.stopped) == (1, bool(stopped))


def test_consistent_snapshot_that_was_amended_needs_files_since_it_was_first_published(shop: Shop) -> None:
    path, hour = consistent_snapshots_path(shop.lake, "shop"), dt.timedelta(hours=1)
    _published_before(path, 9 * hour)
    assert newest_snapshot_age_hours(path) == pytest.approx(9.0, abs=0.1)
    shop.merge("shop.items", 7)
    assert amend_newest(
        path,
        [
            AmendedTable(
                tables={"shop.items": (shop.paths["shop.items"], shop.records["shop.items"])}, label=100, newest=100
            )
        ],
        BY_HAND,
    )
    assert newest_snapshot_age_hours(path) == pytest.approx(9.0, abs=0.1), "the other tables are as they were"
    assert prune_consistent_snapshots(path, 8.0, BY_HAND) == 2, "both name what VACUUM takes"


def test_consistent_snapshot_of_a_version_that_was_left_before_it_was_published_needs_files_since_then(
    shop: Shop,
) -> None:
    path = consistent_snapshots_path(shop.lake, "shop")
    shop.merge("shop.items", 7)  # This is version 1, which no consistent snapshot contains.
    for commit in (Path(shop.paths["shop.items"]) / "_delta_log").glob("*1.json"):
        reported = commit.read_text()
        stamp = re.search(r'"timestamp":(\d+)', reported)
        assert stamp
        commit.write_text(reported.replace(stamp[0], f'"timestamp":{int(stamp[1]) - 5 * 3_600_000}'))
    assert newest_snapshot_age_hours(path) == pytest.approx(5.0, abs=0.1)
    assert newest_snapshot_age_hours(path, names=["shop.orders"]) == pytest.approx(0.0, abs=0.1)


def _published_before(path: str, age: dt.timedelta) -> None:
    rows = pa.table(DeltaTable(path).scan()).to_pylist()
    then = [{**row, "published_at": dt.datetime.now(dt.UTC) - age} for row in rows]
    write_deltalake(path, pa.Table.from_pylist(then, schema=SCHEMA), mode="overwrite")


def test_consistent_snapshot_is_found_by_time_and_says_which_tables_stand_still(shop: Shop) -> None:
    shop.merge("shop.items", 2)
    shop.publish(batch(200), "shop.items")
    then = dt.datetime.fromtimestamp(EPOCH_SECONDS + 150, dt.UTC)
    assert read_consistent_snapshot(shop.lake, "shop", at=then).order_key == 100
    assert [table.stopped for _, table in sorted(read_consistent_snapshot(shop.lake, "shop").tables.items())] == [
        True,
        False,
    ]
    with pytest.raises(ConsistentSnapshotError, match="no consistent snapshot of shop is as old as"):
        read_consistent_snapshot(shop.lake, "shop", at=dt.datetime.fromtimestamp(EPOCH_SECONDS, dt.UTC))
    with pytest.raises(ConsistentSnapshotError, match="has no consistent snapshot of the tables of nowhere"):
        read_consistent_snapshot(shop.lake, "nowhere")
    log = DeltaTable(consistent_snapshots_path(shop.lake, "shop"))
    log.delete()
    with pytest.raises(ConsistentSnapshotError, match="has no consistent snapshot of the tables of shop"):
        read_consistent_snapshot(shop.lake, "shop")


@pytest.mark.found
def test_consistent_snapshot_names_that_differ_by_case_only_are_numbered(tmp_path: Path) -> None:
    """Defect 25: `Orders` and `orders` became one view, which had the rows of the table that was read last."""
    shop = Shop(tmp_path)
    shop.paths = {name: f"{tmp_path}/{number}" for number, name in enumerate(NAMED_ALIKE)}
    for number, name in enumerate(NAMED_ALIKE):
        shop.merge(name, number)
    shop.publish(batch(100))
    snapshot = read_consistent_snapshot(shop.lake, "shop")
    connection = connected()
    made = duckdb_views(connection, snapshot)
    found = {name: connection.execute(f"SELECT transaction FROM {name}").fetchall() for name in made}
    numbers = {name: number for number, name in enumerate(NAMED_ALIKE)}
    assert found == {
        '"shop"."Orders__1"': [(numbers["shop.Orders"],)],
        '"shop"."orders__3"': [(numbers["shop.orders"],)],
        '"shop"."orders__2"': [(numbers["shop.orders__2"],)],
        '"SHOP"."items__1"': [(numbers["SHOP.items"],)],
        '"shop"."items__2"': [(numbers["shop.items"],)],
    }


@pytest.mark.found
def test_consistent_snapshot_a_table_without_a_view_is_named_and_the_others_have_theirs(shop: Shop) -> None:
    """Defect 25: if one table could not be read, no table had a view."""
    snapshot = read_consistent_snapshot(shop.lake, "shop")
    log = Path(shop.paths["shop.items"]) / "_delta_log"
    for file in log.iterdir():
        file.unlink()
    connection = connected()
    with pytest.raises(ConsistentSnapshotError, match=r"version 0 of shop\.items") as raised:
        duckdb_views(connection, snapshot)
    assert "shop.orders" not in str(raised.value)
    assert connection.execute("SELECT count(*) FROM shop.orders").fetchall() == [(1,)]


def test_consistent_snapshot_a_table_that_was_created_again_or_whose_version_is_gone_is_named(
    shop: Shop, tmp_path: Path
) -> None:
    snapshot = read_consistent_snapshot(shop.lake, "shop")
    log = tmp_path / "shop/items/_delta_log"
    for file in log.iterdir():
        file.unlink()
    with pytest.raises(ConsistentSnapshotError, match=r"version 0 of shop.items at .* cannot be read"):
        deltalake_tables(snapshot)
    write_deltalake(shop.paths["shop.items"], pa.table({"transaction": [9]}))
    with pytest.raises(ConsistentSnapshotError, match="is not the table in the consistent snapshot"):
        deltalake_tables(snapshot)


def test_consistent_snapshot_the_table_of_consistent_snapshots_keeps_the_newest(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consistent_snapshots, "SNAPSHOTS_MAX", 5)
    monkeypatch.setattr(consistent_snapshots, "SNAPSHOTS_KEPT", 3)
    for end in range(200, 1200, 100):
        assert shop.publish(batch(end))
    rows: list[Any] = pa.table(DeltaTable(consistent_snapshots_path(shop.lake, "shop")).scan())["order_key"].to_pylist()
    assert sorted(rows)[-1] == 1100
    assert len(rows) < 9
    assert not shop.publish(batch(1100)), "what was published is known after the rewrite too"
    assert read_consistent_snapshot(shop.lake, "shop").order_key == 1100


@pytest.mark.found
def test_the_lake_may_end_in_a_slash_as_in_conf() -> None:
    """Defect 1193: `read_consistent_snapshot("s3://bucket/lake/", …)` failed with an error of the disk or object store, because object
    stores do not ignore doubled slashes. In conf/, a lake may end in a slash.
    """
    wanted = "s3://bucket/lake/_sluice_consistent_snapshots/shop"
    assert {consistent_snapshots_path(f"s3://bucket/lake{end}", "shop") for end in ("", "/", "//")} == {wanted}
