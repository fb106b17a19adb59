"""Tests small merges, which use no Spark: other writers, crashes, checkpoints, statistics, values of every type."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from sluice.batch_manifest.table_report import TableReport
from sluice.spark_jobs import durable_lake
from sluice.spark_jobs.conflicts import COMMIT_TRIES_MAX, CommitConflicts
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.merging import merge as merging
from sluice.spark_jobs.small import merge as small_merge
from sluice.spark_jobs.small.merge import Declined, SmallJob, merge_small
from sluice.spark_jobs.staged_batch import app_id_of
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.table_owner import TABLE_OWNED, TABLE_REPLACED, Owner, TableRecord
from sluice.spark_jobs.tables.delta_table import DeltaTable
from sluice.spark_jobs.targets.report import TableTarget
from tests.durability.disk import Disk
from tests.spark.staged import (
    ARROW_TYPES,
    DELETE,
    INSERT,
    LEDGER_ID,
    UPDATE_AFTER,
    Changes,
    Image,
    Schema,
    Segment,
    stage,
)

NAME = "shop.orders"
OWNER = Owner(ledger_id=LEDGER_ID, destination="shop", table=NAME)
ORDERS = Schema({"id": "bigint", "Name": "string"}, key=("id",))
OURS = {"_sluice_order_key": "bigint", "_sluice_commit_time": "timestamp", "_sluice_operation": "string"}


def image(operation: int, order_key: int, key: int, name: str) -> Image:
    return Image(operation, order_key, {"id": key, "Name": name})


@dataclasses.dataclass
class Table:
    """An existing table, and batches of it."""

    folder: Path
    deliveries: itertools.count[int] = dataclasses.field(default_factory=lambda: itertools.count(1))

    def make(
        self, schema: Schema = ORDERS, owner: Owner = OWNER, properties: Mapping[str, str] = MappingProxyType({})
    ) -> Table:
        fields: list[Any] = [(name, ARROW_TYPES[type_name]) for name, type_name in {**schema.columns, **OURS}.items()]
        deltalake.DeltaTable.create(
            self.path,
            pa.schema(fields),
            configuration={"sluice.owner": owner.to_text(), **properties},
            raise_if_key_not_exists=False,
        )
        return self

    @property
    def path(self) -> str:
        return str(self.folder / "orders")

    @property
    def log(self) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(self.path)

    def stage(self, *segments: Segment) -> SmallJob:
        batch = read_staged_batch(stage(self.folder / "staging", {NAME: segments}, delivery=next(self.deliveries)))
        return SmallJob(
            batch=batch,
            staged=batch.tables[0],
            target=TableTarget(path=self.path, deletion_vectors=False, merge="small"),
            known=None,
            staged_at=merging.staged_at(batch),
            storage_options={},
            makes_tables=True,
        )

    def merge(self, *images: Image, schema: Schema = ORDERS) -> TableReport:
        return merged(self.stage(Changes(schema, images)))

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        query = f"SELECT {', '.join(columns)} FROM t ORDER BY 1"
        found: Any = pa.table(deltalake.QueryBuilder().register("t", self.log).execute(query).read_all())
        return [tuple(row.values()) for row in found.to_pylist()]


def merged(job: SmallJob) -> TableReport:
    result = merge_small(job, CommitConflicts())
    assert not isinstance(result, Declined), result.reason
    return result[0]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


ABC = [image(INSERT, 1, 1, "a"), image(INSERT, 2, 2, "b"), image(INSERT, 3, 3, "c")]
CHANGES = [image(UPDATE_AFTER, 11, 1, "A"), image(DELETE, 12, 2, "b"), image(INSERT, 13, 9, "new")]
CHANGED = [(1, "A"), (3, "c"), (9, "new")]
NEW_KEYS = [image(INSERT, 11, 10, "x"), image(INSERT, 12, 11, "y")]


def while_it_commits(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> list[int]:
    """Calls `act` once, after everything was read and before the commit. Returns the order keys of all commits that are tried."""
    plain, tried = small_merge._SmallMerge._commit_properties, list[int]()

    def properties(merge: Any, order_key: int) -> Any:
        tried.append(order_key)
        if len(tried) == 1:
            act()
        return plain(merge, order_key)

    monkeypatch.setattr(small_merge._SmallMerge, "_commit_properties", properties)
    return tried


@pytest.mark.parametrize("changes", [CHANGES, NEW_KEYS], ids=["merge", "append"])
def test_fault_a_task_that_another_overtook_with_the_same_batch_writes_nothing(
    table: Table, monkeypatch: pytest.MonkeyPatch, changes: Sequence[Image]
) -> None:
    table.make().merge(*ABC)
    job = table.stage(Changes(ORDERS, changes))
    tried = while_it_commits(monkeypatch, lambda: merge_small(job, CommitConflicts()))
    assert merged(job).skipped
    assert len(tried) == 2
    assert table.log.version() == 2
    assert len(table.rows("id")) == (3 if changes is CHANGES else 5)


def test_fault_an_optimize_of_the_user_that_comes_between_is_met_by_another_try(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.make().merge(*ABC)
    table.merge(image(INSERT, 4, 4, "d"))
    tried = while_it_commits(monkeypatch, table.log.optimize.compact)
    table.merge(*CHANGES)
    assert tried == [13, 13]
    assert table.rows("id", '"Name"') == [(1, "A"), (3, "c"), (4, "d"), (9, "new")]


def test_fault_a_writer_that_is_always_faster_leaves_the_table_to_spark(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.make().merge(*ABC)
    job, plain = table.stage(Changes(ORDERS, CHANGES)), small_merge._SmallMerge._commit_properties

    def properties(merge: Any, order_key: int) -> Any:
        table.log.alter.set_table_properties({"delta.logRetentionDuration": f"interval {30 + order_key} days"})
        return plain(merge, order_key)

    monkeypatch.setattr(small_merge._SmallMerge, "_commit_properties", properties)
    conflicts = CommitConflicts()
    result = merge_small(job, conflicts)
    assert isinstance(result, Declined)
    assert "committed to the Delta table first" in result.reason
    assert conflicts.total == COMMIT_TRIES_MAX


def test_fault_a_crash_after_the_commit_leaves_nothing_to_do_but_to_sync(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.make().merge(*ABC)
    job = table.stage(Changes(ORDERS, CHANGES))
    with monkeypatch.context() as patch:
        patch.setattr(durable_lake, "_sync", lambda _: (_ for _ in ()).throw(OSError("no power")))
        with pytest.raises(TableError, match="could not be synced to disk"):
            merge_small(job, CommitConflicts())
    disk = Disk(Path(table.path), monkeypatch)
    report = merged(job)
    assert (report.skipped, table.rows("id", '"Name"')) == (True, CHANGED)
    added = table.log.get_add_actions(flatten=True)
    files = [Path(table.path) / str(name) for name in pa.table(added)["path"].to_pylist()]
    commit = Path(table.path) / "_delta_log" / f"{table.log.version():020d}.json"
    assert [why for file in (*files, commit) for why in disk.loses(file)] == []


def test_fault_a_merge_is_on_disk_when_it_returns(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.make(properties={"delta.checkpointInterval": "2"})
    disk = Disk(Path(table.path), monkeypatch)
    for changes in (ABC, CHANGES, [image(UPDATE_AFTER, 21, 1, "B")], [image(UPDATE_AFTER, 31, 1, "C")]):
        before = set(Path(table.path).rglob("*"))
        table.merge(*changes)
        new = [each for each in Path(table.path).rglob("*") if each.is_file() and each not in before]
        assert new
        assert [why for file in new for why in disk.loses(file)] == []
    assert list((Path(table.path) / "_delta_log").glob("*.checkpoint.parquet"))


def test_fault_spark_s_checksum_of_the_last_checkpoint_does_not_outlive_it(table: Table) -> None:
    """Hadoop checks `_last_checkpoint` against this file. So the file must not remain when deltalake replaces `_last_checkpoint`."""
    table.make(properties={"delta.checkpointInterval": "2"}).merge(*ABC)
    log = Path(table.path) / "_delta_log"
    (log / "._last_checkpoint.crc").write_bytes(b"crc of another")
    table.merge(*CHANGES)
    assert (log / "_last_checkpoint").exists()
    assert not (log / "._last_checkpoint.crc").exists()


def test_identity_a_table_of_another_or_another_table_is_refused(table: Table) -> None:
    table.make(owner=dataclasses.replace(OWNER, ledger_id="f" * 12))
    job = table.stage(Changes(ORDERS, ABC))
    with pytest.raises(TableError) as refusal:
        merge_small(job, CommitConflicts())
    assert refusal.value.state == TABLE_OWNED
    table.log.alter.set_table_properties({"sluice.owner": OWNER.to_text()}, raise_if_not_exists=False)
    with pytest.raises(TableError) as refusal:
        merge_small(dataclasses.replace(job, known=TableRecord(table_id="other", version=0)), CommitConflicts())
    assert refusal.value.state == TABLE_REPLACED
    assert table.log.version() == 1
    assert (
        merged(
            dataclasses.replace(job, known=TableRecord(table_id=str(table.log.metadata().id), version=1))
        ).rows_inserted
        == 3
    )


def test_identity_an_older_image_never_overwrites_a_newer_row(table: Table) -> None:
    table.make().merge(*CHANGES)
    log = table.log
    another = app_id_of(dataclasses.replace(OWNER, ledger_id="f" * 12))
    job = table.stage(
        Changes(ORDERS, [image(UPDATE_AFTER, 5, 1, "old"), image(DELETE, 6, 9, ""), image(INSERT, 7, 4, "d")])
    )
    # With another owner, the table looks as if another ledger took it over. The transactions of that ledger do not show the earlier
    # changes.
    log.alter.set_table_properties(
        {"sluice.owner": dataclasses.replace(OWNER, ledger_id="f" * 12).to_text()}, raise_if_not_exists=False
    )
    batch = dataclasses.replace(job.batch, ledger_id="f" * 12)
    merged(dataclasses.replace(job, batch=batch))
    assert table.rows("id", '"Name"') == [(1, "A"), (4, "d"), (9, "new")]
    assert table.log.transaction_version(another) == 7


def test_changes_that_the_table_has_of_a_batch_with_another_end_are_left_out(table: Table) -> None:
    log = Schema(ORDERS.columns)
    table.make().merge(*ABC, schema=log)
    table.merge(*ABC, image(INSERT, 4, 1, "a"), image(DELETE, 5, 1, "a"), schema=log)
    assert table.rows("_sluice_order_key", '"Name"', "_sluice_operation") == [
        *((1, "a", "insert"), (2, "b", "insert"), (3, "c", "insert"), (4, "a", "insert"), (5, "a", "delete")),
    ]


def test_keys_are_new_only_where_statistics_prove_it(table: Table) -> None:
    table.make(properties={"delta.dataSkippingNumIndexedCols": "0"}).merge(*ABC)
    table.merge(image(INSERT, 11, 3, "again"), image(INSERT, 12, 50, "x"))
    assert table.rows("id", '"Name"') == [(1, "a"), (2, "b"), (3, "again"), (50, "x")]
    assert table.log.history(1)[0]["operation"] == "MERGE"


def test_new_keys_are_appended_and_what_came_and_went_among_them_is_not(table: Table) -> None:
    table.make().merge(*ABC)
    report = table.merge(*NEW_KEYS, image(DELETE, 13, 10, "x"))
    assert table.log.history(1)[0]["operation"] == "WRITE"
    assert (report.rows_inserted, report.files_added, report.files_removed) == (1, 1, 0)
    assert table.rows("id", '"Name"', "_sluice_operation")[-1] == (11, "y", "insert")


VALUES: dict[str, Any] = {
    "tinyint": -128, "smallint": -(2**15), "int": 2**31 - 1, "bigint": -(2**63), "string": "ß\x00'\"`\U0001f600", "boolean": True,
    "float": 1.5, "double": -0.1, "date": dt.date(1, 1, 1), "binary": b"\x00\xff", "timestamp": dt.datetime(1500, 1, 1, 1, 1, 1, 1, dt.UTC),
    "timestamp_ntz": dt.datetime(9999, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001  of no zone
    "decimal(20,0)": Decimal(2**64 - 1), "decimal(10,2)": Decimal("-99999999.99"), "decimal(12,2)": None,
}  # fmt: skip


@pytest.mark.parametrize(
    "kind", ["tinyint", "bigint", "string", "date", "binary", "timestamp", "timestamp_ntz", "decimal(20,0)"]
)
def test_values_of_every_type_and_keys_of_any(table: Table, kind: str) -> None:
    columns = {"k": kind, **{f"c{index}": type_name for index, type_name in enumerate(VALUES)}}
    schema = Schema(columns, key=("k",))
    row = {"k": VALUES[kind], **{f"c{index}": value for index, value in enumerate(VALUES.values())}}
    table.make(schema)
    table.merge(Image(INSERT, 1, row), schema=schema)
    names = [f"c{index}" for index in range(len(VALUES))]
    assert table.rows(*names) == [tuple(VALUES.values())]
    table.merge(Image(UPDATE_AFTER, 2, {"k": row["k"]}), schema=schema)
    assert table.rows("k", *names) == [(row["k"], *[None] * len(VALUES))]
    table.merge(Image(UPDATE_AFTER, 3, row), Image(DELETE, 4, row), Image(INSERT, 5, row), schema=schema)
    assert table.rows(*names) == [tuple(VALUES.values())]
    table.merge(Image(DELETE, 6, row), schema=schema)
    assert table.rows("k") == []


def test_keys_of_two_columns_and_long_text_that_statistics_truncate(table: Table) -> None:
    schema = Schema({"a": "string", "b": "int", "n": "string"}, key=("a", "b"))
    table.make(schema)
    for number, mail in enumerate(("\U0010ffff", "ÿ", "a")):
        key = {"a": mail * 200, "b": number}
        table.merge(Image(INSERT, 10 * number + 1, {**key, "n": "x"}), schema=schema)
        table.merge(Image(UPDATE_AFTER, 10 * number + 2, {**key, "n": "y"}), schema=schema)
        table.merge(Image(INSERT, 10 * number + 3, {**key, "b": 9, "n": "z"}), schema=schema)
    assert sorted(row[1:] for row in table.rows("a", "b", "n")) == [
        (0, "y"),
        (1, "y"),
        (2, "y"),
        (9, "z"),
        (9, "z"),
        (9, "z"),
    ]


@pytest.mark.found
@pytest.mark.parametrize("key", [9, 2], ids=["append", "merge"])
def test_a_late_task_restores_no_row_that_a_newer_batch_inserted_and_deleted(table: Table, key: int) -> None:
    """Defect 5: a merge that changed no row left no transaction in the log. A suspended host then continued with an older task for the same
    changes, and inserted a row that was deleted in the meantime.
    """
    table.make().merge(*ABC, image(DELETE, 4, 2, "b"))
    late = table.stage(Changes(ORDERS, [image(INSERT, 11, key, "gone")]))
    newer = table.stage(Changes(ORDERS, [image(INSERT, 11, key, "gone"), image(DELETE, 12, key, "gone")]))
    assert not merged(newer).skipped
    assert merged(late).skipped
    assert table.rows("id", '"Name"') == [(1, "a"), (3, "c")]


@pytest.mark.found
@pytest.mark.parametrize("key", [9, 2], ids=["append", "merge"])
def test_a_late_task_restores_no_row_that_images_without_all_columns_inserted_and_deleted(
    table: Table, key: int
) -> None:
    """Defect 1050: if images lacked columns and a merge changed no row, no commit stored the transaction. A late task for the same changes
    up to an earlier position then inserted a row that was deleted in the meantime.
    """
    table.make().merge(*ABC, image(DELETE, 4, 2, "b"))
    inserted, deleted = image(INSERT, 11, key, "gone"), Image(DELETE, 12, {"id": key})
    late = table.stage(Changes(ORDERS, [inserted], partial=True))
    newer = table.stage(Changes(ORDERS, [inserted, deleted], partial=True))
    assert not merged(newer).skipped
    assert merged(late).skipped
    assert table.rows("id", '"Name"') == [(1, "a"), (3, "c")]


@pytest.mark.found
def test_images_that_lack_columns_keep_the_values_of_every_type(table: Table) -> None:
    """Defect 1049: deltalake returns texts and bytes of the lake as views, from which Arrow cannot take values. So Spark had to merge each
    batch with images that lack columns.
    """
    schema = Schema({"k": "bigint", **{f"c{index}": kind for index, kind in enumerate(VALUES)}}, key=("k",))
    row = {"k": 1, **{f"c{index}": value for index, value in enumerate(VALUES.values())}}
    table.make(schema).merge(Image(INSERT, 1, row), schema=schema)
    assert (
        merged(table.stage(Changes(schema, [Image(UPDATE_AFTER, 2, {"k": 1, "c3": 7})], partial=True))).way == "small"
    )
    assert table.rows(*list(row)[1:]) == [tuple({**row, "c3": 7}.values())[1:]]


@pytest.mark.found
def test_fault_a_commit_that_another_was_written_over_is_made_again(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 22: if Spark checks and then writes, a commit can be replaced by a commit that began earlier. Therefore each commit is read
    back.
    """
    table.make().merge(*ABC)
    refresh, over = DeltaTable.refresh, list[int]()

    def written_over(made: DeltaTable) -> Any:
        if made.snapshot.exists and not over:
            over.append(table.log.version())
            assert over[0] > made.snapshot.version, "it has committed"
            (Path(table.path) / "_delta_log" / f"{over[0]:020d}.json").write_text(
                json.dumps({"commitInfo": {"operation": "OPTIMIZE"}})
            )
        return refresh(made)

    monkeypatch.setattr(DeltaTable, "refresh", written_over)
    table.merge(*CHANGES)
    assert over
    assert table.rows("id", '"Name"') == CHANGED


@pytest.mark.found
def test_a_row_that_is_inserted_again_is_not_marked_as_deleted_under_hard_deletes(table: Table) -> None:
    """Defect 1034: after conf/ changed `deletes` to hard and the table was resumed, a row that had been deleted softly and was inserted
    again stayed marked as deleted, so views and comparisons missed it.
    """
    soft = table.stage(Changes(ORDERS, [*ABC, image(DELETE, 4, 1, "a"), image(DELETE, 5, 2, "b")]))
    merged(dataclasses.replace(soft, target=dataclasses.replace(soft.target, deletes="soft")))
    assert table.rows("id", "_sluice_deleted") == [(1, True), (2, True), (3, False)]
    table.merge(image(INSERT, 11, 1, "again"), image(UPDATE_AFTER, 12, 3, "C"), image(INSERT, 13, 9, "new"))
    assert table.rows("id", "_sluice_deleted") == [(1, None), (2, True), (3, None), (9, None)]
