"""Tests online schema changes of gh-ost and pt-online-schema-change with a running engine: the swapped table is re-snapshotted.

The test executes the tools' statements as their logs show them. The tools are not needed, because the binlog has the same content.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.console.toolchain.database.server import DatabaseServer
from tests.instance.fix_destination import Captured
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

TOOLS = {"gh-ost": ("_numbers_gho", "_numbers_del"), "pt-online-schema-change": ("_numbers_new", "_numbers_old")}


def swap(captured: Captured, tool: str, column: str, rows: Iterator[int]) -> list[int]:
    """Makes one change as the tool does, with rows that are written before, during and after it. Returns the rows that were written to the
    table itself.
    """
    copy, remains = TOOLS[tool]
    before, during, after = next(rows), next(rows), next(rows)
    database = captured.database
    captured.run(
        f"INSERT INTO {database}.numbers (n, filler) VALUES ({before}, '')",
        f"CREATE TABLE {database}.{copy} LIKE {database}.numbers",
        f"ALTER TABLE {database}.{copy} ADD COLUMN {column} INT NOT NULL DEFAULT 7",
        f"INSERT IGNORE INTO {database}.{copy} (n, filler) SELECT n, filler FROM {database}.numbers",
        f"INSERT INTO {database}.numbers (n, filler) SELECT {during}, filler FROM {database}.numbers LIMIT 1",
        f"REPLACE INTO {database}.{copy} (n, filler) VALUES ({during}, '')",
        f"RENAME TABLE {database}.numbers TO {database}.{remains}, {database}.{copy} TO {database}.numbers",
        f"DROP TABLE {database}.{remains}",
        f"INSERT INTO {database}.numbers (n, filler, {column}) VALUES ({after}, '', 9)",
    )
    return [before, during, after]


@pytest.mark.found
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("flavour", ["mysql80", "mariadb114"])
def test_ddl_swaps_of_copies_that_are_not_followed_re_snapshot_the_table(
    flavour: str, tool: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Defect 26: after the swap, the table in the lake continued with its own rows, whatever rows the copy had."""
    server: DatabaseServer = request.getfixturevalue(flavour)
    captured = Captured(tmp_path, server)
    captured.describe(f"exclude: {captured.database}\\._.*")
    engine = Engine(captured.config, "shop")
    engine.start()
    try:
        rows = iter(range(1, 100))
        for column in ("first", "second"):
            swap(captured, tool, column, rows)
        records, name = SnapshotRecords(captured.directory), f"{captured.database}.numbers"

        def is_wanted() -> bool:
            batch = engine.hand_out(0.5)
            if batch is not None:
                engine.ack(batch)
            record = records.get(name)
            return record is not None and record.is_open and not read_ledger(captured.directory).stopped_tables

        wait_for("its rows are to be read again", is_wanted)
        record = records.get(name)
        assert record is not None
        assert (
            f"the copy {captured.database}.{TOOLS[tool][0]} replaced the table, and Sluice did not follow every row"
            in record.reason
        )
    finally:
        engine.stop()
