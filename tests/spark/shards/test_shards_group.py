"""Tests shards that become one Delta table. Whatever happens to one shard leaves the rows of the others unchanged, with both ways of
merging.

For each way, the same batches are merged once. Each test checks the table after one of these batches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.batch_manifest.table_report import TableReport
from sluice.batch_manifest.values import LakeColumn
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.object_stores.stored_files import StoredFiles
from sluice.spark_jobs.batch.context import BatchContext
from sluice.spark_jobs.batch.run_batch import merge_batch
from sluice.spark_jobs.errors import MergeError
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.session import SparkSettings, open_sessions
from sluice.spark_jobs.snapshot.publication import Publication, PublishedSnapshot
from sluice.spark_jobs.snapshot.publish import publish_snapshot
from sluice.spark_jobs.sql_text import delta_path
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.table_owner import Owner
from sluice.spark_jobs.targets.report import TableTarget
from sluice.spark_jobs.targets.shards import Shard
from sluice.spark_jobs.targets.ways import SmallSetting
from tests.spark.conftest import Lake
from tests.spark.staged import (
    ARROW_TYPES,
    DELETE,
    INSERT,
    LEDGER_ID,
    TIME_US,
    UPDATE_AFTER,
    UPDATE_BEFORE,
    Changes,
    Image,
    Records,
    Schema,
    SchemaChange,
    Segment,
    Truncate,
)

pytestmark = pytest.mark.spark

ORDERS = Schema({"id": "bigint", "name": "string", "shard": "string"}, key=("id", "shard"))
MORE = Schema({"id": "bigint", "name": "string", "note": "string", "shard": "string"}, key=("id", "shard"))
ONE, TWO = "shop_1.orders", "shop_2.orders"
ADDED = ({"kind": "add", "column": "note", "plan": "apply"},)
DROPPED = ({"kind": "drop", "column": "note", "plan": "keep"},)
Rows = set[tuple[Any, ...]]


def image(shard: str, operation: int, order_key: int, key: int, *values: str) -> Image:
    names = ("name", "note")[: len(values)]
    return Image(operation, order_key, {"id": key, **dict(zip(names, values, strict=True)), "shard": shard})


def changes(*images: Image, schema: Schema = ORDERS) -> Changes:
    return Changes(schema, images)


FIRST = {
    ONE: [changes(image("1", INSERT, 11, 1, "a"), image("1", INSERT, 11, 2, "b"))],
    TWO: [changes(image("2", INSERT, 12, 1, "A"), image("2", INSERT, 12, 2, "B"))],
}
KEYS = {
    ONE: [
        changes(
            image("1", UPDATE_AFTER, 21, 1, "a2"),
            image("1", DELETE, 22, 2, "b"),
            *(image("1", UPDATE_BEFORE, 23, 1, "a2"), image("1", UPDATE_AFTER, 23, 3, "a3")),
        )
    ],
    TWO: [changes(image("2", UPDATE_AFTER, 24, 2, "B2"), image("2", INSERT, 24, 3, "C"))],
}
TRUNCATED: dict[str, Sequence[Segment]] = {
    ONE: [
        changes(image("1", INSERT, 30, 4, "gone")),
        *(Truncate(31), Truncate(32)),
        changes(image("1", INSERT, 33, 1, "new")),
    ]
}
ADDS_ONE: dict[str, Sequence[Segment]] = {
    ONE: [
        SchemaChange(41, MORE, ADDED, fills=(("note", "of 1"),)),
        changes(image("1", INSERT, 42, 5, "e", "own"), schema=MORE),
    ],
    TWO: [changes(image("2", UPDATE_AFTER, 43, 1, "A4"))],
}
ADDS_TWO: dict[str, Sequence[Segment]] = {TWO: [SchemaChange(51, MORE, ADDED, fills=(("note", "of 2"),))]}
DROPS_ONE: dict[str, Sequence[Segment]] = {
    ONE: [SchemaChange(61, ORDERS, DROPPED), changes(image("1", UPDATE_AFTER, 62, 5, "e6"))],
    TWO: [changes(image("2", UPDATE_AFTER, 63, 3, "C6", "kept"), schema=MORE)],
}
BACK_IN_ONE: dict[str, Sequence[Segment]] = {ONE: [SchemaChange(71, MORE, ADDED)]}


@dataclasses.dataclass
class Shards:
    """One table of a lake, which both shards share. `column` is the column that contains the names of the shards."""

    lake: Lake
    column: str = "shard"
    records: Records = dataclasses.field(default_factory=Records)
    after: dict[str, Rows] = dataclasses.field(default_factory=dict)
    reports: dict[str, dict[str, TableReport]] = dataclasses.field(default_factory=dict)

    def target(self, name: str, **options: Any) -> TableTarget:
        shard = Shard(column=self.column, name=name.split(".", maxsplit=1)[0].removeprefix("shop_"))
        return self.lake.target("orders", shard=shard, **options)

    def merge(self, directory: Path, names: Sequence[str], **options: Any) -> dict[str, TableReport]:
        targets = {name: self.target(name, **options) for name in names}
        found = merge_batch(read_staged_batch(directory), targets, self.lake.spark, BatchContext(records=self.records))
        return {each.name: each for each in found}

    def play(self, called: str, tables: dict[str, Sequence[Segment]]) -> None:
        """Merges a batch and stores the resulting rows. The batch `keys` is merged as after a crash: its first table alone, then the whole
        batch, and then the whole batch again.
        """
        directory = self.lake.stage(tables)
        if called == "keys":
            self.merge(directory, list(tables)[:1])
        self.reports[called] = self.merge(directory, list(tables))
        self.after[called] = self.rows()
        if called == "keys":
            again = self.merge(directory, list(tables))
            assert all(each.skipped for each in again.values())
            assert self.rows() == self.after[called]

    def publish(self, name: str, rows: Sequence[dict[str, Any]], index: int) -> PublishedSnapshot:
        """Publishes a snapshot of one shard, with rows that were read at the order key `index`."""
        folder, target = self.lake.folder / f"{name}-chunks", self.target(name)
        folder.mkdir()
        fields = [pa.field(each, ARROW_TYPES[kind]) for each, kind in ORDERS.columns.items()]
        pq.write_table(pa.Table.from_pylist(list(rows), pa.schema(fields)), folder / "000001.parquet")
        given = Publication(
            snapshot_id="0123456789ab",
            owner=Owner(ledger_id=LEDGER_ID, destination="shop", table=name),
            target=target,
            columns=tuple(LakeColumn(name=each, type=kind) for each, kind in ORDERS.columns.items()),
            key=("id",),
            chunks=StoredFiles(folder=folder),
            rows=len(rows),
            changes=StoredFiles(folder=self.lake.folder / "none"),
            cascades=StoredFiles(folder=self.lake.folder / "none"),
            order_key=index,
            read_at_us=TIME_US,
            run="the-run",
            epoch=1,
            start={"file": "binlog.000001", "offset": 4, "epoch": 1},
            end={"file": "binlog.000001", "offset": index, "epoch": 1},
        )
        return publish_snapshot(given, self.lake.spark, fence=BY_HAND, records=self.records)

    def rows(self) -> Rows:
        names = [field.name for field in self.lake.log("orders").schema().fields]
        note = "note" if "note" in names else "NULL AS note"
        return set(self.lake.rows("orders", "shard", "id", "name", note))


BY_BOTH: dict[str, Any] = {"first": FIRST, "keys": KEYS}
BY_SPARK: dict[str, Any] = {
    "truncated": TRUNCATED,
    "adds one": ADDS_ONE,
    "adds two": ADDS_TWO,
    "drops one": DROPS_ONE,
    "back in one": BACK_IN_ONE,
}


def played(folder: Path, spark: SparkConnectServer, way: SmallSetting, story: dict[str, Any]) -> Shards:
    shards = Shards(Lake(folder, SparkSettings(remote=spark.url, sessions_file=folder / "lanes.json"), way))
    for called, tables in story.items():
        shards.play(called, tables)
    return shards


@pytest.fixture(scope="module")
def by_small(tmp_path_factory: pytest.TempPathFactory, spark_server: SparkConnectServer) -> Shards:
    return played(tmp_path_factory.mktemp("small"), spark_server, "small", BY_BOTH)


@pytest.fixture(scope="module")
def by_spark(tmp_path_factory: pytest.TempPathFactory, spark_server: SparkConnectServer) -> Shards:
    """Merges all batches with Spark, including those that only Spark can merge."""
    return played(tmp_path_factory.mktemp("spark"), spark_server, "spark", {**BY_BOTH, **BY_SPARK})


@pytest.fixture(params=["by_spark", "by_small"])
def by_either(request: pytest.FixtureRequest) -> Shards:
    found: Shards = request.getfixturevalue(request.param)
    return found


def test_equal_keys_of_two_shards_are_two_rows(by_either: Shards) -> None:
    assert by_either.after["first"] == {
        ("1", 1, "a", None),
        ("1", 2, "b", None),
        ("2", 1, "A", None),
        ("2", 2, "B", None),
    }


def test_changes_and_moved_keys_of_one_shard_leave_the_other_alone(by_either: Shards) -> None:
    assert {each.way for each in by_either.reports["keys"].values()} == {by_either.lake.way}
    assert by_either.after["keys"] == {
        ("1", 3, "a3", None),
        ("2", 1, "A", None),
        ("2", 2, "B2", None),
        ("2", 3, "C", None),
    }


def test_truncate_empties_one_shard(by_spark: Shards) -> None:
    assert by_spark.after["truncated"] == {
        ("1", 1, "new", None),
        *(("2", 1, "A", None), ("2", 2, "B2", None), ("2", 3, "C", None)),
    }


def test_a_column_comes_shard_by_shard_with_the_values_of_each(by_spark: Shards) -> None:
    assert by_spark.after["adds one"] == {
        *(("1", 1, "new", "of 1"), ("1", 5, "e", "own")),
        *(("2", 1, "A4", None), ("2", 2, "B2", None), ("2", 3, "C", None)),
    }
    assert by_spark.after["adds two"] == {
        *(("1", 1, "new", "of 1"), ("1", 5, "e", "own")),
        *(("2", 1, "A4", "of 2"), ("2", 2, "B2", "of 2"), ("2", 3, "C", "of 2")),
    }


def test_a_column_that_one_shard_drops_stays_with_the_other(by_spark: Shards) -> None:
    of_two = {("2", 1, "A4", "of 2"), ("2", 2, "B2", "of 2"), ("2", 3, "C6", "kept")}
    assert by_spark.after["drops one"] == {("1", 1, "new", "of 1"), ("1", 5, "e6", None), *of_two}
    assert by_spark.after["back in one"] == {("1", 1, "new", None), ("1", 5, "e6", None), *of_two}


def test_a_snapshot_replaces_the_rows_of_its_shard(by_spark: Shards) -> None:
    """A snapshot of one shard follows the batches. Then the other shard continues, although its record is older than the snapshot."""
    before = {row for row in by_spark.rows() if row[0] == "2"}
    by_spark.publish(ONE, [{"id": 9, "name": "read", "shard": "1"}], 80)
    assert by_spark.rows() == {("1", 9, "read", None), *before}
    by_spark.play("after", {TWO: [changes(image("2", DELETE, 81, 1, "A4", "of 2"), schema=MORE)]})
    by_spark.play("after one", {ONE: [changes(image("1", UPDATE_AFTER, 82, 9, "news"))]})
    assert by_spark.rows() == {("1", 9, "news", None), *(row for row in before if row[1] != 1)}


def test_a_wider_column_takes_shards_that_are_narrower_yet_in_a_group(by_spark: Shards, tmp_path: Path) -> None:
    narrow = Schema({"id": "int", "n": "int", "shard": "string"}, key=("id", "shard"))
    wide = Schema({"id": "int", "n": "bigint", "shard": "string"}, key=("id", "shard"))
    wider = ({"kind": "widen", "column": "n", "plan": "apply"},)

    def row(shard: str, order_key: int, n: int, schema: Schema = narrow) -> Changes:
        return Changes(schema, [Image(UPDATE_AFTER, order_key, {"id": 1, "n": n, "shard": shard})])

    shards = Shards(dataclasses.replace(by_spark.lake, folder=tmp_path, way="auto"))
    story: tuple[dict[str, Sequence[Segment]], ...] = (
        {ONE: [row("1", 11, 1)], TWO: [row("2", 11, 2)]},
        {ONE: [SchemaChange(21, wide, wider), row("1", 22, 1 << 40, wide)], TWO: [row("2", 22, 3)]},
        {TWO: [SchemaChange(31, wide, wider), row("2", 32, 1 << 41, wide)]},
    )
    for tables in story:
        shards.merge(shards.lake.stage(tables), list(tables))
        # deltalake cannot read a table whose types were widened.
        with open_sessions(shards.lake.spark, 1) as (session,):
            found = session.spark.sql(f"SELECT shard, n FROM {delta_path(shards.lake.path('orders'))}").collect()
        shards.after[str(len(shards.after))] = {tuple(row) for row in found}
    assert shards.after["1"] == {("1", 1 << 40), ("2", 3)}
    assert shards.after["2"] == {("1", 1 << 40), ("2", 1 << 41)}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "rename": (
        {"kind": "rename", "column": "name", "new_name": "title", "plan": "apply"},
        "would rename the column name",
    ),
    "convert": ({"kind": "convert", "column": "name", "plan": "apply"}, "would convert the column name"),
    "drop": ({"kind": "drop", "column": "name", "plan": "apply"}, "would drop the column name"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_would_change_columns_of_other_shards_stops_the_shard(by_spark: Shards, what: str) -> None:
    alteration, sentence = REFUSED[what]
    version = by_spark.lake.log("orders").version()
    with pytest.raises(MergeError, match=sentence) as caught:
        by_spark.merge(by_spark.lake.stage({TWO: [SchemaChange(90, MORE, (alteration,))]}), [TWO])
    assert [(each.state, each.for_good) for each in caught.value.errors] == [("DDL_UNSUPPORTED", True)]
    assert by_spark.lake.log("orders").version() == version


def test_changes_without_the_name_of_their_shard_are_refused_in_a_group(by_either: Shards) -> None:
    """Such changes were staged before conf/ had the rule for shards. Their key does not name the shard, so it would match rows of other
    shards.
    """
    plain = Schema({"id": "bigint", "name": "string"}, key=("id",))
    bare = Changes(plain, [Image(UPDATE_AFTER, 94, {"id": 3, "name": "whose?"})])
    before = by_either.rows()
    with pytest.raises(MergeError, match="run `sluice schema resume` when the table has stopped"):
        by_either.merge(by_either.lake.stage({TWO: [bare]}), [TWO])
    assert by_either.rows() == before


def test_other_settings_of_conf_are_refused_before_anything_is_written(by_spark: Shards) -> None:
    """In each case, conf/ has another name or column of the shard, the same name for another table, or a table that is not a shard."""
    directory = by_spark.lake.stage({ONE: [changes(image("1", INSERT, 95, 7, "x"))]})
    other = by_spark.lake.stage({"shop_3.orders": [changes(image("1", INSERT, 95, 7, "x"))]})
    version = by_spark.lake.log("orders").version()
    for batch, name, shard, sentence in (
        (
            directory,
            ONE,
            Shard(column="shard", name="renamed"),
            "under the shard '1', and conf/ now calls this shard 'renamed'. Restore the name '1'",
        ),
        (directory, ONE, Shard(column="place", name="1"), "has the names of shards in shard, and conf/ has place"),
        (directory, ONE, None, "has rows of 2 shards, and this table is not one of these shards"),
        (other, "shop_3.orders", Shard(column="shard", name="1"), "belongs to the destination shop"),
    ):
        with pytest.raises(MergeError, match=sentence) as caught:
            merge_batch(
                read_staged_batch(batch), {name: by_spark.lake.target("orders", shard=shard)}, by_spark.lake.spark
            )
        assert [each.state for each in caught.value.errors] == ["TABLE_OWNED"]
    assert by_spark.lake.log("orders").version() == version
