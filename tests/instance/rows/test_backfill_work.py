"""Tests how a backfill reads the binlog. Only one backfill of a destination runs at a time. It reads up to the cursor of the lake, and is
refused if its rows would be wrong.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest

from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.errors import ActRefusedError
from sluice.cdc_engine.instance.rows.rules import RequestedInterval
from sluice.cdc_engine.instance.rows.work import BackfillReading, folder_of
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fix_ledgers import FileLedger
from tests.instance.fix_destination import Captured, running
from tests.instance.test_start_time_backfill import insert_at

SECOND_US = 1_000_000


def test_one_backfill_of_a_destination_at_a_time_and_what_a_killed_one_left_goes(tmp_path: Path) -> None:
    left = tmp_path / "backfills" / "killed" / "0"
    left.mkdir(parents=True)
    with folder_of(tmp_path) as folder:
        assert not left.parent.exists()
        (folder / "staged").mkdir()
        with pytest.raises(ActRefusedError, match="another backfill"), folder_of(tmp_path):
            pass
        assert folder.exists()
    assert not folder.exists()
    with pytest.raises(ValueError, match="broken"), folder_of(tmp_path) as again:
        raise ValueError("broken")
    assert not again.exists()


@pytest.mark.servers
def test_a_backfill_reads_on_to_where_the_lake_is_and_refuses_what_became_another(
    mysql80: DatabaseServer, tmp_path: Path
) -> None:
    captured = Captured(tmp_path, mysql80)
    loose, numbers = f"{captured.database}.loose", f"{captured.database}.numbers"
    captured.run(f"CREATE TABLE {loose} (n INT)", "FLUSH BINARY LOGS")
    base = int(time.time()) + 1000
    config, directory = captured.config.destinations["shop"], captured.directory

    def reading(folder: str, *tables: str) -> BackfillReading:
        requested = RequestedInterval(from_us=(base - 5) * SECOND_US, tables=tables)
        return BackfillReading(config, directory, requested, tmp_path / folder, now_us=base * SECOND_US)

    with running(captured) as engine:
        insert_at(captured, 0, base)
        captured.take(engine, 1)
        named = reading("named", loose)
        with pytest.raises(ActRefusedError, match=f"{loose}: the table has no key"):
            named.read()
        assert named.staged == [], "it was known before anything was read"
        made = reading("made")
        made.read()
        assert (made.tables, list(made.refused)) == ((numbers,), [loose])
        made.catch_up()
        assert len(made.staged) == 1, "the lake has no more"
        insert_at(captured, 1, base + 1)
        captured.take(engine, 1)
        ledger_id, cursor = made.catch_up()
        assert len(made.staged) == 2
        assert made.read_to.order_key >= cursor.order_key
        assert ledger_id == read_ledger(directory).ledger_id
        captured.run(f"ALTER TABLE {numbers} ADD COLUMN more INT")
        insert_like(captured, 2)
        captured.take(engine, 1)
        with pytest.raises(ActRefusedError, match="the interval has DDL statements on the table"):
            made.catch_up()
    FileLedger(directory).update(lambda ledger: dataclasses.replace(ledger, ledger_id="ffffffffffff"))
    with pytest.raises(ActRefusedError, match="another ledger"):
        made.catch_up()


def insert_like(captured: Captured, number: int) -> None:
    """Inserts a row with the current columns of the table."""
    captured.run(f"INSERT INTO {captured.database}.numbers (n) VALUES ({number})")
