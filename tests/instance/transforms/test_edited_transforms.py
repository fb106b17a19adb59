"""Tests transforms whose modules are edited while an engine runs, or while a process that keeps engines runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.errors import ActRefusedError
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.instance.tables.filter_change import take_up_new_tables
from sluice.cdc_engine.instance.tables.table_snapshots import SnapshotDecisions, SourceTables
from sluice.cdc_engine.instance.tables.transforms_in_use import FILE, note_transforms
from sluice.cdc_engine.instance.tables.value_policies import policies_of
from sluice.cdc_engine.snapshot.record import wanted
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.snapshot.steps import SnapshotStep
from sluice.cdc_engine.states import TableState
from sluice.cdc_engine.table_meta.table_list.writing import write_tables
from sluice.console.toolchain.database.server import DatabaseServer
from tests.binlog.rows.event_bytes import ORDERS
from tests.fix_ledgers import MemoryLedger, at
from tests.instance.fix_destination import Captured, running
from tests.instance.test_row_rules_consumer import PARENT
from tests.instance.transforms.fix_modules import HEAD, UPPER, write
from tests.instance.transforms.test_transforms import POISONED, SETTINGS, destination, rows_of, staged
from tests.waiting import wait_for

pytestmark = pytest.mark.seeds


def test_an_edited_function_is_imported_again_and_its_table_is_read_again(tmp_path: Path, modules: Path) -> None:
    meta = MemoryLedger()

    def start(**settings: Any) -> list[TableState]:
        take_up_new_tables(destination(**settings), tmp_path, [ORDERS], meta, at(5))
        found = [stop.state for stop in meta.ledger.stopped_tables]
        if found:
            meta.update(lambda ledger: ledger.resume_table("shop", "orders"))
        return found

    changed = [TableState.RULES_CHANGED]
    assert (start(), start()) == ([], [])
    before = staged(tmp_path / "1", destination(), POISONED)
    write(modules, UPPER.replace("utf8_upper", "utf8_title"))
    assert (start(), start()) == (changed, [])
    assert (rows_of(before)[-1][2], rows_of(staged(tmp_path / "2", destination(), POISONED))[-1][2]) == (
        "POISON",
        "Poison",
    )
    assert start(version="1") == changed
    write(modules, UPPER)
    assert start(version="1") == [], "conf/ says that the results are the same"
    assert [start(version="2"), start(version="2", reads=["note", "amount"])] == [changed, changed]
    take_up_new_tables(destination({"shop.orders": {}}), tmp_path, [ORDERS], meta, at(5))
    assert [stop.state for stop in meta.ledger.stopped_tables] == changed, "its rows in the lake are transformed ones"


@pytest.mark.parametrize("is_package", [False, True], ids=["folder", "package"])
def test_a_new_version_applies_a_module_that_the_function_uses(tmp_path: Path, modules: Path, is_package: bool) -> None:
    """For a new `version`, the engine restarts within its process. This process has imported the module before, so it must import the
    module again.
    """
    folder, dot = (modules / "shop_package", ".") if is_package else (modules, "")
    folder.mkdir(exist_ok=True)
    (folder / "__init__.py").touch()
    helper = folder / "shop_letters.py"
    name = "shop_package.shop_letters" if is_package else "shop_letters"
    helper.write_text("SHOWN = 'utf8_upper'\n")
    text = UPPER.replace("pc.utf8_upper(", "getattr(pc, SHOWN)(")
    (folder / "shop_rows.py").write_text(f"from {dot}{helper.stem} import SHOWN\n{HEAD}{text}")
    function = f"{'shop_package.' if is_package else ''}shop_rows:orders"

    def last_note(version: str) -> str:
        found = staged(tmp_path / version, destination(function=function, version=version), POISONED)
        return str(rows_of(found)[-1][2])

    assert last_note("1") == "POISON"
    before = sys.modules[name]
    assert (last_note("2"), sys.modules[name]) == ("POISON", before), "nothing was edited"
    helper.write_text("SHOWN = 'utf8_title'\n")
    assert last_note("3") == "Poison"
    for each in (name, function.partition(":")[0], "shop_package"):
        sys.modules.pop(each, None)


def test_a_module_that_is_broken_now_delays_no_snapshot_of_another_table(tmp_path: Path, modules: Path) -> None:
    (tmp_path / "conf" / "destinations").mkdir(parents=True)
    (tmp_path / "conf" / "sluice.yaml").write_text(f"data_dir: {tmp_path}/data\nlake: {tmp_path}/lake\n")
    text = f"source: {{user: u}}\ntables:\n  shop.orders: {{transform: {json.dumps(SETTINGS)}}}\n"
    (tmp_path / "conf" / "destinations" / "shop.yaml").write_text(text)
    config = load_config(tmp_path / "conf")
    folder = config.destination_dir("shop")
    write_tables(folder, [ORDERS, PARENT])
    for table in (ORDERS, PARENT):
        SnapshotRecords(folder).begin(wanted(table.name, at(5), 0.0))
    write(modules, "def orders(rows:")
    found = {record.name: (decision.step, decision.why) for record, decision in SnapshotDecisions(config, "shop").now()}
    assert found["shop.parents"] == (SnapshotStep.WAIT, "the engine has no position yet")
    assert found["shop.orders"][0] is SnapshotStep.WAIT
    assert "the module shop_rows cannot be imported: SyntaxError" in found["shop.orders"][1]


def test_rows_are_not_read_with_a_salt_that_the_engine_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run may be on a host on which the variable of the salt has another value. No other check notices that its digests differ."""
    monkeypatch.setenv("NOTE_SALT", "one")
    (tmp_path / "conf" / "destinations").mkdir(parents=True)
    (tmp_path / "conf" / "sluice.yaml").write_text(f"data_dir: {tmp_path}/data\nlake: {tmp_path}/lake\n")
    masks = "masks: {note: {kind: hash, salt: $NOTE_SALT}}"
    text = f"source: {{user: u}}\ntables:\n  shop.orders: {{{masks}}}\n  shop.parents: {{rows: id > 1}}\n"
    (tmp_path / "conf" / "destinations" / "shop.yaml").write_text(text)
    config = load_config(tmp_path / "conf")
    folder, shop = config.destination_dir("shop"), config.destinations["shop"]
    note_transforms(policies_of(shop), folder)
    assert "one" not in (folder / FILE).read_text()
    tables = SourceTables(config, "shop")
    for table in (ORDERS, PARENT):
        tables.reader(table, "").close()
    monkeypatch.setenv("NOTE_SALT", "two")
    tables.reader(PARENT, "").close()
    with pytest.raises(
        ActRefusedError,
        match=r"shop\.orders: the salt of a mask changed.* or differs between this host and the engine's host",
    ):
        tables.reader(ORDERS, "")


@pytest.mark.servers
def test_a_re_snapshot_does_not_hide_that_the_function_was_edited(
    mysql80: DatabaseServer, tmp_path: Path, modules: Path
) -> None:
    """The running engine buffers changes with the function that it has imported, whatever the file contains by then."""
    shop = Captured(tmp_path, mysql80)
    write(modules, UPPER.replace("note", "filler"))
    settings = {**SETTINGS, "reads": ["filler"], "writes": ["filler", "size"]}
    shop.describe(f"tables: {{{shop.database}.numbers: {{transform: {json.dumps(settings)}}}}}")
    table = f"{shop.database}.numbers"

    def re_snapshotted(engine: Engine) -> bool:
        batch = engine.hand_out(0.5)
        if batch is not None:
            engine.ack(batch)
        record = SnapshotRecords(shop.directory).get(table)
        return record is not None and "DDL_UNSUPPORTED" in record.reason and not engine.status().stopped_tables

    with running(shop) as engine:
        shop.insert([1], filler_bytes=3)
        assert shop.take(engine, 1) == [1]
        write(modules, UPPER.replace("note", "filler").replace("upper", "lower"))
        shop.run(f"ALTER TABLE {table} ADD COLUMN size INT")
        wait_for("the table is re-snapshotted for the new column", lambda: re_snapshotted(engine))
    with running(shop) as engine:
        assert [stop.state for stop in engine.status().stopped_tables] == ["RULES_CHANGED"]
