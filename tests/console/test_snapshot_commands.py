"""Tests `sluice snapshot` on the files of a destination whose engine does not run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sluice.cdc_engine.acts import snapshot as acts
from sluice.cdc_engine.acts.position import SetPosition, set_position
from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.contracts import StoppedTable, TableVersion
from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.destination_files.lake_tables import LakeTables
from sluice.cdc_engine.errors import ActRefusedError
from sluice.cdc_engine.file_lock import RUN_LOCK_FILE, FileLock
from sluice.cdc_engine.instance.tables import new_start, snapshot_requests
from sluice.cdc_engine.instance.tables.filter_change import take_rules, take_up_new_tables
from sluice.cdc_engine.meta.resume_requests import ResumeKind, requests
from sluice.cdc_engine.parser.start_position import StartChoice
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.source.settings import SourceConfig
from sluice.cdc_engine.states import SnapshotState, TableState
from sluice.cdc_engine.table_meta.schema import TableSchema
from sluice.cdc_engine.table_meta.table_list.writing import write_tables
from sluice.console.main import app
from tests.console.test_commands import facts
from tests.fix_ledgers import FileLedger

RUNNER = CliRunner()
CURSOR = Position(epoch=1, file="mysql-bin.000001", offset=4096)
STOP = StoppedTable(
    database="shop",
    table="orders",
    state=TableState.RESUME_LOST,
    reason="it is purged",
    position=Position(epoch=1, file="mysql-bin.000001", offset=1024),
)
ORDERS = TableSchema(database="shop", table="orders", charset="utf8mb4", columns=())


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the directory of a destination with two tables. `orders` is permanently stopped, and `items` continues."""
    monkeypatch.setenv("SLUICE_CONF", str(tmp_path / "conf"))
    (tmp_path / "conf" / "destinations").mkdir(parents=True)
    (tmp_path / "conf" / "sluice.yaml").write_text(f"data_dir: {tmp_path}/data\n")
    (tmp_path / "conf" / "destinations" / "shop.yaml").write_text("source: {user: root}\n")
    directory = tmp_path / "data" / "engine" / "shop"
    directory.mkdir(parents=True)
    tables = [TableVersion(database="shop", table=name, columns=(), version="v") for name in ("items", "orders")]
    write_tables(directory, tables)
    FileLedger(directory).update(lambda ledger: ledger.set_cursor(CURSOR).stop_table(STOP))
    return directory


def run(*words: str, code: int = 0) -> str:
    result = RUNNER.invoke(app, ["snapshot", *words])
    assert result.exit_code == code, result.output
    return result.output


def states(directory: Path) -> dict[str, SnapshotState]:
    return {each.name: each.state for each in SnapshotRecords(directory).all()}


def hands(directory: Path, known: bool = True) -> snapshot_requests.RequestDependencies:
    return snapshot_requests.RequestDependencies(
        meta=FileLedger(directory),
        records=SnapshotRecords(directory),
        schema=lambda *_: ORDERS if known else None,
        resnapshot=lambda *_: None,
        has_rows=lambda name: bool(LakeTables(directory).kept(name)),
        run_lock=lambda: FileLock(directory / RUN_LOCK_FILE),
    )


def test_a_snapshot_of_all_tables_is_requested(directory: Path) -> None:
    assert "shop.orders: the next run reads the table's rows" in run("start", "shop")
    assert states(directory) == {"shop.items": SnapshotState.WANTED, "shop.orders": SnapshotState.WANTED}


def test_a_table_that_stopped_for_good_is_re_snapshotted_by_one_command(directory: Path) -> None:
    run("start", "shop", "--tables", "shop.orders")
    (request,) = requests(directory)
    assert (request.name, request.kind) == ("shop.orders", ResumeKind.RE_SNAPSHOT)
    snapshot_requests.fulfil([request], hands(directory))
    assert FileLedger(directory).ledger.stopped_tables == ()
    assert not requests(directory)


def test_changes_buffered_before_a_stop_do_not_count_in_the_snapshot_after_it(directory: Path) -> None:
    run("start", "shop", "--tables", "shop.orders")
    snapshot_requests.fulfil(requests(directory), hands(directory))
    record = SnapshotRecords(directory).get("shop.orders")
    assert record is not None
    assert (record.state, record.buffered_after) == (SnapshotState.WANTED, CURSOR.order_key)


def test_a_snapshot_of_an_unknown_table_says_what_to_do(directory: Path) -> None:
    run("start", "shop", "--tables", "shop.orders")
    snapshot_requests.fulfil(requests(directory), hands(directory, known=False))
    assert FileLedger(directory).ledger.stopped("shop", "orders") == STOP
    assert "sluice schema resolve" in run("status", "shop", code=1)


def test_a_snapshot_that_is_canceled_leaves_the_table_where_it_stood(directory: Path) -> None:
    run("start", "shop", "--tables", "shop.orders,shop.items")
    snapshot_requests.fulfil(requests(directory), hands(directory))
    run("cancel", "shop", "shop.orders")
    run("cancel", "shop", "shop.items")
    snapshot_requests.fulfil(requests(directory), hands(directory))
    stops = {stop.table: stop for stop in FileLedger(directory).ledger.stopped_tables}
    assert {name: (stop.state, stop.position) for name, stop in stops.items()} == {
        "orders": (TableState.SNAPSHOT_CANCELED, STOP.position),
        "items": (TableState.SNAPSHOT_CANCELED, CURSOR),
    }
    assert set(states(directory).values()) == {SnapshotState.CANCELED}


@pytest.mark.found
def test_a_canceled_snapshot_of_a_table_that_stopped_leaves_the_table_where_the_lake_stands(directory: Path) -> None:
    """Defect 1140: a table stopped during its snapshot, and the snapshot was canceled. The table stayed stopped at the later position, so a
    resume left out the changes that the snapshot had buffered before the stop.
    """
    run("start", "shop", "--tables", "shop.items")
    later = dataclasses.replace(CURSOR, offset=8192)
    held = dataclasses.replace(STOP, table="items", state=TableState.DDL_HELD, reason="ALTER", position=later)
    FileLedger(directory).update(lambda ledger: ledger.stop_table(held))
    run("cancel", "shop", "shop.items")
    snapshot_requests.fulfil(requests(directory), hands(directory))
    stop = FileLedger(directory).ledger.stopped("shop", "items")
    assert stop is not None
    assert (stop.state, stop.position) == (TableState.SNAPSHOT_CANCELED, CURSOR)


@pytest.mark.found
def test_a_snapshot_after_a_lost_position_is_as_old_as_the_lake(directory: Path) -> None:
    """Defect 1142: after a lost position, the snapshot of each table said that the table in the lake is as of the new start. If such a
    snapshot was canceled, `sluice schema resume` continued the table from the new start, without the changes before it.
    """
    records, meta = SnapshotRecords(directory), FileLedger(directory)
    begin = dataclasses.replace(CURSOR, epoch=2, offset=4)
    tables = [TableVersion(database="shop", table=name, columns=(), version="v") for name in ("items", "orders")]
    for _ in range(2):
        new_start.want_all(records, tables, begin, meta.ledger)
    meta.update(lambda ledger: ledger.set_cursor(begin))
    assert {each.table: each.since for each in records.all()} == {"items": CURSOR, "orders": STOP.position}
    run("cancel", "shop", "shop.items")
    snapshot_requests.fulfil(requests(directory), hands(directory))
    stop = FileLedger(directory).ledger.stopped("shop", "items")
    assert stop is not None
    assert stop.position == CURSOR


@pytest.mark.found
@pytest.mark.parametrize("state", [TableState.RULES_CHANGED, TableState.KEY_NULL])
def test_a_snapshot_that_is_canceled_while_it_reads_says_that_the_rows_are_as_under_earlier_settings(
    directory: Path, state: TableState
) -> None:
    """Defect 1143: settings of a table's rows changed, and the snapshot of the table was canceled after it had begun to read. The stop no
    longer said that the lake's rows are as under the earlier settings. A resume then left them so, and no message said that.
    """
    meta, items = FileLedger(directory), ("shop.items",)
    plain, soft = (
        DestinationConfig.model_validate({"name": "shop", "source": {"user": "u"}, "tables": {"shop.items": options}})
        for options in ({}, {"deletes": "soft"})
    )
    LakeTables(directory).keep({"shop.items": ("t", 3)})
    take_up_new_tables(plain, directory, [], meta, CURSOR, items)
    changed = dataclasses.replace(STOP, table="items", state=state, reason="masks")
    meta.update(lambda ledger: ledger.stop_table(changed))
    run("start", "shop", "--tables", "shop.items")
    snapshot_requests.fulfil(requests(directory), hands(directory))
    take_rules(soft, directory, {}, items, CURSOR)
    SnapshotRecords(directory).update(
        "shop.items",
        lambda now: now.began(CURSOR, version="v", key=(), columns=(), rows_expected=1, now=1.0),
    )
    run("cancel", "shop", "shop.items")
    snapshot_requests.fulfil(requests(directory), hands(directory))
    stop = FileLedger(directory).ledger.stopped("shop", "items")
    assert stop is not None
    assert stop.state == TableState.SNAPSHOT_CANCELED
    assert "keeps the rows as the earlier conf/" in stop.reason


@pytest.mark.found
@pytest.mark.parametrize(
    ("state", "said"),
    [
        (TableState.FAILED_OVER_BY_TIME, "changes that the failover reads again are in the lake twice"),
        (TableState.NEWLY_INCLUDED, "lacks the rows and changes from before conf/ included the table"),
        (TableState.TABLE_RESTORED, "it may lack rows until then"),
        (TableState.STATEMENT_FORMAT, ""),
    ],
)
def test_the_stop_of_a_canceled_snapshot_names_what_a_resume_does_not_correct(
    directory: Path, state: TableState, said: str
) -> None:
    """Defect 1144: the stop of a canceled snapshot advised to resume the table. It did not say that the table then has changes twice after
    a failover by time, or lacks the rows from before conf/ included it, as the stop before the snapshot had said.
    """
    before = dataclasses.replace(STOP, table="items", state=state)
    FileLedger(directory).update(lambda ledger: ledger.stop_table(before))
    for words in (("start", "shop", "--tables", "shop.items"), ("cancel", "shop", "shop.items")):
        run(*words)
        snapshot_requests.fulfil(requests(directory), hands(directory))
    stop = FileLedger(directory).ledger.stopped("shop", "items")
    assert stop is not None
    assert stop.state == TableState.SNAPSHOT_CANCELED
    assert stop.reason.endswith(said or "re-snapshots it")


@pytest.mark.found
@pytest.mark.parametrize("ended", ["a new start and a crash", "position set"])
def test_a_request_for_a_new_start_is_executed_once(directory: Path, ended: str) -> None:
    """Defect 1145: an operator requested a new start after a lost position. If the engine ended before it removed the request, or
    if `sluice position set` resolved the lost position, the request stayed. When the position was lost again, perhaps years later, the
    engine started at the source's current position without asking anybody.
    """
    config, meta = (
        DestinationConfig(name="shop", source=SourceConfig(user="root"), snapshot="never"),
        FileLedger(directory),
    )
    acts.start_where_lost(directory)
    assert new_start.is_wanted(config, directory, meta.ledger)
    if ended == "position set":
        set_position(
            SetPosition(
                directory=directory,
                find=lambda _: StartChoice(file="binlog.000001", offset=4),
                query_source=lambda: facts("one", 5),
                confirm=lambda _: True,
                forget_history=lambda _: None,
                lake_epoch=lambda: 0,
                take_over=lambda _: None,
            )
        )
    else:
        meta.update(lambda ledger: ledger.set_cursor(dataclasses.replace(CURSOR, epoch=ledger.epoch + 1)))
    assert not new_start.is_wanted(config, directory, read_ledger(directory))


def test_a_snapshot_that_is_being_published_is_canceled_after_that(directory: Path) -> None:
    run("start", "shop", "--tables", "shop.items")
    run("cancel", "shop", "shop.items")
    publishing = FileLock(directory / RUN_LOCK_FILE)
    assert publishing.try_acquire()
    snapshot_requests.fulfil(requests(directory), hands(directory))
    assert states(directory)["shop.items"] == SnapshotState.WANTED
    publishing.release()
    snapshot_requests.fulfil(requests(directory), hands(directory))
    assert states(directory)["shop.items"] == SnapshotState.CANCELED


def test_a_table_that_stopped_is_taken_up_again_where_its_snapshot_continues(directory: Path) -> None:
    run("start", "shop", "--tables", "shop.orders")
    for request in requests(directory):
        request.done()
    SnapshotRecords(directory).update("shop.orders", lambda now: now.failed("the table stopped"))
    run("resume", "shop", "shop.orders")
    assert [(request.name, request.kind) for request in requests(directory)] == [
        ("shop.orders", ResumeKind.RE_SNAPSHOT)
    ]


def test_a_snapshot_is_paused_and_continues(directory: Path) -> None:
    run("start", "shop", "--tables", "shop.items")
    assert "paused after 0 rows" in run("pause", "shop", "shop.items")
    (shown,) = json.loads(run("status", "shop", "--json"))
    assert shown["paused"]
    run("resume", "shop", "shop.items")
    (shown,) = json.loads(run("status", "--json"))
    assert not shown["paused"]
    assert {"rows", "rows_per_second", "percent", "seconds_left"} <= set(shown)


@pytest.mark.found
@pytest.mark.parametrize("table", ["items", "orders"])
def test_the_start_of_a_paused_snapshot_continues_it(directory: Path, table: str) -> None:
    """Defect 1065: `sluice snapshot start` said that the next run reads the rows of a paused snapshot, but the snapshot stayed paused."""
    records, name = SnapshotRecords(directory), f"shop.{table}"
    run("start", "shop", "--tables", name)
    records.update(name, lambda now: now.began(CURSOR, version="v", key=(), columns=(), rows_expected=1, now=1.0))
    run("pause", "shop", name)
    assert f"{name}: the next run reads the table's rows" in run("start", "shop", "--tables", name)
    (record,) = records.all()
    assert record.has_work
    assert record.state == (SnapshotState.WANTED if table == "orders" else SnapshotState.READING), "orders has stopped"


@pytest.mark.found
def test_a_snapshot_is_not_started_while_the_engine_still_has_to_cancel_it(directory: Path) -> None:
    """Defect 1066: after `sluice snapshot cancel`, `snapshot start` was accepted until the engine had canceled the snapshot. Then the
    engine canceled it, the table stopped, and the snapshot was never taken.
    """
    run("start", "shop", "--tables", "shop.items")
    run("cancel", "shop", "shop.items")
    result = RUNNER.invoke(app, ["snapshot", "start", "shop", "--tables", "shop.items"])
    assert isinstance(result.exception, ActRefusedError)
    assert "then start the snapshot again" in str(result.exception)
    SnapshotRecords(directory).update("shop.items", lambda now: now.canceled())
    run("start", "shop", "--tables", "shop.items")
    assert states(directory) == {"shop.items": SnapshotState.WANTED}


def test_a_snapshot_of_what_is_not_captured_is_refused(directory: Path) -> None:
    result = RUNNER.invoke(app, ["snapshot", "start", "shop", "--tables", "shop.nothing"])
    assert isinstance(result.exception, ActRefusedError)
    assert "it captures shop.items, shop.orders" in str(result.exception)
    assert not states(directory)


def test_two_requests_for_a_snapshot_are_one_request(directory: Path) -> None:
    run("start", "shop", "--tables", "shop.items")
    before = SnapshotRecords(directory).all()
    run("start", "shop", "--tables", "shop.items")
    assert SnapshotRecords(directory).all() == before
    result = RUNNER.invoke(app, ["snapshot", "start", "shop", "--tables", "shop.items", "--where", "id > 1"])
    assert "in progress (all rows)" in str(result.exception)


def test_a_failed_snapshot_is_a_problem_that_the_status_names(directory: Path) -> None:
    run("start", "shop", "--tables", "shop.items")
    SnapshotRecords(directory).update("shop.items", lambda now: now.failed("a reason"))
    result = RUNNER.invoke(app, ["status", "--json"])
    problems = [each for each in json.loads(result.output)["problems"] if "shop.items" in each]
    assert problems == [
        "shop: the snapshot of shop.items failed: a reason (`sluice snapshot resume shop shop.items` reads the table again)"
    ]
