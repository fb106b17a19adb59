"""Tests `sluice backfill --into`, which builds a past state next to the live table. Some tests use only deltalake, others the binlog of a
server.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deltalake
import pytest
from deltalake.schema import PrimitiveType

from sluice.cdc_engine import destination_files
from sluice.cdc_engine.config import DestinationConfig, SluiceConfig, load_config
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.instance.rows import interval as interval_module
from sluice.cdc_engine.instance.rows.interval import BinlogInterval
from sluice.cdc_engine.instance.tables.filter_change import take_up_new_tables
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.position import Position
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.orchestration.base.ports import MergeFailedError, Ports
from sluice.orchestration.run.rows import into
from sluice.orchestration.run.rows.backfill import Done, run_backfill
from sluice.orchestration.run.rows.into import after_a_quiet_time, base_of, path_of, wholly_merged
from sluice.orchestration.run.rows.request import BackfillRequest
from sluice.orchestration.run.rows.swap import SwapRequest, plan_swap, run_swap
from sluice.orchestration.run.spark_merge import spark_merge
from sluice.spark_jobs.backfill.into import PastState, build
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.rows.fold import folded
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.tables import commit_record
from sluice.spark_jobs.tables.commit_record import CommittedInterval
from tests.binlog.rows.event_bytes import ORDERS
from tests.fix_ledgers import MemoryLedger
from tests.instance.fix_destination import running
from tests.spark.fix_pipeline import SECOND_US, Pipeline, by_hand
from tests.spark.side_tables.fix_side_tables import NAME, LoggedTable, before, changes, delete, insert, update


@pytest.fixture
def lake(tmp_path: Path) -> LoggedTable:
    return LoggedTable(tmp_path)


def past(lake: LoggedTable, version: int, images: Path | None, up_to: int) -> list[tuple[object, ...]]:
    """Returns the state that is built from a version and from staged changes."""
    path, folder = str(lake.folder / "lake" / "past" / "orders"), lake.folder / "work"
    folder.mkdir()
    segments = read_staged_batch(images).tables[0].changes if images else ()
    fold = (
        folded(NAME, segments, folder / "fold.parquet", up_to, changed_in=((-1, up_to),)).segment if segments else None
    )
    given = PastState(
        name=NAME,
        base=deltalake.DeltaTable(lake.target.path, version=version),
        images=fold,
        key=("id",),
        path=path,
        description="as it was",
        folder=folder,
        record={},
        storage_options={},
    )
    rows = build(given, BY_HAND)
    found = lake.rows(path, "id, note", "id")
    assert rows == len(found)
    with pytest.raises(TableError, match="a Delta table exists"):
        build(given, BY_HAND)
    return found


@pytest.mark.spark
def test_a_version_and_the_changes_after_it_are_a_past_state_backfill(lake: LoggedTable) -> None:
    lake.merge(lake.stage(changes([insert(1, 16, "a"), insert(2, 16, "b"), insert(3, 16, "c"), insert(4, 16, "d")])))
    version = deltalake.DeltaTable(lake.target.path).version()
    interval = [update(1, 32, "A"), delete(2, 48), before(4, 48, "d"), update(40, 48, "d"), insert(5, 64, "e")]
    later = [update(1, 80, "AA"), delete(3, 80), insert(2, 96, "again")]
    lake.merge(lake.stage(changes([*interval, *later])))
    live = deltalake.DeltaTable(lake.target.path)
    assert past(lake, version, lake.stage(changes([*interval, *later])), 64) == [
        (1, "A"),
        (3, "c"),
        (5, "e"),
        (40, "d"),
    ]
    now = deltalake.DeltaTable(lake.target.path)
    assert (now.version(), now.metadata().id) == (live.version(), live.metadata().id), "the live one is left alone"


@pytest.mark.found
def test_a_past_state_has_columns_with_quotation_marks_in_their_names(lake: LoggedTable) -> None:
    """Defect 1226: `backfill --into` failed with an error of SQL if a column's name had a quotation mark."""
    lake.merge(lake.stage(changes([insert(1, 16, "a"), insert(2, 16, "b")])))
    live = deltalake.DeltaTable(lake.target.path)
    live.alter.add_columns(deltalake.Field('5" disks', PrimitiveType("long")))
    live.update(updates={'"5"" disks"': "7"})
    version = live.version()
    assert past(lake, version, lake.stage(changes([update(1, 32, "A")])), 64) == [(1, "A"), (2, "b")]
    assert lake.rows(str(lake.folder / "lake" / "past" / "orders"), '"5"" disks"', "id") == [(None,), (7,)]


@pytest.mark.spark
def test_an_interval_without_changes_is_the_version_itself_backfill(lake: LoggedTable) -> None:
    lake.merge(lake.stage(changes([insert(1, 16, "a")])))
    version = deltalake.DeltaTable(lake.target.path).version()
    lake.merge(lake.stage(changes([update(1, 32, "A")])))
    assert past(lake, version, None, 16) == [(1, "a")]


def interval(version: int, offset: int, **more: object) -> CommittedInterval:
    end = Position(epoch=int(str(more.pop("epoch", 1))), file="b.000002", offset=offset).to_json()
    reported = {"table": NAME, "ledger": "l", "version_before": version - 1, "version": version, "end": end} | more
    return CommittedInterval(operation="MERGE", committed_at_us=0, **reported)  # type: ignore[arg-type]


def test_a_past_state_begins_with_the_newest_version_before_it_backfill() -> None:
    begin = Position(epoch=1, file="b.000002", offset=400)
    known = [
        interval(1, 100),
        interval(2, 400),
        interval(3, 400, kind="maintenance"),
        interval(4, 400, backfill="0123"),
        interval(5, 500),
        interval(6, 100, epoch=2),
        interval(7, 100, ledger="another"),
    ]
    found = base_of(known, "l", begin)
    assert found is not None
    assert found.version == 2
    assert base_of(known[4:], "l", begin) is None


@pytest.mark.found
def test_a_past_state_is_not_built_from_a_version_with_earlier_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 1095: if settings of the table had changed since the version, the new table mixed rows of both settings."""
    plain, soft = (
        DestinationConfig.model_validate({"name": "shop", "source": {"user": "u"}, "tables": {NAME: options}})
        for options in ({}, {"deletes": "soft"})
    )
    config = SluiceConfig(data_dir=tmp_path, lake=str(tmp_path), destinations={"shop": soft})
    changed, meta = Position(epoch=1, file="b.000002", offset=200), MemoryLedger()
    for settings in (plain, soft):
        take_up_new_tables(settings, config.destination_dir("shop"), [ORDERS], meta, changed, [NAME])
    commits = [interval(1, 100), interval(2, 300)]
    monkeypatch.setattr(into, "_live", lambda *_: SimpleNamespace(commits_after=lambda _version: commits))
    monkeypatch.setattr(commit_record, "read_commit", lambda commit: commit)
    monkeypatch.setattr(commit_record, "batches", list)
    request = BackfillRequest(destination="shop", from_us=1, to_us=None, tables=(NAME,), into="past.orders")

    def version(offset: int) -> int:
        begin, chosen = dataclasses.replace(changed, offset=offset), list[CommittedInterval]()
        files: Any = SimpleNamespace(logs=[SimpleNamespace(file=begin.file)], reach=lambda _is_enough: None)
        found = BinlogInterval(begin=begin, end=begin, read_to=begin, cursor=begin, files=files)
        monkeypatch.setattr(interval_module, "locate_interval", lambda *_: found)
        into._from_a_version(config, request, (soft, Ledger(ledger_id="l"), None), chosen)
        return chosen[0].version

    with pytest.raises(
        ConfigurationError, match="from version 1 of its Delta table, and settings of the table in conf/ have changed"
    ):
        version(250)
    assert version(300) == 2


@pytest.mark.found
def test_a_past_state_does_not_begin_with_a_batch_that_was_merged_in_part() -> None:
    """Defect 1062: a batch with a TRUNCATE makes several commits of a table. If the run was killed between them, the first commit named
    the end of the whole batch. If the batch was longer when it was merged again, a past state could begin with the first commit, and
    lacked the TRUNCATE and the later changes of the batch.
    """
    start, later = (Position(epoch=1, file="b.000002", offset=offset).to_json() for offset in (100, 300))
    known = [
        interval(1, 100, start=Position(epoch=1, file="b.000002", offset=50).to_json(), delivery=6),
        interval(2, 300, start=start, delivery=7, last_order_key=11),
        interval(3, 500, start=start, delivery=8, last_order_key=30),
    ]
    found = base_of(known, "l", Position(epoch=1, file="b.000002", offset=400))
    assert found is not None
    assert found.version == 1, "version 2 lacks changes before 300"
    found = base_of(known, "l", Position(epoch=1, file="b.000002", offset=500))
    assert found is not None
    assert found.version == 3
    published = interval(4, 500, start=later, kind="snapshot")
    following = interval(5, 900, start=later, delivery=9)
    found = base_of([*known, published, following], "l", Position(epoch=1, file="b.000002", offset=600))
    assert found is not None
    assert found.version == 4, "a publication is one commit"


class Start(dict[str, Any]):
    """The start of a batch. Counts comparisons."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Start.compared += 1
        return super().__eq__(other)

    __hash__ = None


@pytest.mark.found
def test_the_commits_of_a_long_log_are_not_compared_with_each_other() -> None:
    """Defect 1062: `--into` compared each commit of a log with all later commits. 100,000 commits took many minutes."""
    starts = [Position(epoch=1, file="b.000002", offset=32 * number) for number in range(300)]
    known = [
        interval(number, 32 * number + 32, start=Start(start.to_json()), delivery=number)
        for number, start in enumerate(starts, 1)
    ]
    found = base_of(known, "l", starts[-1])
    assert found is not None
    assert found.version == 298
    assert Start.compared < len(known)


@pytest.mark.found
def test_a_past_state_does_not_begin_with_a_batch_in_flight() -> None:
    """Defect 1062: a past state that begins after the lake's position could begin with the first commit of a batch in flight, whose run was
    killed before its later commits of the table.
    """
    start, cursor, begin = (Position(epoch=1, file="b.000002", offset=offset) for offset in (50, 100, 400))
    known = [
        interval(1, 100, start=start.to_json(), delivery=6),
        interval(2, 300, start=cursor.to_json(), delivery=7, last_order_key=11),
    ]
    for again_up_to, version in ((None, 1), (dataclasses.replace(cursor, offset=300), 2)):
        found = base_of(known, "l", wholly_merged(begin, cursor, again_up_to))
        assert found is not None
        assert found.version == version
    assert wholly_merged(start, cursor, None) == start


def test_a_quiet_table_is_read_from_the_cursor_where_its_newest_version_ends_in_a_purged_file_backfill() -> None:
    begin, cursor = (Position(epoch=1, file="b.000009", offset=offset) for offset in (400, 800))
    known = [
        interval(1, 100),
        interval(2, 200),
        interval(3, 200, kind="maintenance"),
        interval(4, 200, ledger="another"),
    ]
    assert after_a_quiet_time(known, known[1], begin, cursor) == begin
    assert after_a_quiet_time(known, known[1], cursor, begin) == begin
    assert after_a_quiet_time(known, known[0], begin, cursor) is None, "it had changes, which are gone"


@pytest.mark.parametrize(
    ("tables", "into", "sentence"),
    [
        ((), "past.orders", "--tables"),
        (("shop.orders",), "orders", "is not of the form DATABASE.TABLE"),
        (("shop.orders",), "shop.orders", "captured table"),
        (("shop.orders",), "shop.orders__history", "change log or history"),
    ],
)
def test_an_invalid_position_is_refused_backfill(
    tmp_path: Path, tables: tuple[str, ...], into: str, sentence: str
) -> None:
    (tmp_path / "conf" / "destinations").mkdir(parents=True)
    (tmp_path / "conf" / "destinations" / "shop.yaml").write_text("source: {user: u}\ntables: {shop.orders: {}}\n")
    request = BackfillRequest(destination="shop", from_us=1, to_us=None, tables=tables, into=into)
    with pytest.raises(ConfigurationError, match=sentence):
        path_of(load_config(tmp_path / "conf"), request)


@pytest.mark.servers
@pytest.mark.spark
def test_a_past_state_is_built_from_the_binlog_while_the_table_continues_backfill(
    mysql80: DatabaseServer, tmp_path: Path, spark_server: SparkConnectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(tmp_path, mysql80, spark_server)
    numbers = pipeline.name
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 10**13)  # The rows have future times.

    def into(begin: int, end: int | None) -> Done:
        to_us = None if end is None else (pipeline.base + end) * SECOND_US
        from_us = (pipeline.base + begin) * SECOND_US
        request = BackfillRequest(
            destination="shop", from_us=from_us, to_us=to_us, tables=(numbers,), into=f"past.at_{end}"
        )
        ports = Ports(host=lambda: None, files=lambda: destination_files, merge=spark_merge)  # type: ignore[arg-type,return-value]
        return run_backfill(by_hand(ports, pipeline.config), request)

    with running(pipeline.captured) as engine:
        for number in range(3):
            pipeline.insert(number, 10 * number)
        pipeline.merge(engine)
        version = deltalake.DeltaTable(pipeline.path).version()
        for number in range(3, 6):
            pipeline.insert(number, 10 * number + 1000)
        pipeline.change(f"DELETE FROM {numbers} WHERE n = 1")
        pipeline.merge(engine)
        live = deltalake.DeltaTable(pipeline.path).version()
        done = into(900, 1045)
        assert done.rebuilt is not None
        assert pipeline.rows(done.rebuilt.path) == {0: "", 1: "", 2: "", 3: "", 4: ""}
        assert done.rebuilt.version == version
        newest = into(900, None).rebuilt
        assert newest is not None
        assert pipeline.rows(newest.path) == pipeline.rows()
        assert deltalake.DeltaTable(pipeline.path).version() == live
        swapped_with(pipeline, engine, newest.table, done.rebuilt.table)
        with pytest.raises(MergeFailedError, match="a Delta table exists"):
            into(900, 1045)
        with pytest.raises(ConfigurationError, match="use a later --from"):
            into(-5, 45)


@pytest.mark.seeds
@pytest.mark.servers
@pytest.mark.spark
def test_a_swap_takes_a_table_whose_conversion_was_killed_before_its_record_for_itself_backfill(
    mysql80: DatabaseServer, tmp_path: Path, spark_server: SparkConnectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(tmp_path, mysql80, spark_server)
    ports = Ports(host=lambda: None, files=lambda: destination_files, merge=spark_merge)  # type: ignore[arg-type,return-value]
    with running(pipeline.captured) as engine:
        pipeline.insert(0, 0)
        pipeline.merge(engine)
        first = deltalake.DeltaTable(pipeline.path)
        pipeline.change(f"ALTER TABLE {pipeline.name} MODIFY n BIGINT")
        pipeline.insert(1, 10)
        with monkeypatch.context() as patch:
            patch.setattr(destination_files.LakeTables, "keep", lambda *_: None)
            pipeline.merge(engine)
        converted = deltalake.DeltaTable(pipeline.path)
        assert converted.metadata().id != first.metadata().id, "one commit replaced the table by its copy"
        now = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: now() + 10**13)  # The rows have future times.
        request = BackfillRequest(
            destination="shop",
            from_us=(pipeline.base + 900) * SECOND_US,
            to_us=None,
            tables=(pipeline.name,),
            into="past.now",
        )
        run_backfill(by_hand(ports, pipeline.config), request)
        converted.delete("n = 0")
        run_swap(
            *(ports, pipeline.config, SwapRequest(destination="shop", table=pipeline.name, rebuilt="past.now")),
            lambda _: None,
        )
        assert pipeline.rows() == {0: "", 1: ""}
        pipeline.change(f"DELETE FROM {pipeline.name} WHERE n = 1")
        pipeline.merge(engine)
        assert pipeline.rows() == {0: ""}


def swapped_with(pipeline: Pipeline, engine: Engine, newest: str, older: str) -> None:
    """Swaps a rebuilt table in after another program has removed rows of the live table. Requires that the rows are back, and that the
    stream continues in the live table.
    """
    ports = Ports(host=lambda: None, files=lambda: destination_files, merge=spark_merge)  # type: ignore[arg-type,return-value]
    requested = {name: SwapRequest(destination="shop", table=pipeline.name, rebuilt=name) for name in (newest, older)}
    rows = pipeline.rows()
    deltalake.DeltaTable(pipeline.path).delete("n IN (0, 4)")
    assert "changes were merged into the table after the time" in plan_swap(pipeline.config, requested[older]).refused
    run_swap(ports, pipeline.config, requested[newest], lambda _: None)
    assert pipeline.rows() == rows
    pipeline.change(
        f"UPDATE {pipeline.name} SET filler = 'since' WHERE n = 4", f"DELETE FROM {pipeline.name} WHERE n = 0"
    )
    pipeline.merge(engine)
    assert pipeline.rows() == {key: "since" if key == 4 else filler for key, filler in rows.items() if key}
    assert not engine.status().stopped_tables
