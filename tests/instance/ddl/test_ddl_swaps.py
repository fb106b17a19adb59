"""Online schema changes of gh-ost and pt-online-schema-change through a running engine: the swapped table goes on, and loses no row.

The tools' statements are written out, as their logs show them; the tools themselves are not needed for what the binlog then holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_engine.destination_files import read_ledger
from cdc_engine.instance.engine import Engine
from console.toolchain.database.server import DatabaseServer
from tests.instance.fix_destination import Captured

pytestmark = pytest.mark.servers

TOOLS = {"gh-ost": ("_numbers_gho", "_numbers_del"), "pt-online-schema-change": ("_numbers_new", "_numbers_old")}


def swap(captured: Captured, tool: str, column: str, rows: Iterator[int]) -> list[int]:
    """One change as the tool makes it, with rows written before, during and after; those written to the table itself."""
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


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("flavour", ["mysql80", "mariadb114"])
def test_ddl_swaps_one_after_the_other_carry_the_table_on(
    flavour: str, tool: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: DatabaseServer = request.getfixturevalue(flavour)
    captured = Captured(tmp_path, server)
    captured.describe(f"exclude: {captured.database}\\._.*")
    engine = Engine(captured.config, "shop")
    engine.start()
    try:
        rows = iter(range(1, 100))
        written = [number for column in ("first", "second") for number in swap(captured, tool, column, rows)]
        assert captured.take(engine, len(written)) == written
        ledger = read_ledger(captured.directory)
        assert ledger.stopped_tables == ()
    finally:
        engine.stop()
