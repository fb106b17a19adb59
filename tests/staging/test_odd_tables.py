"""Tests that a table that cannot be staged stops alone, whatever its staging raises. The other tables are staged as usual."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest

from sluice.batch_manifest.values import Cascade
from sluice.cdc_engine.binlog.rows.decoder import RowDecoder
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.errors import StagingError
from sluice.cdc_engine.staging import cascades, stage
from sluice.cdc_engine.staging.segment_writer import SegmentWriter
from sluice.cdc_engine.staging.table_files import TableFiles
from sluice.cdc_engine.states import TableState
from tests.binlog.rows.event_bytes import ID, NOTE, ORDERS
from tests.staging.test_staging import DELETE, INSERT, batch, rows_block, whole

NAMES = [f"t{number}" for number in range(8)]
TABLES = [dataclasses.replace(ORDERS, table=name) for name in NAMES]
STAGES = [
    (RowDecoder, "chunks"),
    (RowDecoder, "__init__"),
    (TableFiles, "add"),
    (TableFiles, "close"),
    (SegmentWriter, "finish"),
]
WRONG = [KeyError("_sluice_operation"), ValueError("odd"), AssertionError(), RecursionError("deep"), TypeError("none")]


@pytest.mark.found
@pytest.mark.parametrize("seed", range(20))
def test_a_table_that_raises_in_any_stage_stops_alone(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 25: an exception in the staging of one table stopped the destination in each tick, and no state reported it."""
    chance = random.Random(seed)  # noqa: S311  the tables of a test
    odd = {name: chance.choice(WRONG) for name in chance.sample(NAMES, chance.randint(1, 7))}
    kind, method = chance.choice(STAGES)
    real: Any = getattr(kind, method)

    def maybe(self: Any, *given: Any, **named: Any) -> Any:
        if (error := odd.get(_table_of(self, given))) is not None:
            raise error
        return real(self, *given, **named)

    monkeypatch.setattr(kind, method, maybe)
    events = [(table, INSERT, [(number, 1, "x")]) for number, table in enumerate(TABLES * 2)]
    staged = stage(batch(whole(rows_block(*events))), "shop", 1, tmp_path)
    assert {each.table for each in staged.stopped} == set(odd)
    assert {each.state for each in staged.stopped} == {TableState.MERGE_FAILED}
    assert all(type(odd[each.table]).__name__ in each.reason for each in staged.stopped)
    found = {
        each.table: sum(getattr(segment, "rows", 0) for segment in each.segments) for each in staged.manifest.tables
    }
    assert found == {name: 2 for name in NAMES if name not in odd}


def _table_of(subject: Any, given: tuple[Any, ...]) -> str:
    """Returns the table's name for an object of the classes in STAGES."""
    if isinstance(subject, RowDecoder):
        version = given[0] if given and isinstance(given[0], TableVersion) else subject.version
        return str(version.table)
    if isinstance(subject, SegmentWriter):
        return str(subject.decoder.version.table)
    return str(subject.table)


@pytest.mark.found
def test_a_full_disk_is_no_table_s_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test for defect 25: an error that concerns the whole batch stops no table."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TableFiles, "add", full)
    with pytest.raises(StagingError, match="No space left"):
        stage(batch(whole(rows_block((ORDERS, INSERT, [(1, 1, "x")])))), "shop", 1, tmp_path)


@pytest.mark.found
@pytest.mark.parametrize("name", ["_sluice_operation", "_SLUICE_order_key", "_sluice_row"])
def test_a_column_with_a_name_of_sluice_s_own_stops_its_table(name: str, tmp_path: Path) -> None:
    """Defect 25: a column named `_sluice_operation` stopped the destination with a KeyError in each tick, and no state reported it."""
    odd = dataclasses.replace(ORDERS, table="odd", columns=(ID, dataclasses.replace(NOTE, name=name)))
    block = rows_block((odd, INSERT, [(1, "x")]), (ORDERS, INSERT, [(1, 1, "x")]))
    staged = stage(batch(whole(block)), "shop", 1, tmp_path)
    (stop,) = staged.stopped
    assert (stop.table, stop.state) == ("odd", TableState.TYPE_UNSUPPORTED)
    assert name in stop.reason
    assert "column_exclude" in stop.reason
    assert [each.table for each in staged.manifest.tables] == [ORDERS.table]


def parent_of(name: str) -> TableVersion:
    """Returns a table whose deleted rows delete rows of the child `name` and of the grandchild."""
    orders = dataclasses.replace(ORDERS, table=f"{name}_parent")
    child, grandchild = (orders.database, name), (orders.database, f"{name}_child")
    first = Cascade(
        name="fk",
        parent=(orders.database, orders.table),
        child=child,
        columns=("id",),
        referenced=(ORDERS.columns[0].name,),
        on_delete="CASCADE",
    )
    below = dataclasses.replace(first, parent=child, child=grandchild)
    return dataclasses.replace(orders, cascades=(first, below))


@pytest.mark.found
@pytest.mark.parametrize("seed", range(12))
def test_a_parent_whose_cascades_raise_stops_the_tables_below_it_alone(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 25: an exception while the cascades of one table were recorded stopped the destination in each tick, and
    no state reported it.
    """
    chance = random.Random(seed)  # noqa: S311  the tables of a test
    odd = {f"{name}_parent": chance.choice(WRONG) for name in chance.sample(NAMES, chance.randint(1, 7))}
    name = chance.choice(["_record", "_may_remove", "finish"])
    owner: Any = {"_record": cascades.CascadeRecorder, "finish": cascades._Writer}.get(name, cascades)
    real = getattr(owner, name)

    def maybe(*given: Any, **named: Any) -> Any:
        found = (each if isinstance(each, TableVersion) else getattr(each, "version", None) for each in given)
        version = next(each for each in found if isinstance(each, TableVersion))
        if (error := odd.get(version.table)) is not None:
            raise error
        return real(*given, **named)

    monkeypatch.setattr(owner, name, maybe)
    parents = [parent_of(each) for each in NAMES]
    children = [dataclasses.replace(ORDERS, table=each) for each in NAMES]
    events = [(each, INSERT, [(1, 1, "x")]) for each in (*children, *parents)]
    deletes = [(each, DELETE, [(1, 1, "x")]) for each in parents]
    staged = stage(batch(whole(rows_block(*events, *deletes))), "shop", 1, tmp_path)
    below = {f"{each.removesuffix('_parent')}{kind}" for each in odd for kind in ("", "_child")}
    assert {each.table for each in staged.stopped} == below
    assert {each.state for each in staged.stopped} == {TableState.CASCADE_UNSEEN}
    assert all("_parent" in each.reason for each in staged.stopped), "the table that raised is named"
    live = {found.partition(".")[2] for each in staged.manifest.cascades for found in map(".".join, each.live)}
    assert live == {f"{each}{kind}" for each in NAMES for kind in ("", "_child")} - below
    staged_tables = {each.table for each in staged.manifest.tables}
    assert staged_tables >= {each.table for each in parents} | (set(NAMES) - below)
    assert not staged_tables & below
