"""Tests a new table that consists of the files into which its rows were read: it is made without Spark, in one commit, and as Spark would
make it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import itertools
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.batch_manifest.values import LakeColumn
from sluice.cdc_engine.durable_files import sync_files
from sluice.cdc_engine.snapshot.read import Marks
from sluice.object_stores.stored_files import StoredFiles
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.fence import BY_HAND, Fence
from sluice.spark_jobs.session import SparkSettings, open_sessions
from sluice.spark_jobs.snapshot import publish as publish_module
from sluice.spark_jobs.snapshot import whole_files
from sluice.spark_jobs.snapshot.buffered_keys import BufferedKeys
from sluice.spark_jobs.snapshot.buffering import buffer_table
from sluice.spark_jobs.snapshot.publication import PublishedSnapshot
from sluice.spark_jobs.snapshot.publish import publish
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.tables import new_table
from sluice.spark_jobs.tables.delta_table import NO_TABLE, DeltaTable
from sluice.spark_jobs.tables.file_statistics import statistics
from sluice.spark_jobs.targets.layout import Layout
from tests.durability.disk import Disk
from tests.spark.conftest import Lake
from tests.spark.merging.test_fold_equals_replay import DIVISIONS, KEYED, Model, deliveries, replay
from tests.spark.snapshot.test_publish_snapshot import ORDERS, READ_AT_US, Holding, Reading, image
from tests.spark.staged import DELETE, INSERT, UPDATE_AFTER, Changes, Image, Schema, stage

SINCE = 50
NAME = "shop.orders"
MARKS = Marks(order_key=SINCE, commit_time_us=READ_AT_US)
STEPS = st.tuples(
    st.sampled_from(["insert", "update", "delete", "move", "swap", "replace"]), st.integers(0, 4), st.integers(0, 4)
)


class NoSpark:
    """Replaces a Spark session. Every call of Spark except for its settings is an error."""

    fence, session = BY_HAND, None

    def defaults_of_tables(self) -> tuple[str, ...]:
        return ()


def reading_in(folder: Path, schema: Schema = ORDERS, name: str = NAME) -> Reading:
    holds = Holding(folder / "held")
    holds.begin(name)
    return Reading(Lake(folder, SparkSettings()), name, schema, holds, marks=MARKS)


def hold(reading: Reading, images: Sequence[Image], number: int) -> None:
    changes = {reading.name: [Changes(reading.schema, images)]}
    batch = read_staged_batch(stage(reading.lake.folder / "staging", changes, delivery=number))
    target = reading.lake.target(reading.name)
    buffer_table(batch.tables[0], target, reading.holds, reading.holds.open[reading.name])


def publish_files(reading: Reading, index: int, **options: Any) -> PublishedSnapshot:
    done = publish(NoSpark(), reading.publication(index, SINCE, **options), {}, reading.records)  # type: ignore[arg-type]
    assert done.way == "files", done.reason
    return done


@pytest.fixture
def reading(tmp_path: Path) -> Reading:
    """Starts a snapshot of shop.orders, with nothing buffered yet."""
    return reading_in(tmp_path)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(streams=st.lists(st.lists(STEPS, max_size=12), min_size=1, max_size=6), divisions=DIVISIONS, data=st.data())
def test_a_snapshot_made_of_files_equals_the_replay_of_the_stream(
    tmp_path_factory: pytest.TempPathFactory, streams: Any, divisions: Any, data: Any
) -> None:
    """A row that was read overwrites no later change. A row that was deleted while it was read does not come back."""
    models = replay(streams)
    transactions = [transaction for model in models for transaction in model.transactions]
    begin = data.draw(st.integers(0, len(transactions)), "transactions before the snapshot")
    reading = reading_in(tmp_path_factory.mktemp("files"), KEYED)
    for number, model in enumerate(models):
        read_at = data.draw(st.integers(begin, len(transactions)), "read at")
        reading.chunk(number, _state(model, transactions[:read_at]))
    buffered = deliveries(transactions[begin:], divisions)
    for number, images in enumerate(buffered):
        hold(reading, images, number)
    publish_files(reading, max((images[-1].order_key for images in buffered), default=0))
    live = sorted((model.stream, key, value) for model in models for key, value in model.rows.items())
    assert sorted(reading.lake.rows(NAME, "stream", "id", "value")) == live
    shutil.rmtree(reading.lake.folder)


def _state(model: Model, transactions: Sequence[Sequence[Image]]) -> list[dict[str, Any]]:
    rows: dict[int, dict[str, Any]] = {}
    for each in itertools.chain.from_iterable(transactions):
        if each.values["stream"] == model.stream:
            if each.operation in {INSERT, UPDATE_AFTER}:
                rows[each.values["id"]] = each.values
            else:
                rows.pop(each.values["id"], None)
    return list(rows.values())


def test_only_the_chunk_of_a_snapshot_that_has_changed_rows_is_rewritten(reading: Reading) -> None:
    for number, first in enumerate((0, 10, 20)):
        reading.chunk(number, [{"id": first + each, "value": "read"} for each in range(5)])
    reading.chunk(3, [])
    reading.chunk(4, [{"id": 70, "value": "all of it goes"}])
    hold(reading, [image(UPDATE_AFTER, 100, 11, "held"), image(DELETE, 100, 12), image(DELETE, 100, 70)], 1)
    hold(reading, [image(INSERT, 200, 99, "new")], 2)
    done = publish_files(reading, 300)
    assert (done.label, done.delta_version, done.files, done.rows, done.table_rows) == (300, 0, 4, 15, 15)
    folder = Path(reading.lake.path(NAME))
    mine = {path.stat().st_ino for path in folder.glob("*.parquet")}
    read = [path.stat().st_ino for path in sorted((reading.lake.folder / f"{NAME}-chunks").iterdir())]
    assert [each in mine for each in read] == [True, False, True, False, False]
    rows = reading.lake.rows(NAME, "id", "value", "_sluice_order_key", "_sluice_operation")
    assert [row for row in rows if row[1] != "read"] == [(11, "held", 100, "update"), (99, "new", 200, "insert")]
    assert rows[0] == (0, "read", SINCE, "snapshot")
    assert {row[0] for row in rows} == {*range(5), 10, 11, 13, 14, *range(20, 25), 99}
    log = reading.lake.log(NAME)
    assert log.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=True) == []
    bounds = pa.table(log.get_add_actions(flatten=True))
    assert sorted(zip(bounds["min.id"].to_pylist(), bounds["max.id"].to_pylist(), strict=True)) == [
        (0, 4),
        (10, 14),
        (11, 99),
        (20, 24),
    ]


def test_fault_what_a_killed_publication_of_a_snapshot_left_goes_with_the_next_one(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is killed between the files and the commit. No reader sees a table, and the next attempt completes it."""
    reading.chunk(1, [{"id": 1, "value": "read"}])
    lake = Path(reading.lake.path(NAME)).parent

    class KilledError(BaseException):
        """The simulated kill, after which nothing is cleaned up."""

    def killed(*_: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(new_table, "first_commit", killed)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(KilledError):
            publish_files(reading, 100)
    assert [path.name for path in lake.iterdir()] == [f".{NAME}.snapshot-0123456789ab"]
    (lake / f".{NAME}.snapshot-ba9876543210").mkdir()  # This folder is from a snapshot that was canceled since.
    (lake / f".{NAME}2.snapshot-0123456789ab").mkdir()  # This folder belongs to another table.
    publish_files(reading, 100)
    assert sorted(path.name for path in lake.iterdir()) == [f".{NAME}2.snapshot-0123456789ab", NAME]
    assert reading.lake.rows(NAME, "id", "value") == [(1, "read")]


def test_fault_a_snapshot_of_a_publication_that_was_killed_before_it_was_on_disk_is_put_there_by_the_next(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next publication finds the table, so it makes no commit that would sync the names of the table's folders. It must sync these
    names without a commit.
    """
    reading.chunk(1, [{"id": 1, "value": "read"}])
    disk = Disk(reading.lake.folder, monkeypatch)

    class KilledError(BaseException):
        """The simulated kill, before anything is synced."""

    def killed(*_: Any, **__: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(publish_module, "sync_names", killed)
        with pytest.raises(KilledError):
            publish_files(reading, 100)
    table = Path(reading.lake.path(NAME))
    files = [each for each in table.rglob("*") if each.is_file()]
    assert [why for each in files for why in disk.loses(each)], "its name is not on disk yet"
    monkeypatch.setattr(publish_module, "_make_by_spark", lambda *_: None)
    monkeypatch.setattr(DeltaTable, "own_commit", lambda *_: None)  # There is no commit, so none is read back.
    publish(NoSpark(), reading.publication(100, SINCE), {}, reading.records)  # type: ignore[arg-type]
    assert [why for each in files for why in disk.loses(each)] == []


def test_a_new_table_of_a_snapshot_is_on_disk_and_nothing_is_synced_twice(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier, the files of 200 small tables were synced one by one before their folder got its name, and again afterwards."""
    disk, synced = Disk(reading.lake.folder, monkeypatch), list[Path]()
    of_disk = os.fsync

    def fsync(file: int) -> None:
        synced.append(Path(f"/proc/self/fd/{file}").resolve())
        of_disk(file)

    monkeypatch.setattr(os, "fsync", fsync)
    for name in (NAME, "shop.items"):
        each = Reading(reading.lake, name, ORDERS, reading.holds, marks=MARKS)
        if name != NAME:
            each.holds.begin(name)
        each.chunk(1, [{"id": 1, "value": "read"}])
        sync_files(reading.lake.folder / f"{name}-chunks")  # As `read_chunk` does.
        synced.clear()
        publish_files(each, 100)
        table = Path(reading.lake.path(name))
        assert [why for file in table.rglob("*") if file.is_file() for why in disk.loses(file)] == []
    assert sorted(path.suffix or path.name for path in synced) == [
        ".json",
        ".snapshot-0123456789ab",
        "_delta_log",
        table.parent.name,
    ]


def test_a_snapshot_queries_no_date_that_python_does_not_have(reading: Reading) -> None:
    """MySQL accepts a year 0, also in a key."""
    days = Reading(reading.lake, "shop.days", Schema({"day": "date"}, key=("day",)), reading.holds, marks=MARKS)
    days.holds.begin(days.name)
    days.chunk(1, [{"day": dt.date(2026, 11, 23)}, {"day": dt.date(2026, 11, 24)}])
    file = reading.lake.folder / "shop.days-chunks" / "000001.parquet"
    rows = pq.read_table(file)
    year_0 = pa.array([-719_528, 20_780], pa.int32()).cast(pa.date32())
    pq.write_table(rows.set_column(0, "day", year_0), file)
    hold(days, [Image(DELETE, 100, {"day": year_0[1].as_py()})], 1)
    publish_files(days, 200)
    (left,) = Path(days.lake.path(days.name)).glob("*.parquet")
    assert pq.read_table(left)["day"].cast(pa.int32()).to_pylist() == [-719_528]


@pytest.mark.parametrize("more", [(), ("again",)], ids=["one column", "two columns"])
def test_a_key_of_a_snapshot_is_found_by_its_very_value(tmp_path: Path, more: tuple[str, ...]) -> None:
    """Keys that differ only in case or in trailing blanks are different keys, whatever their collation in the source. This is also the case
    if Spark makes the table.
    """
    kinds = {kind: values for kind, values in VALUES.values() if kind not in {pa.float32(), pa.float64()}}
    for kind, values in [*kinds.items(), (pa.string(), ["a", "A", "a ", "", "á"]), (pa.binary(), [b"", b"a", b"a\0"])]:
        column = pa.array([value for value in values if value is not None], kind)
        rows = pa.table(dict.fromkeys(("id", *more), column))
        for index in range(len(column)):
            images = rows.slice(index, 1)
            for name, value in (*MARKS.columns().items(), ("_sluice_row", pa.scalar(0))):
                images = images.append_column(name, pa.array([value], value.type))
            buffered = images.set_column(
                images.schema.get_field_index("_sluice_operation"), "_sluice_operation", [[DELETE]]
            )
            pq.write_table(buffered, tmp_path / "1.parquet")
            keys = BufferedKeys(StoredFiles(folder=tmp_path), ("id", *more), images.drop(["_sluice_row"]).schema)
            assert keys.among(rows).tolist() == [each == index for each in range(len(column))], kind


def test_identity_a_path_of_a_new_table_that_has_files_is_left_to_spark(reading: Reading) -> None:
    reading.chunk(1, [{"id": 1, "value": "read"}])
    table_folder = Path(reading.lake.path(NAME))
    table_folder.mkdir(parents=True)
    (table_folder / "notes.txt").write_text("of somebody")
    with pytest.raises(AttributeError):  # There is no such Spark.
        publish(NoSpark(), reading.publication(100, SINCE), {}, reading.records)  # type: ignore[arg-type]
    assert [each.name for each in table_folder.iterdir()] == ["notes.txt"]
    assert [each.name for each in table_folder.parent.iterdir()] == [table_folder.name]


@pytest.mark.parametrize(
    ("changed", "options", "reported"),
    [
        ({"key": ()}, {}, "no key"),
        ({"key": ("ID",)}, {}, "spells the key column ID differently"),
        ({}, {"deletes": "soft"}, "marked"),
        ({}, {"merge": "spark"}, "`merge` in conf/ selects this"),
        ({}, {"layout": Layout(cluster_by=("value",))}, "defines the layout"),
        ({}, {"path": "hdfs://lake/orders"}, "neither in a folder of this machine nor in S3"),
        ({"columns": (LakeColumn(name="a b", type="int"),)}, {}, "characters other than letters"),
        ({"since": SINCE + 1}, {}, "lack the order key"),
        ({"read_at_us": 0}, {}, "lack the order key"),
    ],
)
def test_a_snapshot_that_cannot_be_made_of_files_says_why(
    reading: Reading, changed: Any, options: Any, reported: str
) -> None:
    reading.chunk(1, [{"id": 1, "value": "read"}])
    publication = dataclasses.replace(reading.publication(100, SINCE, **options), **changed)
    assert reported in whole_files.why_not(publication, NO_TABLE, tuple)


def test_a_snapshot_leaves_many_buffered_changes_to_spark(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    reading.chunk(1, [{"id": 1, "value": "read"}])
    hold(reading, [image(INSERT, 100, 7), image(INSERT, 100, 8)], 1)
    given = reading.publication(100, SINCE)
    assert not whole_files.why_not(given, NO_TABLE, tuple)
    monkeypatch.setattr(whole_files, "BUFFERED_ROWS_MAX", 1)
    assert "2 changes of the table were buffered" in whole_files.why_not(given, NO_TABLE, tuple)
    nullable = dataclasses.replace(given, columns=(LakeColumn(name="id", type="int"), given.columns[1]))
    assert "may be NULL" in whole_files.why_not(nullable, NO_TABLE, tuple)


def test_fault_files_of_a_snapshot_that_are_gone_after_the_commit_are_reported(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading.chunk(1, [{"id": 1, "value": "read"}])
    made = new_table.make_table

    def taken(path: str, *given: Any, **options: Any) -> bool:
        done = made(path, *given, **options)
        next(Path(path).glob("*.parquet")).unlink()
        return done

    monkeypatch.setattr(whole_files, "make_table", taken)
    with pytest.raises(TableError, match="is missing"):
        publish_files(reading, 100)


MORNING = dt.datetime(2026, 11, 23, 7, 8, 9, 123456, dt.UTC)
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "tinyint": (pa.int8(), [-128, 127]),
    "smallint": (pa.int16(), [-32768, 5]),
    "int": (pa.int32(), [3, None]),
    "bigint": (pa.int64(), [-(2**63), 2**63 - 1]),
    "float": (pa.float32(), [-0.0, 1.5]),
    "double": (pa.float64(), [float("nan"), 1e300]),
    "boolean": (pa.bool_(), [True, False]),
    "string": (pa.string(), ["ß" * 40, 'a"\n']),
    "binary": (pa.binary(), [b"\x00", b"\xff"]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "timestamp": (pa.timestamp("us", "UTC"), [MORNING, dt.datetime(1969, 1, 1, tzinfo=dt.UTC)]),
    "timestamp_ntz": (pa.timestamp("us"), [MORNING.replace(tzinfo=None), None]),
    "decimal(7,2)": (pa.decimal128(7, 2), [decimal.Decimal("-0.05"), decimal.Decimal("99999.99")]),
    "decimal(20,0)": (pa.decimal128(20, 0), [decimal.Decimal(2**64 - 1), None]),
    "decimal(38,30)": (pa.decimal128(38, 30), [None, None]),
}


def _typed() -> tuple[tuple[LakeColumn, ...], pa.Table]:
    columns = (
        LakeColumn(name="id", type="int", nullable=False),
        *(LakeColumn(name=f"c{n}", type=t) for n, t in enumerate(VALUES)),
    )
    arrays = [pa.array([1, 2], pa.int32()), *(pa.array(values, kind) for kind, values in VALUES.values())]
    return columns, pa.Table.from_arrays(arrays, names=[column.name for column in columns])


def test_statistics_of_a_snapshots_files_hold_every_value(tmp_path: Path) -> None:
    """The statistics are compared with those that deltalake computes for the same rows. If they are wider, they must
    contain deltalake's.
    """
    columns, rows = _typed()
    pq.write_table(rows, tmp_path / "t.parquet", row_group_size=1)
    deltalake.write_deltalake(tmp_path / "theirs", rows, configuration={"delta.minWriterVersion": "7"})
    theirs = _flat(deltalake.DeltaTable(tmp_path / "theirs"))
    text = statistics(pq.read_metadata(tmp_path / "t.parquet"), columns, len(columns))
    commit = next((tmp_path / "theirs" / "_delta_log").glob("*.json"))
    lines = [_with_statistics(line, text) for line in commit.read_text().splitlines()]
    commit.write_text("\n".join(lines) + "\n")
    ours = _flat(deltalake.DeltaTable(tmp_path / "theirs"))
    assert ours["num_records"] == 2
    # deltalake writes no statistics of binary columns.
    reported = {name: value for name, value in theirs.items() if value is not None}
    differ = {name.partition(".")[::2] for name, value in reported.items() if ours[name] != value}
    names = {column.name: column.type for column in columns}
    wider = {"string", "timestamp", "timestamp_ntz"}
    # deltalake limits integers to 2^63, and supports no NaN.
    assert {names[name] for _, name in differ} <= {*wider, "double", "decimal(20,0)"}
    assert ours["min.c13"] == ours["max.c13"] == decimal.Decimal(2**64 - 1)
    assert not {"min.c5", "max.c5", "min.c8"} & {name for name, value in ours.items() if value is not None}
    assert ours["max.c7"] > "ß" * 40
    assert ours["min.c10"] == dt.datetime(1969, 1, 1, tzinfo=dt.UTC)
    assert MORNING <= ours["max.c10"] <= MORNING + dt.timedelta(milliseconds=1)


def _flat(table: deltalake.DeltaTable) -> dict[str, Any]:
    (found,) = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return {
        name: value
        for name, value in found.items()
        if name.partition(".")[0] in {"min", "max", "null_count", "num_records"}
    }


def _with_statistics(line: str, text: str) -> str:
    action = json.loads(line)
    if "add" in action:
        action["add"]["stats"] = text
    return json.dumps(action)


@pytest.mark.spark
def test_a_table_that_a_snapshot_made_of_files_is_spark_s_own(lake: Lake) -> None:
    """A table made of files has the same values of every type as a table made by Spark, and its statistics exclude no row. OPTIMIZE, a
    repeated publication and the next snapshot accept it.
    """
    columns, rows = _typed()
    schema = Schema({column.name: column.type for column in columns}, key=("id",))
    holds = Holding(lake.folder / "held")
    found = {}
    for way in ("auto", "spark"):
        holds.begin(f"shop.{way}")
        reading = Reading(lake, f"shop.{way}", schema, holds, marks=MARKS)
        folder = lake.folder / f"shop.{way}-chunks"
        folder.mkdir()
        whole = rows
        for name, value in MARKS.columns().items():
            whole = whole.append_column(name, pa.array([value] * 2, value.type))
        pq.write_table(whole, folder / "000001.parquet")
        found[way] = reading.publish(100, since=SINCE, merge=way), reading
    assert [found[way][0].way for way in ("auto", "spark")] == ["files", "spark"]

    with open_sessions(lake.spark, 1) as sessions:
        session = sessions[0].spark
        mine, other = (f"delta.`{lake.path(f'shop.{way}')}`" for way in ("auto", "spark"))
        assert session.sql(f"(SELECT * FROM {mine} EXCEPT ALL SELECT * FROM {other})").collect() == []
        assert session.sql(f"SELECT count(*) FROM {mine}").collect()[0][0] == 2
        for column in columns[1:]:
            kept = f"SELECT {column.name} FROM {other} WHERE {column.name} IS NOT NULL"
            requested = f"SELECT count(*) FROM {mine} WHERE {column.name} IN ({kept})"
            known = [value for value in rows[column.name].to_pylist() if value is not None]
            assert session.sql(requested).collect()[0][0] == len(known), column
        session.sql(f"OPTIMIZE {mine}")
    first = found["auto"][1]
    assert first.publish(100, since=SINCE).way == "files"  # The run was killed before its record was written.
    first.snapshot_id = "ba9876543210"
    assert first.publish(100, since=SINCE).way == "spark"
    assert lake.rows("shop.auto", "id") == [(1,), (2,)]


@pytest.mark.found
def test_a_publication_that_is_late_makes_no_table_ha(tmp_path: Path) -> None:
    """Defect 5: a publication checked the run lock only before it began to write files. Another host may have published meanwhile."""
    reading = reading_in(tmp_path)
    reading.chunk(1, [{"id": 1, "value": "read"}])
    late = NoSpark()
    late.fence = Fence(lambda: "this run does not hold the run lock of shop any more")
    with pytest.raises(TableError, match="does not hold the run lock"):
        publish(late, reading.publication(100, SINCE), {}, reading.records)  # type: ignore[arg-type]
    assert not Path(reading.publication(100).target.path).exists()
    assert publish_files(reading, 100).rows == 1


def test_a_snapshot_leaves_large_buffered_changes_to_spark(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    reading.chunk(1, [{"id": 1, "value": "read"}])
    hold(reading, [image(INSERT, 100, 7)], 1)
    given = reading.publication(100, SINCE)
    assert not whole_files.why_not(given, NO_TABLE, tuple)
    monkeypatch.setattr(whole_files, "BUFFERED_BYTES_MAX", 100)
    assert "1 changes of the table were buffered" in whole_files.why_not(given, NO_TABLE, tuple)
