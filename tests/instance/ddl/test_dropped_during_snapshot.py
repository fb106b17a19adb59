"""Tests that the snapshot of a table ends when the table was dropped, without a command and without a stop."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.batch_manifest.values import SchemaSegment, StagedTable
from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.config.table import SchemaChangesConfig
from sluice.cdc_engine.destination_files.lake_tables import LakeTables
from sluice.cdc_engine.ha.leases import RUN_LOCK, open_lock
from sluice.cdc_engine.instance.tables.engine_acts import EngineActs, Steering
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.snapshot.record import wanted
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.source.settings import SourceConfig
from sluice.cdc_engine.states import EngineState, SnapshotState, TableState
from sluice.cdc_engine.table_meta.schema import DroppedTable
from sluice.spark_jobs.batch.run_batch import _refuse_rows_of_buffered
from sluice.spark_jobs.errors import TableError
from tests.fix_ledgers import FileLedger, at, stopped

WANTED, CANCELED = SnapshotState.WANTED, SnapshotState.CANCELED


@pytest.mark.found
def test_the_snapshot_of_a_dropped_table_ends_by_itself(tmp_path: Path) -> None:
    """Defect 1063: a table was dropped or renamed before its snapshot was published. The snapshot stayed open forever, and the reason
    did not always name a command. `sluice catch-up` waited without end for it.
    """
    meta, records = FileLedger(tmp_path), SnapshotRecords(tmp_path)
    meta.update(lambda _: Ledger(ledger_id="0123456789ab", cursor=at(8), stopped_tables=(stopped("halted", 4),)))
    for name in ("kept", "dropped", "halted", "excluded", "later"):
        records.begin(wanted(f"shop.{name}", at(2), 1.0))
        folder = records.chunks(records.get(f"shop.{name}")).folder  # type: ignore[arg-type]
        folder.mkdir(parents=True)
    dropped_at = {"dropped": at(6), "halted": at(6), "later": at(9)}

    def state(_database: str, table: str, position: Position) -> Any:
        gone = table in dropped_at and dropped_at[table].order_key <= position.order_key
        return DroppedTable(schema=None) if gone else None

    idle = False
    hand_out = SimpleNamespace(while_idle=lambda act: act() if idle else None)
    history = SimpleNamespace(names=frozenset({"shop.kept"}), state=state)
    steering = Steering(
        parts=SimpleNamespace(meta=meta, history=history),  # type: ignore[arg-type]
        hand_out=hand_out,  # type: ignore[arg-type]
        still=contextlib.nullcontext(),
    )
    acts = EngineActs(DestinationConfig(name="shop", source=SourceConfig(user="root"), snapshot="never"), tmp_path)

    def ended() -> list[str]:
        acts.carry_out(EngineState.RUNNING, steering)
        return [each.table for each in records.all() if each.state == CANCELED]

    assert ended() == [], "a batch with changes of the table may be in flight"
    idle = True
    lock = open_lock(tmp_path, RUN_LOCK)
    assert lock.try_acquire()
    assert ended() == [], "a run may use the files"
    lock.release()
    assert ended() == ["dropped"]
    assert not records.chunks(records.get("shop.dropped")).folder.exists()  # type: ignore[arg-type]
    assert [each.table for each in meta.ledger.stopped_tables] == ["halted"]
    assert {each.state for each in records.all() if each.table != "dropped"} == {WANTED}
    meta.update(lambda ledger: ledger.set_cursor(at(10)))
    assert ended() == ["dropped", "later"]


class Names:
    """A schema history that fails if its names are listed."""

    @property
    def names(self) -> frozenset[str]:
        raise AssertionError("the names of all tables are listed before each batch")


@pytest.mark.found
def test_without_an_open_snapshot_no_names_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect 1063: before each batch, the engine listed the names of all tables, although no snapshot was open."""
    meta, records = FileLedger(tmp_path), SnapshotRecords(tmp_path)
    meta.update(lambda _: Ledger(ledger_id="0123456789ab", cursor=at(8)))
    records.begin(wanted("shop.dropped", at(2), 1.0))
    records.update("shop.dropped", lambda now: now.canceled())
    acts = EngineActs(DestinationConfig(name="shop", source=SourceConfig(user="root")), tmp_path)
    monkeypatch.setattr(acts, "_forget_snapshots", lambda _parts: None)
    parts: Any = SimpleNamespace(meta=meta, history=Names())
    acts.carry_out(EngineState.RUNNING, Steering(parts=parts, hand_out=parts, still=contextlib.nullcontext()))


@pytest.mark.found
@pytest.mark.parametrize("policy", ["apply", "ignore"])
def test_a_dropped_table_whose_rows_must_be_deleted_stops(tmp_path: Path, policy: Any) -> None:
    """Defect 1063: with `drop_table: apply`, the deletion of the rows was among the changes that the end of the snapshot removed. The rows
    stayed in the lake, and nothing said so.
    """
    meta, records = FileLedger(tmp_path), SnapshotRecords(tmp_path)
    meta.update(lambda _: Ledger(ledger_id="0123456789ab", cursor=at(8)))
    LakeTables(tmp_path).keep({"shop.dropped": ("7d", 3)})
    for name in ("shop.dropped", "shop.never_published"):
        records.begin(wanted(name, at(2), 1.0))
    history = SimpleNamespace(names=frozenset({"shop.kept"}), state=lambda *_: DroppedTable(schema=None))
    parts: Any = SimpleNamespace(meta=meta, history=history)
    hand_out: Any = SimpleNamespace(while_idle=lambda act: act())
    changes = SchemaChangesConfig(drop_table=policy)
    acts = EngineActs(
        DestinationConfig(name="shop", source=SourceConfig(user="root"), schema_changes=changes), tmp_path
    )
    acts.carry_out(EngineState.RUNNING, Steering(parts=parts, hand_out=hand_out, still=contextlib.nullcontext()))
    assert {each.state for each in records.all()} == {CANCELED}
    found = [(each.table, each.state, each.position) for each in meta.ledger.stopped_tables]
    assert found == ([("dropped", TableState.SNAPSHOT_CANCELED, at(2))] if policy == "apply" else [])


@pytest.mark.found
def test_the_snapshot_of_a_renamed_table_stays_until_the_renamed_table_has_its_rows(tmp_path: Path) -> None:
    """Defect 1063: a table that was renamed during its snapshot stops, because its rows in the lake are incomplete. After the snapshot of
    the old name had ended by itself, `sluice schema resume` gave the table the incomplete rows, and no message said so.
    """
    meta, records = FileLedger(tmp_path), SnapshotRecords(tmp_path)
    records.begin(wanted("shop.dropped", at(2), 1.0))
    segment = SchemaSegment(order_key=6, commit_time_us=1, version="v", key=(), columns=(), renamed_from="shop.dropped")
    with pytest.raises(TableError) as refused:
        _refuse_rows_of_buffered(StagedTable(database="shop", table="renamed", segments=(segment,)), records)  # type: ignore[arg-type]
    renamed = dataclasses.replace(stopped("renamed", 6), reason=str(refused.value))
    meta.update(lambda _: Ledger(ledger_id="0123456789ab", cursor=at(8), stopped_tables=(renamed,)))
    history = SimpleNamespace(names=frozenset({"shop.renamed"}), state=lambda *_: DroppedTable(schema=None))
    parts: Any = SimpleNamespace(meta=meta, history=history)
    hand_out: Any = SimpleNamespace(while_idle=lambda act: act())
    acts = EngineActs(DestinationConfig(name="shop", source=SourceConfig(user="root"), snapshot="never"), tmp_path)
    steering = Steering(parts=parts, hand_out=hand_out, still=contextlib.nullcontext())
    acts.carry_out(EngineState.RUNNING, steering)
    assert [each.state for each in records.all()] == [WANTED]
    meta.update(lambda ledger: ledger.resume_table("shop", "renamed"))
    acts.carry_out(EngineState.RUNNING, steering)
    assert [each.state for each in records.all()] == [CANCELED]
