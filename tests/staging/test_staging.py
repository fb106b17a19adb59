"""Tests a batch on its way to disk: the contents of its files and its manifest, and that no incomplete or wrong file is ever left."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batch_manifest.values import ChangesSegment, SchemaSegment, TruncateSegment
from sluice.cdc_engine.binlog.rows.decoder import COMMIT_TIME, OPERATION, ORDER_KEY
from sluice.cdc_engine.contracts import (
    Batch,
    Block,
    BlockSlice,
    Column,
    RowEventKind,
    TableChange,
    TableChangeKind,
    TableVersion,
)
from sluice.cdc_engine.errors import BinlogFormatError, StagingError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.staging import StagingRules, segment_writer, stage, staging
from sluice.cdc_engine.staging.reader import read_manifest
from sluice.cdc_engine.staging.segment_writer import ROW
from sluice.spark_jobs.staged_files.read import read_staged_batch
from tests.binlog.rows.event_bytes import ID, KEYLESS, NOTE, ORDERS, Row, block, event
from tests.staging.staged_rows import read_rows

INSERT, UPDATE, DELETE = RowEventKind.INSERT, RowEventKind.UPDATE, RowEventKind.DELETE
FILE = "binlog.000002"
Event = tuple[TableVersion, RowEventKind, Sequence[Row]]


def whole(given_block: Block) -> BlockSlice:
    return BlockSlice(given_block, 0, given_block.event_count)


def rows_block(*events: Event, start: int = 4) -> Block:
    return block(
        [(table, kind, event(kind, images, columns=len(table.columns))) for table, kind, images in events], start
    )


def change(kind: TableChangeKind, at: int, table: TableVersion = ORDERS, **fields: Any) -> BlockSlice:
    key = Position(epoch=1, file=FILE, offset=at).order_key
    made = TableChange(kind=kind, database=table.database, table=table.table, order_key=key, time_us=5, **fields)
    return whole(dataclasses.replace(rows_block(), changes=(made,)))


def batch(*slices: BlockSlice, end: int = 100_000) -> Batch:
    start = Position(epoch=1, file=FILE, offset=4, gtid_set="a:1-2")
    return Batch(
        batch_id=1,
        start=start,
        end=Position(epoch=1, file=FILE, offset=end, gtid_set="a:1-9", time_us=7),
        slices=tuple(slices),
        event_count=sum(each.last_event - each.first_event for each in slices),
        byte_count=sum(each.block.byte_count for each in slices),
    )


def changes(directory: Path) -> list[ChangesSegment]:
    tables = read_manifest(directory).tables
    return [segment for table in tables for segment in table.segments if isinstance(segment, ChangesSegment)]


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*.parquet")}


def test_a_batch_is_a_file_a_table_and_a_manifest(tmp_path: Path) -> None:
    given_block = rows_block(
        (ORDERS, INSERT, [(3, 30, "c"), (1, 10, "a")]),
        (KEYLESS, INSERT, [(7, 7, "log")]),
        (ORDERS, UPDATE, [(1, 10, "a"), (1, 11, "a"), (3, 30, "c"), (4, 30, "c")]),
        (ORDERS, DELETE, [(1, 11, "a")]),
    )
    staged = stage(batch(whole(given_block)), "shop", 7, tmp_path)
    assert staged.path == tmp_path / "1-2-100000-7"
    assert not staged.stopped
    orders, log = changes(staged.path)
    assert (orders.rows, orders.inserts, orders.updates, orders.deletes, orders.key_changes) == (6, 2, 2, 1, 1)
    assert (orders.key, orders.key_min, orders.key_max, orders.unique_keys) == (("id",), (1,), (4,), False)
    assert (orders.first_commit_time_us, orders.last_commit_time_us) == (1_000_000, 4_000_000)
    assert (log.rows, log.key, log.key_min, log.key_max, log.unique_keys) == (1, (), (), (), False)
    assert (staged.manifest.rows, staged.manifest.changes, staged.manifest.bytes) == (7, 6, given_block.byte_count)
    assert read_manifest(staged.path) == staged.manifest
    found = read_rows(staged.path, orders)
    assert found.column_names == [OPERATION, ORDER_KEY, COMMIT_TIME, "id", "amount", "note", ROW]
    assert list(zip(found[OPERATION].to_pylist(), found["id"].to_pylist(), strict=True)) == [
        (1, 3),
        (1, 1),
        (3, 1),
        (2, 3),
        (3, 4),
        (4, 1),
    ]
    assert found[ROW].to_pylist() == [1, 2, 3, 4, 5, 6]
    keys = found[ORDER_KEY].to_pylist()
    assert (keys[0], keys[-1]) == (orders.first_order_key, orders.last_order_key)


def test_a_run_can_read_what_was_staged(tmp_path: Path) -> None:
    staged = stage(batch(whole(rows_block((ORDERS, INSERT, [(1, 1, "a")])))), "shop", 7, tmp_path)
    found = read_staged_batch(staged.path)
    assert found.tables[0].changes[0].rows == 1
    assert found.tables[0].changes[0].key_min == (1,)


def test_the_manifest_is_the_json_of_the_architecture_page(tmp_path: Path) -> None:
    given_block = rows_block((ORDERS, INSERT, [(1, 1, "a")]))
    schema = change(TableChangeKind.SCHEMA, 90_000, schema=ORDERS)
    staged = stage(batch(whole(given_block), change(TableChangeKind.TRUNCATE, 80_000), schema), "shop", 7, tmp_path)
    page = (Path(__file__).parents[2] / "docs/architecture.md").read_text()
    example = page[page.index('{"format": 4, "destination"') :]
    example = example[: example.index("```")].replace("{POSITION}", "0")
    record, shown = json.loads((staged.path / "manifest.json").read_bytes()), json.loads(example)
    assert record.keys() == shown.keys()
    for segment, shown_segment in zip(record["tables"][0]["segments"], shown["tables"][0]["segments"], strict=True):
        assert segment.keys() == shown_segment.keys()
    assert record["tables"][0]["segments"][0]["columns"][0] == {
        "name": "id",
        "type": "int",
        "nullable": False,
        "mysql_type": "int",
    }


def test_staging_again_gives_the_same_bytes_and_replaces_the_directory(tmp_path: Path) -> None:
    given_batch = batch(
        whole(rows_block((ORDERS, INSERT, [(n, n, str(n)) for n in range(500)]), (KEYLESS, INSERT, [(1, 1, "x")])))
    )
    first = files(stage(given_batch, "shop", 7, tmp_path).path)
    (tmp_path / "1-2-100000-7" / "left over").touch()
    again = stage(given_batch, "shop", 7, tmp_path)
    assert files(again.path) == first
    assert len(first) == 2
    assert not (again.path / "left over").exists()


def test_a_slice_is_staged_from_its_first_to_its_last_event(tmp_path: Path) -> None:
    given_block = rows_block(*((ORDERS, INSERT, [(n, n, "")]) for n in range(10)))
    staged = stage(batch(BlockSlice(given_block, 3, 7)), "shop", 7, tmp_path)
    assert read_rows(staged.path, changes(staged.path)[0])["id"].to_pylist() == [3, 4, 5, 6]
    assert changes(staged.path)[0].unique_keys


def test_a_new_version_of_a_table_begins_a_new_segment(tmp_path: Path) -> None:
    wider = TableVersion(
        database="shop",
        table="orders",
        columns=(*ORDERS.columns, Column(name="extra", type_code=3)),
        key=("id",),
        version="v2",
    )
    given_block = rows_block(
        (ORDERS, INSERT, [(1, 1, "")]), (wider, INSERT, [(2, 2, "", 5)]), (ORDERS, INSERT, [(3, 3, "")])
    )
    staged = stage(batch(whole(given_block)), "shop", 7, tmp_path)
    assert [(each.version, read_rows(staged.path, each)["id"].to_pylist()) for each in changes(staged.path)] == [
        ("v1", [1]),
        ("v2", [2]),
        ("v1", [3]),
    ]


def test_a_truncate_and_a_schema_change_stand_between_the_rows_around_them(tmp_path: Path) -> None:
    before, after = rows_block((ORDERS, INSERT, [(1, 1, "")])), rows_block((ORDERS, INSERT, [(2, 2, "")]), start=5000)
    slices = [
        whole(before),
        change(TableChangeKind.TRUNCATE, 3000),
        change(TableChangeKind.SCHEMA, 4000, schema=ORDERS),
        whole(after),
    ]
    segments = stage(batch(*slices), "shop", 7, tmp_path).manifest.tables[0].segments
    assert [segment.kind for segment in segments] == ["changes", "truncate", "schema", "changes"]
    assert isinstance(segments[1], TruncateSegment)
    assert isinstance(segments[2], SchemaSegment)
    assert [column.name for column in segments[2].columns] == ["id", "amount", "note"]


@pytest.mark.found
def test_rows_that_are_for_consumers_only_are_not_staged(tmp_path: Path) -> None:
    """Test for defect 17: the stream contains the rows of a table that stopped for the lake. These rows must not reach the lake, and must
    not cause cascades.
    """
    stopped = dataclasses.replace(ORDERS, stopped=True)
    rows = rows_block(
        (stopped, INSERT, [(1, 1, "a")]), (KEYLESS, INSERT, [(2, 2, "b")]), (stopped, DELETE, [(1, 1, "a")])
    )
    staged = stage(batch(whole(rows)), "shop", 1, tmp_path)
    assert [table.name for table in staged.manifest.tables] == [KEYLESS.name]
    assert staged.manifest.rows == 1
    assert not staged.stopped, "what stops it is told by a change of the table"


def test_a_table_that_stops_by_ddl_keeps_what_came_before_and_nothing_after(tmp_path: Path) -> None:
    before, after = (
        rows_block((ORDERS, INSERT, [(1, 1, "")])),
        rows_block((ORDERS, INSERT, [(2, 2, "")]), (KEYLESS, INSERT, [(9, 9, "")]), start=5000),
    )
    given_batch = batch(
        whole(before), change(TableChangeKind.STOPPED, 3000, state="DDL_UNSUPPORTED", reason="renamed"), whole(after)
    )
    staged = stage(given_batch, "shop", 7, tmp_path)
    assert [(each.table, each.state, each.position) for each in staged.stopped] == [
        ("orders", "DDL_UNSUPPORTED", given_batch.start)
    ]
    assert {table.name: len(table.segments) for table in staged.manifest.tables} == {"shop.orders": 1, "shop.log": 1}


def test_a_table_that_cannot_be_decoded_stops_alone(tmp_path: Path) -> None:
    odd = TableVersion(
        database="shop",
        table="odd",
        columns=(ID, Column(name="v", type_code=99, mysql_type="xmltype(3)")),
        version="v1",
    )
    given_block = rows_block((odd, INSERT, [(1, 1)]), (ORDERS, INSERT, [(1, 1, "")]), (odd, INSERT, [(2, 2)]))
    staged = stage(batch(whole(given_block)), "shop", 7, tmp_path)
    assert [(each.table, each.state) for each in staged.stopped] == [("odd", "TYPE_UNSUPPORTED")]
    assert "xmltype(3)" in staged.stopped[0].reason
    assert [table.name for table in staged.manifest.tables] == ["shop.orders"]


def test_a_value_that_is_refused_drops_its_segment_and_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_writer, "ROW_GROUP_ROWS", 1)
    good, bad = (
        rows_block((ORDERS, INSERT, [(1, 1, "fine")])),
        rows_block((ORDERS, INSERT, [(2, 2, "\udcff")]), start=5000),
    )
    staged = stage(batch(whole(good), whole(bad)), "shop", 7, tmp_path)
    assert [each.state for each in staged.stopped] == ["TYPE_UNSUPPORTED"]
    assert not staged.manifest.tables
    assert [path.name for path in staged.path.iterdir()] == ["manifest.json"]


def test_bytes_that_are_no_rows_fail_the_batch_and_leave_nothing(tmp_path: Path) -> None:
    given_block = rows_block((KEYLESS, INSERT, [(1, 1, "")]), (ORDERS, INSERT, [(1, 1, "abc")]))
    given_block.event_length[1] -= 1
    with pytest.raises(BinlogFormatError):
        stage(batch(whole(given_block)), "shop", 7, tmp_path)
    assert not list(tmp_path.iterdir())


def test_rows_out_of_order_fail_the_batch(tmp_path: Path) -> None:
    later, earlier = rows_block((ORDERS, INSERT, [(1, 1, "")]), start=5000), rows_block((ORDERS, INSERT, [(2, 2, "")]))
    with pytest.raises(BinlogFormatError, match="order of the binlog"):
        stage(batch(whole(later), whole(earlier)), "shop", 7, tmp_path)


def test_columns_and_keys_can_be_chosen(tmp_path: Path) -> None:
    given_block = rows_block((KEYLESS, UPDATE, [(1, 1, "a"), (1, 2, "a")]))
    staged = stage(
        batch(whole(given_block)),
        "shop",
        7,
        tmp_path,
        StagingRules(kept=lambda _: np.array([0, 2], np.int32), keys={"shop.log": ("note",)}),
    )
    (segment,) = changes(staged.path)
    assert (segment.key, segment.key_min, segment.key_max, segment.rows) == (("note",), ("a",), ("a",), 1)
    assert [column.name for column in segment.columns] == ["id", "note"]


def test_a_date_that_is_zero_may_be_null_in_a_column_that_may_not(tmp_path: Path) -> None:
    table = TableVersion(
        database="shop", table="days", columns=(ID, Column(name="day", type_code=10, nullable=False, mysql_type="date"))
    )
    staged = stage(batch(whole(rows_block((table, INSERT, [])))), "shop", 7, tmp_path)
    assert not staged.manifest.tables
    schema = (
        stage(batch(change(TableChangeKind.SCHEMA, 4000, table, schema=table)), "shop", 8, tmp_path)
        .manifest.tables[0]
        .segments[0]
    )
    assert isinstance(schema, SchemaSegment)
    assert [(column.name, column.nullable) for column in schema.columns] == [("id", False), ("day", True)]


def test_names_that_no_file_may_have_do_not_leave_the_directory(tmp_path: Path) -> None:
    tables = [
        TableVersion(database="../..", table=name, columns=(ID, NOTE), version="v1")
        for name in ("a/b", "a?b", "ü" * 64)
    ]
    staged = stage(batch(whole(rows_block(*((table, INSERT, [(1, "x")]) for table in tables)))), "shop", 7, tmp_path)
    assert len(files(staged.path)) == 3
    assert {table.table for table in staged.manifest.tables} == {table.table for table in tables}


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer writes to /dev/full, a device that is always full. The test passes an open handle, because a writer that has the path may
    remove the device if it runs as root.
    """
    real_writer = pq.ParquetWriter

    def on_full_disk(_path: Path, *arguments: Any, **options: Any) -> pq.ParquetWriter:
        return real_writer(device, *arguments, **options)

    device = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115 - closed below, after the writer's last attempt
    assert Path("/dev/full").is_char_device()
    monkeypatch.setattr(pq, "ParquetWriter", on_full_disk)
    given_batch = batch(whole(rows_block((ORDERS, INSERT, [(1, 1, "")]))))
    sentence = r"up to binlog.000002:100000@1 could not be staged in .*: .*No space left on device.*; free space"
    with pytest.raises(StagingError, match=sentence):
        stage(given_batch, "shop", 7, tmp_path)
    device.close()
    assert Path("/dev/full").is_char_device()
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    assert stage(given_batch, "shop", 8, tmp_path).manifest.rows == 1


def test_a_directory_that_is_a_file_is_a_staging_error(tmp_path: Path) -> None:
    (tmp_path / "staging").touch()
    with pytest.raises(StagingError, match="could not be staged"):
        stage(batch(whole(rows_block((ORDERS, INSERT, [(1, 1, "")])))), "shop", 7, tmp_path / "staging")


def test_a_missing_manifest_is_a_staging_error(tmp_path: Path) -> None:
    with pytest.raises(StagingError, match="was not staged to its end"):
        read_manifest(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": 1}')
    with pytest.raises(StagingError, match="the manifest has format 1, and this version of Sluice reads format 4"):
        read_manifest(tmp_path)


def test_blocks_are_taken_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a spilled transaction are loaded when they are requested. If rows are written at once, no block may stay in memory after
    its turn.
    """
    monkeypatch.setattr(staging, "PENDING_BYTES_MAX", 0)
    alive: set[int] = set()
    most = 0

    class Loaded:
        """Imitates a slice that loads its block when it is requested, as the store's spilled slices do."""

        changes = ()

        def __init__(self, number: int) -> None:
            self.number, self.first_event, self.last_event = number, 0, 1

        @property
        def block(self) -> Block:
            return rows_block((ORDERS, INSERT, [(self.number, 1, "x" * 20)]), start=4 + 1000 * self.number)

    class Slices:
        def __iter__(self) -> Iterator[Loaded]:
            nonlocal most
            for number in range(50):
                alive.add(number)
                most = max(most, len(alive))
                yield Loaded(number)
                alive.discard(number)

    given_batch = dataclasses.replace(batch(), slices=Slices())  # type: ignore[arg-type]
    staged = stage(given_batch, "shop", 7, tmp_path)
    assert staged.manifest.rows == 50
    assert most == 1
    assert pq.ParquetFile(staged.path / changes(staged.path)[0].file).num_row_groups == 50


operations = st.lists(
    st.tuples(
        st.sampled_from([ORDERS, KEYLESS]),
        st.sampled_from([INSERT, DELETE]),
        st.lists(st.integers(0, 50), min_size=1, max_size=5),
    ),
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(operations, st.integers(1, 4))
def test_any_division_into_blocks_stages_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, given_operations: list[Any], parts: int
) -> None:
    events: list[Event] = [
        (table, kind, [(n, n, str(n)) for n in numbers]) for table, kind, numbers in given_operations
    ]
    given_block = rows_block(*events)
    bounds = sorted({0, len(events), *(len(events) * part // parts for part in range(parts))})
    slices = [BlockSlice(given_block, first, last) for first, last in itertools.pairwise(bounds)]
    staged = stage(batch(*slices), "shop", 7, tmp_path_factory.mktemp("cut"))
    for table in (ORDERS, KEYLESS):
        wanted = [n for each, _, images in events if each is table for n, *_ in images]
        segments = [segment for each in staged.manifest.tables if each.name == table.name for segment in each.segments]
        found: list[Any] = [
            n
            for segment in segments
            if isinstance(segment, ChangesSegment)
            for n in read_rows(staged.path, segment)["id"].to_pylist()
        ]
        assert found == wanted
        if segments and table is ORDERS:
            assert isinstance(segments[0], ChangesSegment)
            assert segments[0].unique_keys == (len(set(wanted)) == len(wanted))
            assert (segments[0].key_min, segments[0].key_max) == ((min(found),), (max(found),))


ITEMS = dataclasses.replace(ORDERS, table="items")
AS_ITEMS = {"schema": ITEMS, "renamed_from": "shop.orders"}


def test_ddl_a_table_that_got_another_name_says_which_it_was(tmp_path: Path) -> None:
    """The renamed table names its former name even if the former table stopped at exactly this position, because the lake has all earlier
    rows of that table.
    """
    taken = batch(change(TableChangeKind.SCHEMA, 100, ITEMS, **AS_ITEMS))
    for stopped_at in (None, {"shop.orders": Position(epoch=1, file=FILE, offset=4).order_key}):
        staged = stage(taken, "shop", 1, tmp_path, StagingRules(left_out=stopped_at or {}))
        (table,) = read_staged_batch(staged.path).tables
        assert [(table.table, getattr(each, "renamed_from", "")) for each in table.segments] == [
            ("items", "shop.orders")
        ]
        (written,) = read_manifest(staged.path).tables
        assert [each.renamed_from for each in written.segments if isinstance(each, SchemaSegment)] == ["shop.orders"]


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        (
            StagingRules(left_out={"shop.orders": -1}),
            "which had stopped, so not all rows are in the lake; resume shop.orders,",
        ),
        (StagingRules(left_out={"shop.orders": 1}), "which had stopped"),
        (StagingRules(keys={"shop.orders": ("note",)}), "conf/ declares another key for shop.orders"),
    ],
)
def test_ddl_identity_a_table_whose_rows_the_lake_lacks_stops_under_its_new_name(
    tmp_path: Path, rules: StagingRules, why: str
) -> None:
    staged = stage(batch(change(TableChangeKind.SCHEMA, 100, ITEMS, **AS_ITEMS)), "shop", 1, tmp_path, rules)
    (stopped,) = staged.stopped
    assert (stopped.table, stopped.state) == ("items", "DDL_UNSUPPORTED")
    assert why in stopped.reason
    assert not staged.manifest.tables


def test_ddl_a_declared_key_that_is_the_tables_own_is_no_other_key(tmp_path: Path) -> None:
    taken = batch(change(TableChangeKind.SCHEMA, 100, ITEMS, **AS_ITEMS))
    assert not stage(taken, "shop", 1, tmp_path, StagingRules(keys={"shop.items": ITEMS.key})).stopped
