"""Tests a schema that an operator gives for a table with an unknown schema: it is valid from the table's stop on, and
only for this stop.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from pathlib import Path

import pytest

from sluice.cdc_engine.acts.stopped_table import approve, resolve, resume, schema_of
from sluice.cdc_engine.binlog.events.table_map import Field
from sluice.cdc_engine.config import DestinationConfig, SluiceConfig
from sluice.cdc_engine.contracts import StoppedTable, TableChange, TableChangeKind, TableVersion
from sluice.cdc_engine.errors import ActRefusedError, SourceConnectionError, TableStoppedError
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.meta.resume_requests import requests
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.snapshot.record import wanted
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.source.settings import SourceConfig
from sluice.cdc_engine.states import TableState
from sluice.cdc_engine.table_meta.change.policy import PLANS, Item, PendingChange, SchemaDecisions
from sluice.cdc_engine.table_meta.ddl.reader import read_statement
from sluice.cdc_engine.table_meta.history import effects
from sluice.cdc_engine.table_meta.history.ddl_context import DdlContext
from sluice.cdc_engine.table_meta.history.effects import effects_of
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.kept.known_schemas import KnownSchemas
from sluice.cdc_engine.table_meta.history.kept.repository import HistoryRecord, RecordKind
from sluice.cdc_engine.table_meta.history.questions import Question, Unknown
from sluice.cdc_engine.table_meta.history.resolutions import Resolutions
from sluice.cdc_engine.table_meta.history.review_files import ReviewFiles
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot
from sluice.cdc_engine.table_meta.schema import DdlServerFacts, DeclaredColumn, TableSchema
from tests.binlog.events.table_map_writer import table_map_of
from tests.fix_ledgers import FileLedger

ID = DeclaredColumn(name="id", type="int", nullable=False)
ORDERS = TableSchema(database="shop", table="orders", charset="utf8mb4", columns=(ID,), key=("id",))
UNREADABLE = "ALTER TABLE orders ADD wave SPINOR(3)"
ANSWER = "CREATE TABLE `orders` (`id` int NOT NULL, `wave` varbinary(12) DEFAULT NULL, PRIMARY KEY (`id`)) DEFAULT CHARSET=utf8mb4"

RENAMED = PendingChange(
    destination="shop",
    database="shop",
    table="orders",
    order_key=0,
    position="mysql-bin.000007:1@1",
    statement="ALTER TABLE orders RENAME COLUMN a TO b",
    items=(Item(kind="rename", what="rename a to b"),),
    choices=("apply", "new_column"),
)


def at(offset: int) -> Position:
    return Position(epoch=1, file="mysql-bin.000007", offset=offset * 16)


def opened(folder: Path) -> TableHistory:
    resolutions = Resolutions(folder)
    review = SchemaDecisions(resolved=lambda *stop: resolutions.schema(*stop[:4]))
    return TableHistory(folder / "schema.jsonl", lambda *_: True, review)


@pytest.fixture
def stopped(tmp_path: Path) -> tuple[TableHistory, TableChange]:
    """Returns a history in which the table stopped at 200, and the change that reported it."""
    history = opened(tmp_path)
    history.seed(
        SchemaSnapshot(DdlServerFacts(flavour="mysql", charset="utf8mb4"), (("shop", "utf8mb4"),), (ORDERS,)), at(100)
    )
    (change,) = history.apply(UNREADABLE, "shop", at(200))
    assert (change.kind, change.state) == (TableChangeKind.STOPPED, "SCHEMA_UNKNOWN")
    return history, change


def test_ddl_a_resolved_table_continues_with_the_schema_given_from_its_stop_on(
    stopped: tuple[TableHistory, TableChange], tmp_path: Path
) -> None:
    history, stop = stopped
    given = schema_of(ANSWER, "shop", "orders")
    Resolutions(tmp_path).keep(given, stop.order_key)
    for each in (history, opened(tmp_path)):
        each.rewind(at(150))
        (change,) = each.apply(UNREADABLE, "shop", at(200))
        assert change.kind is TableChangeKind.SCHEMA
        assert change.schema == given.version()
        assert [(item.kind.value, item.column) for item in change.alterations] == [("add", "wave")]
        assert each.resolve(table_map_of(given), at(250)) == given.version()
        assert each.resolve(table_map_of(ORDERS), at(199)) == ORDERS.version()
    (again,) = history.apply("ALTER TABLE orders MODIFY wave SPINOR(4)", "shop", at(300))
    assert (again.kind, again.state) == (TableChangeKind.STOPPED, "SCHEMA_UNKNOWN"), "another stop has no answer yet"


@pytest.mark.found
@pytest.mark.parametrize(
    ("began", "key", "why"),
    [("time", ("id",), "number of fraction digits"), ("time(3)", (), "adds a key"), ("time(3)", ("id",), "")],
)
def test_ddl_a_given_schema_that_changes_existing_rows_needs_them(
    tmp_path: Path, began: str, key: tuple[str, ...], why: str
) -> None:
    """Defect 1212: if a given schema had other fraction digits of a TIME, or a first key, the lake kept its rows as they were."""
    before = dataclasses.replace(ORDERS, columns=(ID, DeclaredColumn(name="began", type=began)), key=key)
    history = opened(tmp_path)
    server = DdlServerFacts(flavour="mysql", charset="utf8mb4")
    history.seed(SchemaSnapshot(server, (("shop", "utf8mb4"),), (before,)), at(100))
    (stop,) = history.apply(UNREADABLE, "shop", at(200))
    given = ANSWER.replace("`wave`", "`began` time(3) DEFAULT NULL, `wave`")
    Resolutions(tmp_path).keep(schema_of(given, "shop", "orders"), stop.order_key)
    history.rewind(at(150))
    (change,) = history.apply(UNREADABLE, "shop", at(200))
    assert change.state == ("DDL_UNSUPPORTED" if why else "")
    assert why in change.reason


@pytest.mark.found
def test_ddl_a_stop_has_the_version_by_which_consumers_read_on(tmp_path: Path) -> None:
    """Test for defect 17: whatever decision the lake waits for, the stream continues with the table's new schema. If there is none, the
    table version contains the reason.
    """
    history = TableHistory(tmp_path / "schema.jsonl", lambda *_: True)
    history.seed(
        SchemaSnapshot(DdlServerFacts(flavour="mysql", charset="utf8mb4"), (("shop", "utf8mb4"),), (ORDERS,)), at(100)
    )
    (held,) = history.apply("ALTER TABLE orders CHANGE id number int NOT NULL", "shop", at(200))
    assert (held.kind, held.state) == (TableChangeKind.STOPPED, "DDL_REFUSED")
    assert held.schema is not None
    later = dataclasses.replace(ORDERS, columns=(dataclasses.replace(ID, name="number"),), key=("number",))
    version = stopped_version(history, later, 250)
    assert (version.stopped, version.unreadable, [each.name for each in version.columns]) == (True, "", ["number"])
    assert version == dataclasses.replace(held.schema, stopped=True)
    wider = dataclasses.replace(ORDERS, columns=(ID, dataclasses.replace(ID, name="more")))
    unfit = stopped_version(history, wider, 251)
    assert (unfit.stopped, unfit.columns) == (True, ())
    assert unfit.unreadable.startswith("SCHEMA_MISMATCH: the table map has 2 columns")
    history.apply("ALTER TABLE orders ADD wave SPINOR(3)", "shop", at(300))
    unknown = stopped_version(history, later, 350)
    assert unknown.unreadable.startswith("SCHEMA_UNKNOWN: the schema history does not have the table at this position")


def stopped_version(history: TableHistory, schema: TableSchema, offset: int) -> TableVersion:
    with pytest.raises(TableStoppedError) as error:
        history.resolve(table_map_of(schema, [(Field.SIGNEDNESS, b"\x00")]), at(offset))
    assert error.value.version is not None
    version = error.value.version
    assert isinstance(version, TableVersion)
    return version


def test_ddl_a_column_whose_values_in_old_rows_no_one_knows_stays_a_stop(
    stopped: tuple[TableHistory, TableChange], tmp_path: Path
) -> None:
    history, stop = stopped
    unknowable = ANSWER.replace("DEFAULT NULL", "DEFAULT (uuid())")
    Resolutions(tmp_path).keep(schema_of(unknowable, "shop", "orders"), stop.order_key)
    history.rewind(at(150))
    (change,) = history.apply(UNREADABLE, "shop", at(200))
    assert (change.kind, change.state) == (TableChangeKind.STOPPED, "DDL_UNSUPPORTED")
    assert "rows that existed got values in the column wave" in change.reason


def test_ddl_a_table_map_that_fits_nothing_known_is_answered_too(tmp_path: Path) -> None:
    history = opened(tmp_path)
    history.seed(SchemaSnapshot(DdlServerFacts(flavour="mysql", charset="utf8mb4"), (), (ORDERS,)), at(100))
    given = schema_of(ANSWER, "shop", "orders")
    bare = table_map_of(given, [(Field.SIGNEDNESS, b"\x00")])
    with pytest.raises(TableStoppedError):
        history.resolve(bare, at(200))
    wrong = dataclasses.replace(given, columns=(ID, ID))
    Resolutions(tmp_path).keep(wrong, at(200).order_key)
    with pytest.raises(TableStoppedError):
        history.resolve(bare, at(200))
    Resolutions(tmp_path).keep(given, at(200).order_key)
    assert history.resolve(bare, at(200)).columns == given.version().columns
    assert opened(tmp_path).resolve(bare, at(201)).columns == given.version().columns


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("CREATE TABLE orders (a SPINOR(3))", "cannot be read"),
        ("ALTER TABLE orders ADD a int", "one CREATE TABLE statement"),
        ("CREATE TABLE orders LIKE items", "one CREATE TABLE statement"),
        ("CREATE TABLE items (a int)", "the statement creates shop.items instead of the table"),
        ("CREATE TABLE orders (a text)", "DEFAULT CHARSET"),
    ],
)
def test_ddl_what_is_no_answer_is_refused(statement: str, sentence: str) -> None:
    with pytest.raises(ActRefusedError, match=sentence):
        schema_of(statement, "shop", "orders")


def shop_directory(tmp_path: Path) -> Path:
    """Makes the directory of a destination `shop`."""
    config = SluiceConfig(
        data_dir=tmp_path,
        lake=str(tmp_path / "lake"),
        destinations={"shop": DestinationConfig(name="shop", source=SourceConfig(user="u"))},
    )
    directory = config.destination_dir("shop")
    directory.mkdir(parents=True)
    return directory


def test_ddl_resolve_stores_the_answer_and_requests_that_the_engine_continues(tmp_path: Path) -> None:
    directory = shop_directory(tmp_path)
    meta = FileLedger(directory)
    for table, state in (("orders", "SCHEMA_UNKNOWN"), ("items", "DDL_HELD")):
        meta.update(functools.partial(Ledger.stop_table, stopped=stop_of(table, state, order_key=160)))
    assert resolve(directory, "shop.orders", ANSWER).position == at(150)
    assert Resolutions(directory).schema("shop", "orders", 160, "") == schema_of(ANSWER, "shop", "orders")
    assert [each.table for each in requests(directory)] == ["orders"]
    with pytest.raises(ActRefusedError, match="DDL_HELD"):
        resolve(directory, "shop.items", ANSWER)
    with pytest.raises(ActRefusedError, match="has not stopped"):
        resolve(directory, "shop.nix", ANSWER)


def stop_of(table: str, state: str, order_key: int, reason: str = "why") -> StoppedTable:
    return StoppedTable(
        database="shop", table=table, state=TableState(state), reason=reason, position=at(150), order_key=order_key
    )


@pytest.mark.found
def test_ddl_an_answer_is_found_after_the_reason_of_its_stop_was_reworded(
    stopped: tuple[TableHistory, TableChange], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 62: the answer was stored under the reason of the stop. An upgrade worded the reason differently, and the table stopped."""
    _, stop = stopped
    meta = FileLedger(directory := shop_directory(tmp_path))
    known = stop_of("orders", stop.state, stop.order_key, stop.reason)
    meta.update(functools.partial(Ledger.stop_table, stopped=known))
    assert FileLedger(directory).ledger.stopped_tables == (known,)
    resolve(directory, "shop.orders", ANSWER)
    monkeypatch.setattr(effects, "shown", lambda reason: f"in other words: {reason}")
    review = SchemaDecisions(resolved=lambda *stop: Resolutions(directory).schema(*stop[:4]))
    history = TableHistory(tmp_path / "schema.jsonl", lambda *_: True, review)
    history.rewind(at(150))
    (change,) = history.apply(UNREADABLE, "shop", at(200))
    assert change.kind is TableChangeKind.SCHEMA


def test_ddl_an_answer_of_an_earlier_version_is_found_by_the_reason_of_its_stop(
    stopped: tuple[TableHistory, TableChange], tmp_path: Path
) -> None:
    history, stop = stopped
    given = schema_of(ANSWER, "shop", "orders")
    name = hashlib.sha256(f"shop\0orders\0{stop.reason}".encode()).hexdigest()[:32]
    folder = tmp_path / "schema-resolutions"
    folder.mkdir()
    (folder / f"{name}.json").write_text(json.dumps({"reason": stop.reason, "schema": given.to_json()}))
    history.rewind(at(150))
    (change,) = history.apply(UNREADABLE, "shop", at(200))
    assert change.schema == given.version()


def test_ddl_a_stop_of_an_earlier_version_is_read_again_before_it_is_resolved(tmp_path: Path) -> None:
    directory = shop_directory(tmp_path)
    meta = FileLedger(directory)
    meta.update(functools.partial(Ledger.stop_table, stopped=stop_of("orders", "SCHEMA_UNKNOWN", order_key=0)))
    assert "order_key" not in (directory / "meta.json").read_text(), "an earlier version can read this ledger"
    with pytest.raises(ActRefusedError, match=r"`sluice schema resume shop shop\.orders` reads the binlog from"):
        resolve(directory, "shop.orders", ANSWER)
    assert not requests(directory)


@pytest.mark.found
def test_ddl_a_change_is_approved_before_the_stream_reaches_its_statement_again(tmp_path: Path) -> None:
    """Defect 34: after one of several tables was approved, the cursor moved back, and the next approval failed with "has not stopped" until
    the stream reached the next statement.
    """
    directory = shop_directory(tmp_path)
    meta, files = FileLedger(directory), ReviewFiles(directory)
    passed, ahead, later = at(90).order_key, at(150).order_key, at(180).order_key
    for order_key in (later, passed, ahead):
        files.note(dataclasses.replace(RENAMED, order_key=order_key))
    meta.update(lambda ledger: ledger.set_cursor(at(100)))
    assert approve(directory, "shop.orders", "apply").order_key == ahead
    assert [files.approved("shop", "orders", each) for each in (passed, ahead, later)] == ["", "apply", ""]
    with pytest.raises(ActRefusedError, match="has not stopped"):
        approve(directory, "shop.items", "apply")
    meta.update(lambda ledger: ledger.set_cursor(at(200)))
    with pytest.raises(ActRefusedError, match="has not stopped"):
        approve(directory, "shop.orders", "apply")


def test_ddl_an_approval_ahead_is_for_the_first_statement_that_is_not_approved(tmp_path: Path) -> None:
    directory = shop_directory(tmp_path)
    meta, files = FileLedger(directory), ReviewFiles(directory)
    first, second = at(150).order_key, at(180).order_key
    for order_key in (first, second):
        files.note(dataclasses.replace(RENAMED, order_key=order_key))
    meta.update(lambda ledger: ledger.set_cursor(at(100)))
    assert approve(directory, "shop.orders", "apply").order_key == first
    assert approve(directory, "shop.orders", "new_column").order_key == second
    assert files.approved("shop", "orders", first) == "apply"


@pytest.mark.found
def test_resume_says_that_a_snapshot_is_still_being_canceled(tmp_path: Path) -> None:
    """Defect 16: `schema resume` after `snapshot cancel` printed only "has not stopped". It did not say that the snapshot was still being
    canceled.
    """
    directory = shop_directory(tmp_path)
    meta = FileLedger(directory)
    records = SnapshotRecords(directory)
    records.begin(wanted("shop.orders", at(150), 0.0))
    with pytest.raises(
        ActRefusedError, match=r"its snapshot is WANTED\. If the snapshot was canceled, the engine ends the snapshot"
    ):
        resume(directory, "shop.orders")
    records.update("shop.orders", lambda now: now.canceled())
    stop = StoppedTable(
        database="shop", table="orders", state=TableState.SNAPSHOT_CANCELED, reason="why", position=at(150)
    )
    meta.update(functools.partial(Ledger.stop_table, stopped=stop))
    assert resume(directory, "shop.orders") == stop


def test_ddl_the_rules_return_questions_and_query_nothing_themselves() -> None:
    known = KnownSchemas()
    known.remember(
        HistoryRecord(
            kind=RecordKind.SNAPSHOT, position=at(1), database="shop", table="orders", content=ORDERS.to_json()
        )
    )
    context = DdlContext(known, at(2).order_key, lambda *_: True, "shop", lower_case_names=False, position="here")
    requested, meant = [], effects_of(read_statement("ALTER TABLE orders DROP id, ADD n int", "mysql"), context)
    while isinstance(meant, Question):
        requested.append(meant)
        answers: dict[Unknown, object] = {
            Unknown.POLICY: dict.fromkeys(PLANS, "stop"),
            Unknown.APPROVAL: "",
            Unknown.SCHEMA: None,
        }
        context = dataclasses.replace(context, answers=context.answers.with_answer(meant, answers[meant.what]))
        meant = effects_of(read_statement("ALTER TABLE orders DROP id, ADD n int", "mysql"), context)
    table = ("shop", "orders")
    assert requested == [Question(Unknown.POLICY, table), Question(Unknown.APPROVAL, table)]
    assert [effect.change for effect in meant] == [TableChangeKind.STOPPED]


@pytest.mark.parametrize("given", [None, ORDERS])
def test_ddl_each_question_is_put_once_and_an_answer_that_fails_is_no_answer(
    tmp_path: Path, given: TableSchema | None
) -> None:
    requested: list[tuple[str, str]] = []

    def resolved(database: str, table: str, *_: object) -> TableSchema | None:
        requested.append((database, table))
        if len(requested) == 1:
            raise SourceConnectionError("the server does not answer")
        return given

    history = TableHistory(tmp_path / "schema.jsonl", lambda *_: True, SchemaDecisions(resolved=resolved))
    history.seed(
        SchemaSnapshot(DdlServerFacts(flavour="mysql", charset="utf8mb4"), (("shop", "utf8mb4"),), (ORDERS,)), at(100)
    )
    with pytest.raises(SourceConnectionError):
        history.apply(UNREADABLE, "shop", at(200))
    assert isinstance(history.state("shop", "orders", at(300)), TableSchema), "nothing is kept of what was not answered"
    (*changes,) = history.apply(UNREADABLE, "shop", at(200))
    assert requested == [("shop", "orders")] * 2
    assert bool(changes) is (given is None)
