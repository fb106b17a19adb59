"""Compares the real Canal 1.1.7 with Sluice over one binlog: what the fetch size of a client counts, and which statements are in a batch
of their own.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from benchmarks.canal.server import ACCOUNT, canal_server
from sluice.canal_client import CanalClient, ClientSettings
from sluice.canal_client.messages import EntryType
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.ports import free_port
from tests.instance.fix_destination import Captured
from tests.server.protocol.test_canal_differential import SECONDS_MAX, alike

pytestmark = [pytest.mark.servers, pytest.mark.seeds]

ALTER = 5
FETCH_SIZE = 5


def batches(port: int, table_filter: str, count: int) -> list[list[dict[str, Any]]]:
    """Returns the entries of each batch. Ends when the batches have at least `count` entries in all."""
    found: list[list[dict[str, Any]]] = []
    settings = ClientSettings(table_filter=table_filter, batch_size=FETCH_SIZE)
    with CanalClient("shop", port=port, settings=settings) as client:
        for batch in client.batches(idle_seconds=SECONDS_MAX):
            found.append([alike(each) for each in batch.entries])
            if sum(map(len, found)) >= count:
                break
    return found


def is_ddl(entry: dict[str, Any]) -> bool:
    return bool(entry["entryType"] == EntryType.ROWDATA and entry["header"].get("eventType") == ALTER)


def test_batches_have_as_many_entries_and_statements_alone_as_those_of_the_real_canal(
    tmp_path: Path, mysql80: DatabaseServer
) -> None:
    """In Sluice and in Canal, no batch has more entries than requested, and a DDL statement is a batch of its own. The other batches may
    end at different entries, because Sluice does not divide a transaction that has at most as many entries as requested.
    """
    captured = Captured(tmp_path, mysql80)
    port, database = free_port(), captured.database
    captured.describe(
        f"canal_server: {{port: {port}, fetch_unit: entries, full_batches: true}}", "batch: {ddl_isolation: true}"
    )
    captured.run(*ACCOUNT, f"CREATE TABLE {database}.plain (n INT)")
    with mysql80.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        position = cursor.fetchone()[:2]
    rows = [f"INSERT INTO {database}.plain VALUES ({number})" for number in range(12)]
    alter = f"ALTER TABLE {database}.plain ADD COLUMN m INT"
    changes = ["BEGIN", *rows[:3], "COMMIT", "BEGIN", *rows[3:9], "COMMIT", rows[9], alter]
    engine = Engine(captured.config, "shop")
    engine.start()
    try:
        engine.consumers.subscribe(1001)
        captured.run(*changes)
        table_filter, count = rf"{database}\..*", 3 + 6 + 1 + 3 * 2 + 1
        ours = batches(port, table_filter, count)
        with canal_server(
            *(mysql80.port, "shop", position, table_filter, tmp_path / "canal.log"),
            properties={"batchMode": "ITEMSIZE", "ddlIsolation": "true"},
        ) as canal:
            theirs = batches(canal, table_filter, count)
    finally:
        engine.stop()
    assert [*itertools.chain(*ours)] == [*itertools.chain(*theirs)]
    for found in (ours, theirs):
        assert max(map(len, found)) == FETCH_SIZE
        assert [len(batch) for batch in found if any(map(is_ddl, batch))] == [1]
    assert [len(batch) for batch in ours] == [5, 4, 4, 3, 1], "3 rows together; 6 rows in parts; 1 row; the statement"
