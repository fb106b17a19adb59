"""Tests that a snapshot never mixes rows of two settings of conf/, and that no table continues without a snapshot that it needs."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.contracts import StoppedTable
from sluice.cdc_engine.destination_files.lake_tables import LakeTables
from sluice.cdc_engine.ha.leases import RUN_LOCK, open_lock
from sluice.cdc_engine.instance.tables import engine_acts
from sluice.cdc_engine.instance.tables.engine_acts import EngineActs, Steering
from sluice.cdc_engine.instance.tables.filter_change import may_resume, take_rules, take_up_new_tables
from sluice.cdc_engine.instance.tables.snapshot_requests import RequestDependencies, end_dropped, fulfil
from sluice.cdc_engine.instance.tables.value_policies import policies_of
from sluice.cdc_engine.meta.resume_requests import ResumeKind, request, requests
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.snapshot.record import SnapshotRecord, SourceEnd, wanted
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.snapshot.steps import SnapshotSituation, SnapshotStep, next_step
from sluice.cdc_engine.states import EngineState, SnapshotState, TableState
from sluice.cdc_engine.table_meta.schema import TableSchema
from tests.binlog.rows.event_bytes import ORDERS
from tests.fix_ledgers import MemoryLedger, at

NAME = ORDERS.name


def destination(**settings: Any) -> DestinationConfig:
    return DestinationConfig.model_validate(
        {"name": "shop", "source": {"user": "u"}, "snapshot": "never", "cascades": "ignore", **settings}
    )


def paused_while_reading(folder: Path) -> SnapshotRecords:
    """Begins a snapshot of the table, which has read its first chunk, and pauses it."""
    records = SnapshotRecords(folder)
    records.begin(wanted(NAME, at(2), 1.0))
    begun: dict[str, Any] = {
        "version": "v1",
        "key": ("id",),
        "columns": (("id", "int"),),
        "rows_expected": 9,
        "now": 2.0,
    }
    records.update(NAME, lambda now: now.began(at(3), **begun).with_chunks(1, 3, 100).with_pause(paused=True))
    return records


def step_after_resumes(folder: Path, meta: MemoryLedger) -> SnapshotStep:
    """Does what `sluice schema resume` and then `sluice snapshot resume` do, and returns the next step of the snapshot."""
    meta.update(lambda ledger: ledger.resume_table(ORDERS.database, ORDERS.table))
    record = SnapshotRecords(folder).update(NAME, SnapshotRecord.retried)
    return next_step(record, SnapshotSituation(begin=at(9), cursor=at(9), version="v1", epoch=1)).step


@pytest.mark.found
@pytest.mark.parametrize("is_read", [False, True])
def test_a_paused_snapshot_of_a_table_that_was_excluded_for_some_time_begins_again(
    tmp_path: Path, is_read: bool
) -> None:
    """Defect 1092: a paused snapshot continued with its next chunk after conf/ had excluded the table and included it again. The buffered
    changes lacked the changes of this time, so rows of the earlier chunks stayed outdated in the lake.
    """
    meta, records = MemoryLedger(), paused_while_reading(tmp_path)
    if is_read:
        records.update(NAME, lambda now: now.finished(SourceEnd(file="mysql-bin.000001", offset=64), 3.0))
    for config, tables in ((destination(), [ORDERS]), (destination(exclude=NAME), []), (destination(), [ORDERS])):
        take_up_new_tables(config, tmp_path, tables, meta, at(7), [NAME])
    assert [stop.state for stop in meta.ledger.stopped_tables] == [TableState.NEWLY_INCLUDED]
    record = records.get(NAME)
    assert record is not None
    assert (record.state, record.generation, record.buffered_after) == (SnapshotState.WANTED, 2, at(7).order_key)
    assert record.paused, "the operator continues it"
    assert step_after_resumes(tmp_path, meta) is SnapshotStep.BEGIN


@pytest.mark.found
def test_a_paused_snapshot_of_a_table_whose_settings_changed_begins_again(tmp_path: Path) -> None:
    """Defect 1092: after the policy of foreign keys had changed from `ignore`, a paused snapshot continued with its next chunk. Its
    buffered changes lacked the earlier changes of parent rows, so the lake kept rows that these changes had deleted.
    """
    meta, records = MemoryLedger(), paused_while_reading(tmp_path)
    for config in (destination(), destination(cascades="stop")):
        take_up_new_tables(config, tmp_path, [ORDERS], meta, at(7), [NAME])
    assert [stop.state for stop in meta.ledger.stopped_tables] == [TableState.RULES_CHANGED]
    record = records.get(NAME)
    assert record is not None
    assert "(cascades)" in record.reason
    assert step_after_resumes(tmp_path, meta) is SnapshotStep.BEGIN


@pytest.mark.found
def test_a_paused_snapshot_of_a_stopped_table_whose_settings_changed_begins_again(tmp_path: Path) -> None:
    """Defect 1092: the same happened if a DDL statement had stopped the table before the settings changed."""
    meta, changed = MemoryLedger(), destination(cascades="stop")
    paused_while_reading(tmp_path)
    take_up_new_tables(destination(), tmp_path, [ORDERS], meta, at(7), [NAME])
    stop = StoppedTable(database="shop", table="orders", state=TableState.DDL_HELD, reason="a change", position=at(7))
    meta.update(lambda ledger: ledger.stop_table(stop))
    take_up_new_tables(changed, tmp_path, [], meta, at(8), [NAME])
    request(tmp_path, ORDERS.database, ORDERS.table)
    assert may_resume(changed, tmp_path, policies_of(changed), requests(tmp_path), meta) == []
    assert step_after_resumes(tmp_path, meta) is SnapshotStep.BEGIN


@pytest.mark.parametrize("state", [SnapshotState.WANTED, SnapshotState.FAILED])
def test_a_snapshot_without_valid_chunks_stays_as_it_is(tmp_path: Path, state: SnapshotState) -> None:
    meta, records = MemoryLedger(), paused_while_reading(tmp_path)
    before = records.update(
        NAME, lambda now: now.again("altered") if state == SnapshotState.WANTED else now.failed("a")
    )
    for config in (destination(), destination(cascades="stop")):
        take_up_new_tables(config, tmp_path, [ORDERS], meta, at(7), [NAME])
    assert records.get(NAME) == before


class CapturedTable:
    """A captured table whose rows a run has merged into the lake, and what an operator does about its snapshot."""

    def __init__(self, folder: Path, config: DestinationConfig, *, has_rows: bool = True) -> None:
        self.folder, self.meta, self.records = folder, MemoryLedger(), SnapshotRecords(folder)
        self.meta.update(lambda ledger: ledger.set_cursor(at(5)))
        if has_rows:
            LakeTables(folder).keep({NAME: ("t", 3)})
        self.start(config)

    def state(self) -> TableState:
        stop = self.meta.ledger.stopped(ORDERS.database, ORDERS.table)
        return TableState(stop.state) if stop else TableState.FLOWING

    def start(self, config: DestinationConfig) -> None:
        """Starts the engine with other settings in conf/."""
        tables = [ORDERS] if TableFilter(config.include, config.exclude).keeps(*NAME.split(".")) else []
        take_up_new_tables(config, self.folder, tables, self.meta, at(7), [NAME])
        self.config = config

    def stop(self, state: TableState) -> None:
        stop = StoppedTable(database="shop", table="orders", state=state, reason="a change", position=at(7))
        self.meta.update(lambda ledger: ledger.stop_table(stop))

    def resnapshot(self) -> None:
        """Requests a re-snapshot of the stopped table, as `sluice snapshot start` does, and reads its first chunk."""
        self.records.begin(wanted(NAME, at(7), 1.0))
        request(self.folder, ORDERS.database, ORDERS.table, ResumeKind.RE_SNAPSHOT)
        self._fulfil()
        take_rules(self.config, self.folder, policies_of(self.config), [NAME], at(8))
        begun: dict[str, Any] = {"version": "v1", "key": ("id",), "columns": (), "rows_expected": 9, "now": 2.0}
        self.records.update(NAME, lambda now: now.began(at(8), **begun))

    def cancel(self) -> str:
        """Cancels the snapshot, and returns the reason of the table's stop."""
        self.request_cancel()
        (stop,) = self.meta.ledger.stopped_tables
        assert stop.state == TableState.SNAPSHOT_CANCELED
        return stop.reason

    def request_cancel(self) -> None:
        """Does what `sluice snapshot cancel` does."""
        request(self.folder, ORDERS.database, ORDERS.table, ResumeKind.CANCEL)
        self._fulfil()

    def _fulfil(self) -> None:
        dependencies = RequestDependencies(
            meta=self.meta,
            records=self.records,
            schema=lambda *_: cast("TableSchema", ORDERS),
            resnapshot=lambda *_: None,
            has_rows=lambda name: bool(LakeTables(self.folder).kept(name)),
            run_lock=lambda: open_lock(self.folder, RUN_LOCK),
        )
        fulfil(requests(self.folder), dependencies)

    def resumes(self) -> bool:
        """Does what `sluice schema resume` does, and returns whether the table may continue."""
        request(self.folder, ORDERS.database, ORDERS.table)
        return bool(may_resume(self.config, self.folder, policies_of(self.config), requests(self.folder), self.meta))


SOFT = {"tables": {NAME: {"deletes": "soft"}}}


@pytest.mark.found
@pytest.mark.parametrize("first", [TableState.FLOWING, TableState.DDL_UNSUPPORTED])
def test_a_table_whose_settings_changed_does_not_continue_after_its_snapshot_was_canceled(
    tmp_path: Path, first: TableState
) -> None:
    """Defect 1093: after a re-snapshot because of changed settings was canceled, `sluice schema resume` merged changes under the new
    settings into rows of the earlier settings. As soon as the snapshot had begun to read, the reason of the stop did not say so.
    """
    table = CapturedTable(tmp_path, destination())
    if first != TableState.FLOWING:
        table.stop(first)
    table.start(destination(**SOFT))
    assert table.state() == (first if first != TableState.FLOWING else TableState.RULES_CHANGED)
    for _ in range(2):
        table.resnapshot()
        assert table.state() == TableState.FLOWING
        assert "re-snapshot the table with `sluice snapshot start`" in table.cancel()
    assert not table.resumes()
    assert table.state() == TableState.RULES_CHANGED, "which a re-snapshot heals"
    (stop,) = table.meta.ledger.stopped_tables
    assert stop.reason.startswith(
        "conf/ has changed for this table (before the snapshot that was canceled), and the rows"
    )
    assert table.resumes(), "an operator accepts it"


@pytest.mark.found
@pytest.mark.parametrize("snapshot", ["initial", "never"])
def test_a_table_that_is_included_again_does_not_continue_after_its_snapshot_was_canceled(
    tmp_path: Path, snapshot: str
) -> None:
    """Defect 1093: after the snapshot of a table that was included again was canceled, `sluice schema resume` continued the table, although
    the lake lacked the changes of the time in which conf/ excluded it.
    """
    table = CapturedTable(tmp_path, destination())
    table.start(destination(exclude=NAME))
    table.start(destination(snapshot=snapshot))
    assert table.state() == (TableState.FLOWING if snapshot == "initial" else TableState.NEWLY_INCLUDED)
    if snapshot == "never":
        table.resnapshot()
    table.cancel()
    assert not table.resumes()
    assert table.state() == TableState.RULES_CHANGED


@pytest.mark.parametrize(("has_rows", "settings"), [(True, {}), (False, SOFT)], ids=["unchanged", "no rows"])
def test_a_table_whose_rows_fit_continues_after_its_snapshot_was_canceled(
    tmp_path: Path, has_rows: bool, settings: dict[str, Any]
) -> None:
    table = CapturedTable(tmp_path, destination(), has_rows=has_rows)
    table.stop(TableState.DDL_UNSUPPORTED)
    table.start(destination(**settings))
    table.resnapshot()
    assert "`sluice schema resume` continues the table from that position" in table.cancel()
    assert table.resumes()


def test_a_table_without_rows_that_is_included_again_resumes_at_once_after_its_snapshot_was_canceled(
    tmp_path: Path,
) -> None:
    """No row in the lake is outdated. But the reason says that the lake lacks rows, as the reason of NEWLY_INCLUDED does."""
    table = CapturedTable(tmp_path, destination(exclude=NAME), has_rows=False)
    table.start(destination(snapshot="initial"))
    assert "lacks the rows and changes from before conf/ included the table" in table.cancel()
    assert table.resumes()


def test_a_canceled_snapshot_remembers_what_the_stop_that_it_replaces_said(tmp_path: Path) -> None:
    """The next snapshot of the table is needed for the same cause, so its cancellation leaves the cause too."""
    table = CapturedTable(tmp_path, destination())
    table.records.begin(wanted(NAME, at(5), 1.0))
    table.stop(TableState.FAILED_OVER_BY_TIME)
    for _ in range(2):
        assert "the failover reads again are in the lake twice" in table.cancel()
        record = table.records.get(NAME)
        assert record is not None
        assert (record.state, record.heals) == (SnapshotState.CANCELED, (TableState.FAILED_OVER_BY_TIME,))
        table.resnapshot()


@pytest.mark.found
def test_a_stop_at_the_begin_of_a_canceled_snapshot_does_not_hide_its_cause(tmp_path: Path) -> None:
    """Defect 1175: if the table had stopped again at the position where the snapshot began, this stop stayed when the snapshot was
    canceled. Its resume merged changes under the new settings into rows of the earlier settings, without another request.
    """
    table = CapturedTable(tmp_path, destination())
    table.start(destination(**SOFT))
    table.resnapshot()
    table.stop(TableState.DDL_HELD)
    assert "re-snapshot the table with `sluice snapshot start`" in table.cancel()
    assert not table.resumes()
    assert table.state() == TableState.RULES_CHANGED
    assert table.resumes(), "an operator accepts it"


@pytest.mark.parametrize("state", [TableState.DDL_HELD, TableState.RULES_CHANGED])
def test_a_stop_at_the_begin_of_a_canceled_snapshot_stays_if_the_snapshot_has_no_other_cause(
    tmp_path: Path, state: TableState
) -> None:
    table = CapturedTable(tmp_path, destination())
    table.stop(state)
    table.records.begin(wanted(NAME, at(7), 1.0))
    table.request_cancel()
    assert table.state() == state


@pytest.mark.found
def test_the_changed_settings_of_a_paused_snapshot_count_after_its_end(tmp_path: Path) -> None:
    """Defect 1093: the same happened if the settings changed during the snapshot, and an operator accepted this before the cancellation."""
    table = CapturedTable(tmp_path, destination())
    table.stop(TableState.DDL_UNSUPPORTED)
    table.resnapshot()
    table.start(destination(**SOFT))
    assert table.resumes(), "an operator accepts it"
    table.meta.update(lambda ledger: ledger.resume_table(ORDERS.database, ORDERS.table))
    for each in requests(tmp_path):
        each.done()
    table.cancel()
    assert not table.resumes()


def test_a_canceled_snapshot_is_remembered_as_long_as_its_table_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Conf/ may exclude the table for a long time before it includes the table again."""
    table = CapturedTable(tmp_path, destination())
    table.start(destination(**SOFT))
    table.resnapshot()
    table.cancel()
    other = wanted("shop.other", at(2), 1.0).canceled()
    table.records.begin(other)
    monkeypatch.setattr(engine_acts, "FORGET_SECONDS", -60.0)
    history = SimpleNamespace(names=frozenset({"shop.captured"}))
    parts: Any = SimpleNamespace(meta=table.meta, history=history)
    steering = Steering(parts=parts, hand_out=parts, still=contextlib.nullcontext())
    EngineActs(table.config, tmp_path).carry_out(EngineState.RUNNING, steering)
    assert [each.name for each in table.records.all()] == [NAME]
    assert not table.resumes()


def test_the_snapshot_of_a_dropped_table_is_not_needed_any_more(tmp_path: Path) -> None:
    table = CapturedTable(tmp_path, destination())
    table.start(destination(**SOFT))
    table.resnapshot()
    record = table.records.get(NAME)
    assert record is not None
    assert record.heals == (TableState.RULES_CHANGED,)
    end_dropped([record], table.records, open_lock(tmp_path, RUN_LOCK), lambda _record: None)
    table.stop(TableState.SNAPSHOT_CANCELED)
    assert table.resumes(), "which deletes its rows"
