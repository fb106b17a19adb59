"""Tests that, whatever happens to rows while a snapshot reads them, the published table equals the replay of the stream, and continues from
there.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sluice.batch_manifest.values import LakeColumn
from sluice.cdc_engine.snapshot.read import Marks
from sluice.console.lake.history import HistoryTable, history_of
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.object_stores.stored_files import StoredFiles
from sluice.spark_jobs.batch.context import BatchContext
from sluice.spark_jobs.batch.run_batch import merge_batch
from sluice.spark_jobs.errors import MergeError, TableError
from sluice.spark_jobs.fence import BY_HAND, Fence
from sluice.spark_jobs.session import SparkSettings, open_sessions
from sluice.spark_jobs.side_tables import change_log
from sluice.spark_jobs.side_tables.side_table import SideTable
from sluice.spark_jobs.snapshot import publish
from sluice.spark_jobs.snapshot.buffering import BufferedChanges
from sluice.spark_jobs.snapshot.publication import ColumnsDifferError, Publication, PublishedSnapshot
from sluice.spark_jobs.snapshot.publish import publish_snapshot
from sluice.spark_jobs.sql_text import delta_path
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.table_owner import Owner
from sluice.spark_jobs.targets.layout import PLAIN, Layout
from tests.spark.conftest import Lake
from tests.spark.merging.test_fold_equals_replay import DIVISIONS, KEYED, STREAMS, Model, deliveries, replay
from tests.spark.staged import (
    ARROW_TYPES,
    DELETE,
    INSERT,
    LEDGER_ID,
    UPDATE_AFTER,
    Changes,
    Image,
    Records,
    Schema,
    SchemaChange,
    Truncate,
    stage,
)

pytestmark = pytest.mark.spark

READ_AT_US = 1_700_000_000_000_000
ORDERS = Schema({"id": "int", "value": "string"}, key=("id",))


@dataclasses.dataclass
class Holding:
    """Implements `SnapshotBuffers` over folders of the test. `open` has the buffered changes of each table, by "database.table"."""

    folder: Path
    open: dict[str, BufferedChanges] = dataclasses.field(default_factory=dict)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    lost: dict[str, tuple[str, frozenset[str]]] = dataclasses.field(default_factory=dict)

    def begin(self, name: str, after: int = -1) -> BufferedChanges:
        folders = (StoredFiles(folder=self.folder / f"{name}{kind}-{after}") for kind in ("", "-cascades"))
        files, cascades = folders
        self.open[name] = BufferedChanges(files=files, after=after, cascades=cascades)
        return self.open[name]

    def get(self, name: str) -> BufferedChanges | None:
        return self.open.get(name)

    def again(self, name: str, order_key: int, _why: str, *, images: bool = False) -> BufferedChanges:
        restarts = self.open[name].restarts + images
        self.open[name] = dataclasses.replace(self.begin(name, order_key), restarts=restarts)
        return self.open[name]

    def cascades_unseen(self, name: str, order_key: int, why: str, through: frozenset[str]) -> BufferedChanges:
        self.lost[name] = (why, through)
        return self.again(name, order_key, why)

    def fail(self, name: str, why: str) -> None:
        self.failed[name] = why


@dataclasses.dataclass
class Reading:
    """A table whose rows a snapshot reads."""

    lake: Lake
    name: str
    schema: Schema
    holds: Holding
    records: Records = dataclasses.field(default_factory=Records)
    marks: Marks | None = None
    snapshot_id: str = "0123456789ab"

    def chunk(self, number: int, rows: Sequence[dict[str, Any]]) -> None:
        folder = self.lake.folder / f"{self.name}-chunks"
        folder.mkdir(exist_ok=True)
        fields = [pa.field(name, ARROW_TYPES[kind]) for name, kind in self.schema.columns.items()]
        table = pa.Table.from_pylist(list(rows), pa.schema(fields))
        for name, value in self.marks.columns().items() if self.marks else ():
            table = table.append_column(name, pa.array([value] * table.num_rows, value.type))
        pq.write_table(table, folder / f"{number:06d}.parquet")

    def merge(self, images: Sequence[Image], number: int, **options: Any) -> None:
        self.take(Changes(self.schema, images), number, **options)

    def take(self, changes: Changes, number: int, **options: Any) -> None:
        directory = stage(self.lake.folder / "staging", {self.name: [changes]}, delivery=number)
        targets = {self.name: self.lake.target(self.name, **options)}
        merge_batch(
            read_staged_batch(directory),
            targets,
            self.lake.spark,
            BatchContext(buffers=self.holds, records=self.records),
        )

    def publish(self, index: int, *, since: int | None = None, **options: Any) -> PublishedSnapshot:
        return publish_snapshot(
            self.publication(index, since, **options),
            self.lake.spark,
            fence=BY_HAND,
            storage_options=self.lake.storage_options,
            records=self.records,
        )

    def publication(self, index: int, since: int | None = None, **options: Any) -> Publication:
        """Returns the publication of everything that was read and buffered, up to a position."""
        return Publication(
            snapshot_id=self.snapshot_id,
            owner=Owner(ledger_id=LEDGER_ID, destination="shop", table=self.name),
            target=self.lake.target(self.name, **options),
            columns=tuple(
                LakeColumn(name=name, type=kind, nullable=name not in self.schema.key)
                for name, kind in self.schema.columns.items()
            ),
            key=self.schema.key,
            chunks=StoredFiles(folder=self.lake.folder / f"{self.name}-chunks"),
            rows=sum(pq.read_metadata(path).num_rows for path in (self.lake.folder / f"{self.name}-chunks").iterdir()),
            changes=self.holds.open[self.name].files,
            cascades=self.holds.open[self.name].cascades,
            order_key=index,
            since=index if since is None else since,
            read_at_us=READ_AT_US,
            run="the-run",
            epoch=1,
            start={"file": "binlog.000001", "offset": 4, "epoch": 1},
            end={"file": "binlog.000001", "offset": index, "epoch": 1, "server_uuid": "u-1"},
        )


@pytest.fixture
def reading(lake: Lake) -> Reading:
    """Starts a snapshot of shop.orders, with nothing buffered yet."""
    holds = Holding(lake.folder / "held")
    holds.begin("shop.orders")
    return Reading(lake, "shop.orders", ORDERS, holds)


def image(operation: int, order_key: int, key: int, value: str = "") -> Image:
    return Image(operation, order_key, {"id": key, "value": value})


# Each example needs several merges by Spark. Reducing a failing example would take minutes, so Hypothesis shows it as it was found.
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.reuse, Phase.generate])
@given(streams=STREAMS, divisions=DIVISIONS, data=st.data())
def test_a_snapshot_equals_the_replay_of_the_stream(
    spark_server: SparkConnectServer, tmp_path_factory: pytest.TempPathFactory, streams: Any, divisions: Any, data: Any
) -> None:
    models = replay(streams)
    transactions = [transaction for model in models for transaction in model.transactions]
    begin = data.draw(st.integers(0, len(transactions)), "transactions before the snapshot")
    lake = Lake(tmp_path_factory.mktemp("snapshot"), SparkSettings(remote=spark_server.url))
    readings = {}
    for deletes in ("hard", "soft"):
        holds = Holding(lake.folder / f"held-{deletes}")
        readings[deletes] = Reading(lake, f"shop.{deletes}", KEYED, holds)
        holds.begin(f"shop.{deletes}")
    # Changes that were merged before the snapshot began are not buffered, and are not merged again.
    for number, model in enumerate(models):
        read_at = data.draw(st.integers(begin, len(transactions)), "read at")
        rows = _state(model, transactions[:read_at])
        for each in readings.values():
            each.chunk(number, rows)
    buffered = deliveries(transactions[begin:], divisions)
    last = max((images[-1].order_key for images in buffered), default=0)
    for deletes, each in readings.items():
        for number, images in enumerate(buffered):
            each.merge(images, number + (100 if deletes == "soft" else 0), deletes=deletes)
        each.publish(last, deletes=deletes)
        each.publish(last, deletes=deletes)  # This is the state after a crash before the publication was recorded.
        each.holds.open.clear()
        for number, images in enumerate(buffered[-1:]):  # A run was killed, so the same batch is delivered once more.
            each.merge(images, number + (300 if deletes == "soft" else 200), deletes=deletes)
    _compare(lake, models)


def _state(model: Model, transactions: Sequence[Sequence[Image]]) -> list[dict[str, Any]]:
    rows: dict[int, dict[str, Any]] = {}
    for each in (image for transaction in transactions for image in transaction):
        if each.values["stream"] == model.stream:
            if each.operation in {INSERT, UPDATE_AFTER}:
                rows[each.values["id"]] = each.values
            else:
                rows.pop(each.values["id"], None)
    return list(rows.values())


def _compare(lake: Lake, models: Sequence[Model]) -> None:
    live = sorted((model.stream, key, value) for model in models for key, value in model.rows.items())
    assert sorted(lake.rows("shop.hard", "stream", "id", "value")) == live
    soft = lake.rows("shop.soft", "stream", "id", "value", "_sluice_deleted")
    assert sorted(row[:3] for row in soft if not row[3]) == live


def test_a_row_that_was_deleted_while_a_snapshot_read_does_not_come_back(reading: Reading) -> None:
    reading.chunk(1, [{"id": 1, "value": "read"}, {"id": 2, "value": "read"}])
    reading.merge([image(DELETE, 100, 1, "read")], 1)
    published = reading.publish(100)
    assert reading.lake.rows("shop.orders", "id", "value", "_sluice_operation") == [(2, "read", "snapshot")]
    assert (published.table_rows, bool(published.table_bytes)) == (1, True)


def test_a_snapshot_gives_a_table_the_layout_of_conf(reading: Reading) -> None:
    partitioned, clustered = Layout(partition_by=("value",)), Layout(cluster_by=("value",))
    reading.chunk(1, [{"id": 1, "value": "a"}, {"id": 2, "value": "b"}])
    partitions = []
    for index, layout in enumerate((PLAIN, partitioned, PLAIN, clustered, PLAIN), start=1):
        reading.publish(100 * index, layout=layout)
        partitions.append(reading.lake.log("shop.orders").metadata().partition_columns)
        assert reading.lake.rows("shop.orders", "id", "value") == [(1, "a"), (2, "b")]
    assert partitions == [[], ["value"], ["value"], [], []]  # A layout that conf/ no longer requests stays.
    with pytest.raises(TableError, match="Delta cannot partition a clustered table"):
        reading.publish(900, layout=partitioned)


def test_no_half_table_is_seen_while_a_snapshot_reads(reading: Reading) -> None:
    reading.merge([image(INSERT, 100, 1, "new")], 1)
    assert not reading.lake.folder.joinpath("lake", "shop.orders").exists()
    reading.chunk(1, [])
    reading.publish(100)
    assert reading.lake.rows("shop.orders", "id", "value") == [(1, "new")]


def test_a_snapshot_replaces_the_rows_of_the_table_and_the_stream_continues(reading: Reading) -> None:
    reading.holds.open.clear()
    reading.merge([image(INSERT, 100, 1, "old"), image(INSERT, 101, 9, "wrong")], 1)
    reading.holds.begin("shop.orders")
    reading.merge([image(UPDATE_AFTER, 200, 1, "held")], 2)
    assert reading.lake.rows("shop.orders", "id", "value") == [(1, "old"), (9, "wrong")]
    reading.chunk(1, [{"id": 1, "value": "read"}, {"id": 2, "value": "read"}])
    reading.publish(200)
    assert reading.lake.rows("shop.orders", "id", "value") == [(1, "held"), (2, "read")]
    reading.holds.open.clear()
    reading.merge([image(UPDATE_AFTER, 150, 2, "before"), image(UPDATE_AFTER, 300, 2, "after")], 3)
    assert reading.lake.rows("shop.orders", "id", "value") == [(1, "held"), (2, "after")]


def test_a_second_snapshot_at_the_same_position_is_published_too(reading: Reading) -> None:
    reading.chunk(1, [{"id": 1, "value": "first"}])
    reading.publish(100)
    reading.snapshot_id = "ba9876543210"
    reading.chunk(1, [{"id": 1, "value": "second"}])
    reading.publish(100)
    assert reading.lake.rows("shop.orders", "id", "value") == [(1, "second")]
    _is_reported(reading)


def _is_reported(reading: Reading) -> None:
    """Checks that `history_of` reports two publications as two intervals, although no delivery number distinguishes them."""
    target = reading.lake.target("shop.orders")
    reported = history_of(HistoryTable("shop", "shop.orders", target.path, ("id",), {}))
    published = [each for each in reported if each.kind == "snapshot"]
    assert [(each.rows_inserted, each.run, each.last_order_key) for each in published] == [(1, "the-run", 100)] * 2
    assert [each.version - each.version_before for each in published] == [1, 1]
    assert (published[0].server_uuid, published[0].last_commit_time_us) == ("u-1", 1_700_000_000_000_000)


@pytest.mark.parametrize("segment", [Truncate(200), SchemaChange(200, ORDERS)], ids=["truncated", "altered"])
def test_a_table_that_is_changed_as_a_whole_is_read_again_by_its_snapshot(reading: Reading, segment: Any) -> None:
    changes = [
        Changes(ORDERS, [image(INSERT, 100, 1, "before")]),
        segment,
        Changes(ORDERS, [image(INSERT, 300, 2, "after")]),
    ]
    directory = stage(reading.lake.folder / "staging", {"shop.orders": changes}, delivery=1)
    targets = {"shop.orders": reading.lake.target("shop.orders")}
    for _ in range(2):
        merge_batch(read_staged_batch(directory), targets, reading.lake.spark, BatchContext(buffers=reading.holds))
    assert reading.holds.open["shop.orders"].after == 200
    reading.chunk(1, [])
    reading.publish(300)
    assert reading.lake.rows("shop.orders", "id", "value") == [(2, "after")]


def test_images_that_come_again_in_another_batch_are_buffered_once(reading: Reading) -> None:
    keyless = dataclasses.replace(reading, schema=dataclasses.replace(ORDERS, key=()))
    first, second, third = (image(INSERT, key, key, "same") for key in (100, 200, 300))
    keyless.merge([first, second], 1)
    keyless.merge([second, third], 2)
    keyless.merge([first], 3)
    keyless.chunk(1, [{"id": 1, "value": "read"}, {"id": 1, "value": "read"}])
    keyless.publish(100)
    found = reading.lake.rows("shop.orders", "id", "_sluice_order_key", "_sluice_operation")
    assert found == [(1, 100, "insert"), (1, 100, "insert"), (200, 200, "insert"), (300, 300, "insert")]


def test_rows_of_other_columns_than_were_buffered_are_read_again_by_the_snapshot(reading: Reading) -> None:
    reading.chunk(1, [{"id": 1, "value": "read"}])
    wider = Schema({**ORDERS.columns, "more": "int"}, key=("id",))
    dataclasses.replace(reading, schema=wider).merge([image(INSERT, 100, 2)], 1)
    with pytest.raises(ColumnsDifferError, match="other columns"):
        reading.publish(100)


def test_a_snapshot_is_not_published_over_the_table_of_another(reading: Reading) -> None:
    reading.lake.merge({"shop.orders": [Changes(ORDERS, [image(INSERT, 100, 7, "theirs")])]})
    reading.chunk(1, [])
    other = dataclasses.replace(reading)
    given = Owner(ledger_id="another", destination="shop", table="shop.orders")
    with pytest.raises(TableError, match="belongs to the destination"):
        _publish_as(other, given)
    assert reading.lake.rows("shop.orders", "id", "value") == [(7, "theirs")]


def _publish_as(reading: Reading, owner: Owner) -> None:
    publication = Publication(
        snapshot_id="0123456789ab",
        owner=owner,
        target=reading.lake.target("shop.orders"),
        columns=(LakeColumn(name="id", type="int", nullable=False), LakeColumn(name="value", type="string")),
        key=("id",),
        chunks=StoredFiles(folder=reading.lake.folder / "shop.orders-chunks"),
        rows=0,
        changes=reading.holds.open["shop.orders"].files,
        cascades=reading.holds.open["shop.orders"].cascades,
        order_key=500,
        read_at_us=0,
        run="",
        epoch=1,
        start={},
        end={},
    )
    publish_snapshot(publication, reading.lake.spark, fence=BY_HAND)


def test_rows_that_a_snapshot_read_open_versions_of_the_history(reading: Reading) -> None:
    history = f"{reading.lake.folder}/orders__history"
    reading.chunk(0, [{"id": 1, "value": "a"}, {"id": 2, "value": "b"}])
    reading.merge(
        [image(UPDATE_AFTER, 32, 2, "B"), image(INSERT, 32, 3, "c"), image(DELETE, 48, 3)], 1, history=history
    )
    changes = f"{reading.lake.folder}/orders__log"
    name = f"sluice/shop/{LEDGER_ID}/log/{reading.name}"
    change_log.append_event(SideTable(reading.name, changes, name, {}, fence=BY_HAND), "schema", (16, 0), {}, "{}")
    for _ in range(2):  # The publication is repeated.
        reading.publish(64, history=history, change_log=changes)
    reported = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(changes))
    rows = pa.table(reported.execute("SELECT operation, order_key FROM t ORDER BY order_key").read_all()).to_pylist()
    assert [tuple(row.values()) for row in rows] == [("schema", 16), ("read", 64)]
    log = deltalake.DeltaTable(history)
    query = "SELECT id, value, _sluice_from_order_key, is_current FROM t ORDER BY id"
    found = pa.table(deltalake.QueryBuilder().register("t", log).execute(query).read_all()).to_pylist()
    assert [tuple(row.values()) for row in found] == [(1, "a", 64, True), (2, "B", 32, True), (3, "c", 32, False)]


def test_a_snapshot_that_is_canceled_after_its_commit_is_in_the_history_after_the_next_batch(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is killed between its commits to the current-state table and to the history. The history already has all buffered changes, so
    both tables have the same order key, although the history lacks the snapshot's rows.
    """

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    options: dict[str, Any] = {"history": f"{reading.lake.folder}/orders__history"}
    reading.holds.open.clear()
    reading.merge([image(INSERT, 16, 1, "wrong"), image(INSERT, 16, 2, "b")], 1, **options)
    reading.holds.begin(reading.name)
    reading.chunk(0, [{"id": 1, "value": "a"}, {"id": 2, "value": "b"}])
    reading.merge([image(INSERT, 64, 3, "c")], 2, **options)
    with monkeypatch.context() as killed:
        killed.setattr(publish, "_update_history", dies)
        with pytest.raises(KeyboardInterrupt):
            reading.publish(64, **options)
    reading.holds.open.clear()
    reading.merge([image(UPDATE_AFTER, 80, 2, "B")], 3, **options)
    table = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(options["history"]))
    found = pa.table(table.execute("SELECT id, value FROM t WHERE is_current").read_all()).to_pylist()
    assert sorted(tuple(row.values()) for row in found) == reading.lake.rows(reading.name, "id", "value")
    assert sorted(tuple(row.values()) for row in found) == [(1, "a"), (2, "B"), (3, "c")]


@pytest.mark.found
def test_a_publication_that_is_repeated_or_late_is_dropped_by_its_transaction(reading: Reading) -> None:
    """Defects 5 and 22: if the table was already at the publication's order key, the commit had no transaction. A repeated or late run then
    wrote all rows again, over later changes.
    """
    reading.chunk(1, [{"id": 1, "value": "read"}])
    reading.publish(100)
    reading.snapshot_id = "ba9876543210"
    reading.publish(100)  # This run is killed after its commit. The next one finds the commit.
    log = reading.lake.log("shop.orders")
    version, name = log.version(), reading.publication(100).chunks.folder.name
    assert (
        log.transaction_version(f"sluice/shop/{LEDGER_ID}/shop.orders#{reading.publication(100).snapshot_id}/{name}")
        == 100
    )
    reading.publish(100)
    assert reading.lake.log("shop.orders").version() == version
    late = Fence(lambda: "this run does not hold the run lock of shop any more")
    with pytest.raises(TableError, match="does not hold the run lock"):
        publish_snapshot(reading.publication(200), reading.lake.spark, fence=late, records=reading.records)
    assert reading.lake.log("shop.orders").version() == version
    assert reading.lake.rows("shop.orders", "id", "value") == [(1, "read")]


@pytest.mark.found
def test_a_snapshot_keeps_the_constraints_that_a_user_added_to_the_table(reading: Reading) -> None:
    """Defect 1100: a re-snapshot removed the CHECK constraints of the Delta table, also if the new rows violate them."""
    reading.holds.open.clear()
    reading.merge([image(INSERT, 100, 1, "old")], 1)
    path = delta_path(reading.lake.path("shop.orders"))
    with open_sessions(reading.lake.spark, 1) as (session,):
        session.spark.sql(f"ALTER TABLE {path} ADD CONSTRAINT valued CHECK (value <> 'bad')")
    before = reading.lake.log("shop.orders").version()
    reading.holds.begin("shop.orders")
    reading.chunk(1, [{"id": 1, "value": "bad"}])
    violated = re.escape("CHECK constraint valued (NOT (value = 'bad')) violated by row; drop the constraint")
    with pytest.raises(TableError, match=violated):
        reading.publish(200)
    assert reading.lake.log("shop.orders").version() == before
    reading.chunk(1, [{"id": 1, "value": "read"}])
    reading.publish(200)
    assert reading.lake.rows("shop.orders", "id", "value") == [(1, "read")]
    reading.holds.open.clear()
    with pytest.raises(MergeError, match=violated):
        reading.merge([image(UPDATE_AFTER, 300, 1, "bad")], 2)
