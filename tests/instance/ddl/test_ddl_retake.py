"""Tests that a table is re-snapshotted automatically after a statement whose new values only the rows show: the rules, crashes between the
steps, and real servers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.cdc_engine.acts.snapshot import chosen, start
from sluice.cdc_engine.contracts import StoppedTable
from sluice.cdc_engine.destination_files import LakeTables, read_ledger
from sluice.cdc_engine.errors import MetaError, SourceConnectionError
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.instance.published_history import PublishedHistory
from sluice.cdc_engine.instance.tables.resnapshot import (
    PAUSE_SECONDS_MIN,
    ResnapshotDependencies,
    Resnapshots,
    pause_seconds,
    resnapshot,
    schema_after,
)
from sluice.cdc_engine.instance.tables.table_snapshots import SnapshotCallbacks, snapshot_dependencies
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.snapshot.groups import run_all
from sluice.cdc_engine.snapshot.record import SnapshotRecord
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.states import SnapshotState, TableState
from sluice.cdc_engine.table_meta.schema import DroppedTable, ForeignKey, Stopped, TableSchema
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.orchestration.base.lake_settings import target
from sluice.orchestration.run.spark_merge import KeptRecords, OpenSnapshots
from sluice.orchestration.run.spark_publish import spark_publish
from sluice.spark_jobs.batch.context import BatchContext
from sluice.spark_jobs.batch.run_batch import merge_batch
from sluice.spark_jobs.session import SparkSettings
from sluice.spark_jobs.staged_files.read import read_staged_batch
from tests.fix_ledgers import FileLedger
from tests.instance.ddl.test_ddl_review import Pipeline
from tests.instance.fix_destination import Captured, running
from tests.waiting import wait_for

CURSOR = Position(epoch=1, file="mysql-bin.000001", offset=4096)
T = TableSchema(database="shop", table="t", charset="utf8mb4", columns=())
HOLE = TableSchema(database="shop", table="t", charset="utf8mb4", columns=(), engine="BLACKHOLE")
ARIA = TableSchema(database="shop", table="t", charset="utf8mb4", columns=(), engine="ARIA")


def stopped(state: TableState = TableState.DDL_UNSUPPORTED, table: str = "t") -> StoppedTable:
    position = Position(epoch=1, file="mysql-bin.000001", offset=1024)
    return StoppedTable(database="shop", table=table, state=state, reason="why", position=position)


# ── rules ──


def test_ddl_a_re_snapshot_resolves_stops_that_need_rows_and_no_decision_of_an_operator(tmp_path: Path) -> None:
    captured = Captured.__new__(Captured)
    captured.conf = tmp_path / "conf"
    config = conf_of(tmp_path, "{}")
    due = Resnapshots(config, SnapshotRecords(tmp_path)).due([stopped(state) for state in TableState])
    assert {each.state for each in due} == {
        TableState.DDL_UNSUPPORTED,
        TableState.STATEMENT_FORMAT,
        TableState.CASCADE_UNSEEN,
        TableState.RESUME_LOST,
        TableState.SCHEMA_UNKNOWN,
        TableState.SCHEMA_MISMATCH,
        TableState.RULES_CHANGED,
        TableState.FAILED_OVER_BY_TIME,
    }


@pytest.mark.parametrize(
    ("word", "own", "due"),
    [
        ("never", "{}", []),
        ("never", "{shop.t: {snapshot: when_needed}}", ["t"]),
        ("when_stopped", "{shop.t: {snapshot: never}}", ["u"]),
        ("initial", "{}", ["t", "u"]),
        ("when_needed", "{}", ["t", "u"]),
    ],
)
def test_ddl_conf_says_which_tables_are_re_snapshotted(tmp_path: Path, word: str, own: str, due: list[str]) -> None:
    config = conf_of(tmp_path, own, word)
    found = Resnapshots(config, SnapshotRecords(tmp_path)).due([stopped(), stopped(table="u")])
    assert [each.table for each in found] == due


def conf_of(folder: Path, tables: str, word: str = "") -> Any:
    from sluice.cdc_engine.config import load_config  # noqa: PLC0415

    (folder / "conf" / "destinations").mkdir(parents=True)
    (folder / "conf" / "sluice.yaml").write_text(f"data_dir: {folder}/data\n")
    lines = ["source: {user: root}", f"tables: {tables}", *([f"snapshot: {word}"] if word else [])]
    (folder / "conf" / "destinations" / "shop.yaml").write_text("\n".join(lines))
    return load_config(folder / "conf").destinations["shop"]


@pytest.mark.parametrize(
    ("state", "there", "schema", "requested"),
    [
        (TableState.DDL_UNSUPPORTED, Stopped(state="DDL_UNSUPPORTED", reason="", schema=T), T, False),
        (TableState.CASCADE_UNSEEN, T, T, False),
        (TableState.SCHEMA_UNKNOWN, Stopped(state="SCHEMA_UNKNOWN", reason=""), T, True),
        (TableState.SCHEMA_MISMATCH, HOLE, T, True),
        (TableState.SCHEMA_UNKNOWN, None, T, True),
        (TableState.DDL_UNSUPPORTED, Stopped(state="DDL_UNSUPPORTED", reason="", schema=HOLE), None, False),
        (TableState.DDL_UNSUPPORTED, Stopped(state="DDL_UNSUPPORTED", reason="", schema=ARIA), ARIA, False),
        (TableState.DDL_UNSUPPORTED, Stopped(state="DDL_UNSUPPORTED", reason="", schema=T, gone=True), None, False),
        (TableState.DDL_UNSUPPORTED, DroppedTable(schema=T), None, False),
    ],
)
def test_ddl_the_schema_that_a_table_continues_with(
    state: TableState, there: Any, schema: Any, requested: bool
) -> None:
    questions: list[int] = []

    def query_schema() -> TableSchema:
        questions.append(1)
        return T

    assert schema_after(stopped(state), there, query_schema) == schema
    assert bool(questions) == requested


@pytest.mark.found
@pytest.mark.parametrize("answer", [T, None])
def test_ddl_doubts_about_foreign_keys_end_with_a_re_snapshot(answer: TableSchema | None) -> None:
    """Belongs to defect 1075: a doubt about a foreign key stayed in the schema history after a re-snapshot. So each change of the parent
    stopped the table again.
    """
    key = ForeignKey(name="k", columns=("a",), parent=("shop", "p"), referenced=("id",), doubt="why")
    doubted = dataclasses.replace(T, foreign_keys=(key,))
    assert schema_after(stopped(TableState.CASCADE_UNSEEN), doubted, lambda: answer) == (answer or doubted)


class Steps:
    """Implements the engine's side of a re-snapshot, over real files. `crash` is the step at which the process ends, counted from 1."""

    def __init__(self, folder: Path, *stops: StoppedTable) -> None:
        self.meta, self.records = FileLedger(folder), SnapshotRecords(folder)
        self.history: list[tuple[str, Position]] = []
        self.meta.update(
            lambda ledger: functools.reduce(lambda made, stop: made.stop_table(stop), stops, ledger.set_cursor(CURSOR))
        )
        self.known: TableSchema | None = T

    def dependencies(self, crash: str = "") -> ResnapshotDependencies:
        def history(schema: TableSchema, position: Position) -> None:
            if crash == "before the history":
                raise MetaError(crash)
            self.history.append((schema.table, position))
            if crash == "after the history":
                raise MetaError(crash)

        return ResnapshotDependencies(
            meta=self.meta, records=self.records, schema=lambda *_: self.known, resnapshot=history
        )

    def record(self) -> SnapshotRecord:
        found = self.records.get("shop.t")
        assert found is not None
        return found


@pytest.mark.parametrize("crash", ["before the history", "after the history"])
def test_fault_ddl_a_crash_between_the_steps_leaves_a_stopped_table_and_the_next_look_takes_it(
    tmp_path: Path, crash: str
) -> None:
    steps, stop = Steps(tmp_path, stopped()), stopped()
    with pytest.raises(MetaError, match=crash):
        resnapshot(stop, T, CURSOR, steps.dependencies(crash))
    again = FileLedger(tmp_path).ledger
    assert again.stopped("shop", "t") == stop, "it is merged by nobody until all is done"
    assert (steps.record().state, steps.record().since) == (SnapshotState.WANTED, stop.position)
    resnapshot(stop, T, CURSOR, steps.dependencies())
    assert FileLedger(tmp_path).ledger.stopped_tables == ()
    assert steps.history[-1] == ("t", CURSOR)
    assert (steps.record().state, steps.record().buffered_after) == (SnapshotState.WANTED, CURSOR.order_key)
    assert steps.record().since == stop.position


def test_ddl_a_table_that_stops_during_its_snapshot_is_read_again(tmp_path: Path) -> None:
    steps, stop = Steps(tmp_path, stopped()), stopped()
    resnapshot(stop, T, CURSOR, steps.dependencies())
    steps.records.update("shop.t", lambda now: now.failed("the table stopped during the snapshot"))
    steps.meta.update(lambda ledger: ledger.stop_table(stop))
    resnapshot(stop, T, CURSOR, steps.dependencies())
    assert (steps.record().state, steps.record().generation) == (SnapshotState.WANTED, 2)
    assert "DDL_UNSUPPORTED: why" in steps.record().reason


def test_ddl_a_table_that_stops_again_and_again_is_tried_ever_more_rarely(tmp_path: Path) -> None:
    steps, now = Steps(tmp_path, stopped()), [0.0]
    retakes = Resnapshots(conf_of(tmp_path, "{}"), steps.records, clock=lambda: now[0])
    pauses = []
    for _ in range(4):
        steps.meta.update(lambda ledger: ledger.stop_table(stopped()))
        due = retakes.due(steps.meta.ledger.stopped_tables)
        while not due:
            now[0] += PAUSE_SECONDS_MIN
            due = retakes.due(steps.meta.ledger.stopped_tables)
        pauses.append(now[0])
        retakes.take_up(due, steps.dependencies())
    assert pauses == [0.0, 5.0, 15.0, 35.0]
    assert pause_seconds(1000) == 3600.0


def test_ddl_a_table_with_an_unknown_schema_stays_stopped_and_has_no_snapshot(tmp_path: Path) -> None:
    steps = Steps(tmp_path, stopped(TableState.SCHEMA_UNKNOWN))
    steps.known = None
    retakes = Resnapshots(conf_of(tmp_path, "{}"), steps.records)
    retakes.take_up(retakes.due(steps.meta.ledger.stopped_tables), steps.dependencies())
    assert steps.meta.ledger.stopped("shop", "t") is not None
    assert steps.records.all() == ()
    assert steps.history == []


# ── real servers ──


@pytest.fixture(params=["mysql80", "mariadb114"])
def captured(request: pytest.FixtureRequest, tmp_path: Path) -> Captured:
    return Captured(tmp_path, request.getfixturevalue(request.param))


def idle_until(engine: Engine, what: str, condition: Callable[[], bool]) -> None:
    """Hands out and acks, until the condition holds."""

    def flows() -> bool:
        batch = engine.hand_out(0.3)
        if batch is not None:
            engine.ack(batch)
        return condition()

    wait_for(what, flows, 60.0)


def stops_of(captured: Captured) -> dict[str, str]:
    return {stop.table: stop.state for stop in read_ledger(captured.directory).stopped_tables}


@pytest.mark.servers
def test_ddl_where_conf_says_never_a_table_stops_by_name(captured: Captured) -> None:
    captured.describe("snapshot: never")
    with running(captured) as engine:
        captured.insert([1])
        captured.run(f"ALTER TABLE {captured.database}.numbers ADD m INT AS (n + 1) STORED")
        captured.run(f"INSERT INTO {captured.database}.numbers (n) VALUES (2)")
        idle_until(
            engine, "it stops, and nothing waits", lambda: bool(stops_of(captured)) and engine.hand_out(0.3) is None
        )
    assert stops_of(captured) == {"numbers": "DDL_UNSUPPORTED"}
    assert SnapshotRecords(captured.directory).all() == ()


@pytest.mark.servers
@pytest.mark.found
@pytest.mark.parametrize("by_operator", [True, False])
def test_ddl_the_stop_of_a_table_ends_after_the_table_was_dropped(captured: Captured, by_operator: bool) -> None:
    """Defect 35: a table that stopped and was then dropped stayed stopped forever, because no command could end its stop."""
    captured.describe("snapshot: never")
    name = f"{captured.database}.numbers"
    captured.run(f"CREATE TABLE {captured.database}.calm (n INT PRIMARY KEY, filler LONGTEXT)")
    with running(captured) as engine:
        captured.insert([1])
        captured.run(f"ALTER TABLE {name} ADD m INT AS (n + 1) STORED", f"DROP TABLE {name}")
        captured.run(f"INSERT INTO {captured.database}.calm VALUES (7, 'x')")
        taken: list[Any] = []
        while 7 not in taken:
            taken += captured.take(engine, 1)
        assert stops_of(captured) == {"numbers": "DDL_UNSUPPORTED"}
        if by_operator:
            start(captured.directory, chosen(captured.directory, [name]))
            idle_until(engine, "the stop ends", lambda: not stops_of(captured))
            assert [each.state for each in SnapshotRecords(captured.directory).all()] == [SnapshotState.CANCELED]
    if not by_operator:
        captured.describe("snapshot: when_needed")
    with running(captured) as engine:
        idle_until(engine, "the stop ends", lambda: not stops_of(captured))
        captured.run(f"CREATE TABLE {name} (n INT PRIMARY KEY, filler LONGTEXT)")
        captured.insert([8])
        assert captured.take(engine, 1) == [8]
    assert stops_of(captured) == {}


@pytest.mark.servers
def test_fault_ddl_an_engine_that_dies_during_a_re_snapshot_continues_it(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured.run(f"CREATE TABLE {captured.database}.calm (n INT PRIMARY KEY, filler LONGTEXT)")

    def dies(*_: Any) -> None:
        raise MetaError("the disk is full")

    with running(captured) as engine:
        captured.insert([1])
        assert captured.take(engine, 1) == [1]
        with monkeypatch.context() as broken:
            broken.setattr(PublishedHistory, "resnapshot", dies)
            captured.run(f"ALTER TABLE {captured.database}.numbers ADD m INT AS (n + 1) STORED")
            with pytest.raises(MetaError, match="disk is full"):
                idle_until(engine, "it dies", lambda: False)
    assert stops_of(captured) == {"numbers": "DDL_UNSUPPORTED"}
    captured.run(
        f"INSERT INTO {captured.database}.numbers (n) VALUES (2)",
        f"INSERT INTO {captured.database}.calm VALUES (7, 'x')",
    )
    with running(captured) as engine:
        idle_until(engine, "it is taken anew", lambda: not stops_of(captured))
        captured.run(f"INSERT INTO {captured.database}.numbers (n) VALUES (3)")
        while (taken := captured.take(engine, 1))[-1] != 3:
            assert set(taken) <= {2, 7}, "it may be re-snapshotted before these rows are handed out"
    (record,) = SnapshotRecords(captured.directory).all()
    assert (record.table, record.state) == ("numbers", SnapshotState.WANTED)


@pytest.mark.servers
def test_ddl_a_renamed_view_delays_no_other_table(captured: Captured) -> None:
    """The history knows only tables, so the new name of the view stops as an unknown table would. The source knows that it is a view."""
    with running(captured) as engine:
        captured.run(
            f"CREATE VIEW {captured.database}.seen AS SELECT n FROM {captured.database}.numbers",
            f"RENAME TABLE {captured.database}.seen TO {captured.database}.looked_at",
        )
        captured.insert([1])
        assert captured.take(engine, 1) == [1]
        idle_until(engine, "no stop is left", lambda: not stops_of(captured))
        assert SnapshotRecords(captured.directory).all() == ()
        captured.insert([2])
        assert captured.take(engine, 1) == [2]


class Lake(Pipeline):
    """An engine whose batches are merged and whose snapshots are read and published by the code that production runs use."""

    def flow_until(self, what: str, condition: Any) -> None:
        """Hands out, merges and acks batches, and continues snapshots, until the condition holds and nothing waits."""
        records = SnapshotRecords(self.engine.directory)

        def flows() -> bool:
            batch = self.engine.hand_out(0.5)
            if batch is None:
                with contextlib.suppress(SourceConnectionError):
                    run_all(snapshot_dependencies(self.config, "shop", self.outside()), 0.0)
                return not any(each.has_work for each in records.all()) and condition()
            merge_batch(
                read_staged_batch(self.engine.directory / batch.path),
                {name: target(self.config, "shop", name) for name in batch.tables},
                self.spark,
                BatchContext(
                    target_of=functools.partial(target, self.config, "shop"),
                    records=KeptRecords(LakeTables(self.engine.directory)),
                    buffers=OpenSnapshots(records),
                ),
            )
            self.engine.ack(batch)
            return False

        wait_for(what, flows, 180.0)

    def outside(self) -> SnapshotCallbacks:
        return SnapshotCallbacks(
            run_lock=contextlib.nullcontext,
            publish=lambda record, table: spark_publish(self.config, "shop", record, table, "run", refusal=str).label,
            say=print,
            progress=lambda _: None,
        )


@pytest.fixture
def lake(captured: Captured, spark_server: SparkConnectServer) -> Iterator[Lake]:
    sluice = captured.conf / "sluice.yaml"
    sluice.write_text(f"{sluice.read_text()}spark: {{remote: '{spark_server.url}'}}\n")
    made = Lake(captured, SparkSettings(remote=spark_server.url))
    made.engine.start()
    yield made
    made.engine.stop()


# For each table, its columns, the statements on it, and the columns that are compared with the source afterwards.
RETAKEN = {
    "derived": ("id INT PRIMARY KEY, a INT", ["ALTER TABLE {t} ADD g INT AS (a * 2) STORED"], "id, a, g"),
    "numbered": ("id INT PRIMARY KEY, a INT", ["ALTER TABLE {t} ADD n INT NOT NULL AUTO_INCREMENT UNIQUE"], "id, a, n"),
    "by_row": ("id INT PRIMARY KEY, a INT", ["ALTER TABLE {t} ADD d INT DEFAULT (a + 1)"], "id, a, d"),
    "new_key": (
        "id INT, a INT",
        ["ALTER TABLE {t} ADD k BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY"],
        "k, id, a",
    ),
    "by_statement": (
        "id INT PRIMARY KEY, a INT",
        ["SET SESSION binlog_format = STATEMENT", "UPDATE {t} SET a = a + 100", "SET SESSION binlog_format = ROW"],
        "id, a",
    ),
    "renumbered": (
        "id INT PRIMARY KEY, a INT",
        ["ALTER TABLE {t} MODIFY a INT AUTO_INCREMENT, ADD UNIQUE (a)"],
        "id, a",
    ),
    "recalculated": (
        "id INT PRIMARY KEY, a INT, g INT AS (a + 1) STORED",
        ["ALTER TABLE {t} MODIFY g INT AS (a + 2) STORED"],
        "id, a, g",
    ),
    "stamped": (
        "id INT PRIMARY KEY, a INT, s TIMESTAMP NULL",
        ["ALTER TABLE {t} MODIFY s TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, ALGORITHM=COPY"],
        "id, a",
    ),
    "padded": (
        "id INT PRIMARY KEY, a CHAR(5)",
        ["SET sql_mode = PAD_CHAR_TO_FULL_LENGTH", "ALTER TABLE {t} MODIFY a VARCHAR(10)", "SET sql_mode = DEFAULT"],
        "id, a",
    ),
    "keyed": (
        "id INT, a INT",
        ["UPDATE {t} SET a = a + 1", "DELETE FROM {t} WHERE id = 3", "ALTER TABLE {t} ADD PRIMARY KEY (id)"],
        "id, a",
    ),
    "parts": (
        "id INT PRIMARY KEY, a INT) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (100)",
        [
            "CREATE TABLE {t}_other (id INT PRIMARY KEY, a INT)",
            "INSERT INTO {t}_other VALUES (50, 51)",
            "ALTER TABLE {t} EXCHANGE PARTITION p0 WITH TABLE {t}_other",
        ],
        "id, a",
    ),
}


@pytest.mark.servers
@pytest.mark.spark
def test_ddl_tables_whose_values_need_their_rows_are_re_snapshotted_and_equal_select(lake: Lake) -> None:
    run, database = lake.captured.run, lake.captured.database
    names = {name: f"{database}.{name}" for name in RETAKEN}
    for name, (columns, _, _) in RETAKEN.items():
        run(
            f"CREATE TABLE {names[name]} ({columns})",
            f"INSERT INTO {names[name]} (id, a) VALUES (1, 10), (2, 20), (3, NULL)",
        )
    lake.captured.insert([1])
    lake.flow_until("all is there", lambda: all(lake.equal(name, "id, a") for name in RETAKEN))
    for name, (_, statements, _) in RETAKEN.items():
        run(*(each.format(t=names[name]) for each in statements))
        run(f"INSERT INTO {names[name]} (id, a) VALUES (9, 90)", f"UPDATE {names[name]} SET a = 11 WHERE id = 1")
        run(f"DELETE FROM {names[name]} WHERE id = 2")
    lake.captured.insert([2])

    def equal() -> bool:
        return all(lake.equal(name, columns) for name, (_, _, columns) in RETAKEN.items())

    lake.flow_until("each equals SELECT", lambda: equal() and lake.equal("parts_other", "id, a"))
    published = {each.table for each in SnapshotRecords(lake.engine.directory).all()}
    assert published == {*RETAKEN, "parts_other"}
    assert stops_of(lake.captured) == {}
    assert lake.state("numbers") == "FLOWING"
    run(f"UPDATE {names['derived']} SET a = 5", f"INSERT INTO {names['numbered']} (id, a) VALUES (12, 1)")
    lake.flow_until("and they go on", equal)
