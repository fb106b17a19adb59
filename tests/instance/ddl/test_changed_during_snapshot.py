"""Tests that a snapshot never mixes rows of two settings of conf/, and that no table continues without a snapshot that it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.contracts import StoppedTable
from sluice.cdc_engine.instance.tables.filter_change import may_resume, take_up_new_tables
from sluice.cdc_engine.instance.tables.value_policies import policies_of
from sluice.cdc_engine.meta.resume_requests import request, requests
from sluice.cdc_engine.snapshot.record import SnapshotRecord, SourceEnd, wanted
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.snapshot.steps import SnapshotSituation, SnapshotStep, next_step
from sluice.cdc_engine.states import SnapshotState, TableState
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
