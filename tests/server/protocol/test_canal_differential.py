"""The real Canal 1.1.7 and Sluice over the same binlog, read by the same client: entries equal, field by field.

What differs by intent is in `alike`, a line each, and in docs/canal.md with its reason.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.canal.server import ACCOUNT, canal_server
from canal_client import CanalClient, messages
from canal_client.messages import EntryType
from cdc_engine.instance.engine import Engine
from console.toolchain.database.server import DatabaseServer
from console.toolchain.ports import free_port
from tests.instance.fix_destination import Captured
from tests.server.protocol.test_canal_clients import INSERT, TABLE

pytestmark = pytest.mark.servers

WIDTH = re.compile(r"^(tinyint|smallint|mediumint|int|bigint|year)\(\d+\)")
BODIES = {
    EntryType.TRANSACTIONBEGIN: messages.TransactionBegin,
    EntryType.ROWDATA: messages.RowChange,
    EntryType.TRANSACTIONEND: messages.TransactionEnd,
}
SECONDS_MAX = 60.0
STATEMENTS = """
CREATE TABLE {db}.empty_one (id INT)
ALTER TABLE {db}.empty_one ADD COLUMN more VARCHAR(10)
CREATE INDEX more_index ON {db}.empty_one (more)
DROP INDEX more_index ON {db}.empty_one
TRUNCATE TABLE {db}.empty_one
RENAME TABLE {db}.empty_one TO {db}.other_one
DROP TABLE {db}.other_one
UPDATE {db}.everything SET v = 'neu', f = 1e10, d = 100, price = -0.05, j = NULL, b = NULL
UPDATE {db}.everything SET d = 1.5e300, f = 0.1, hours = '00:00:01', moment = '2020-01-02', kinds = '', flag = 0, y = 1901
UPDATE {db}.everything SET stamp = NULL, day = NULL, kind = NULL, kinds = NULL, t = NULL, bin = NULL, big = NULL
UPDATE {db}.everything SET v = '', t = '\U0001f600', bin = X'000102', b = X'8081', big = 5
UPDATE {db}.everything SET id = 7
INSERT INTO {db}.plain VALUES (1, 'a'), (2, 'b'), (3, NULL)
UPDATE {db}.plain SET note = 'c' WHERE n < 3
DELETE FROM {db}.plain
DELETE FROM {db}.everything
"""


def alike(entry: Any) -> dict[str, Any]:
    """An entry's fields with what is compared of them."""
    body = BODIES[EntryType(entry.entryType)].FromString(entry.storeValue)
    found = {**_fields(entry), "storeValue": _fields(body)}
    for row in found["storeValue"].get("rowDatas", ()):
        for column in (*row.get("beforeColumns", ()), *row.get("afterColumns", ())):
            # Sluice's schema history has no display width of integers.
            column["mysqlType"] = WIDTH.sub(r"\1", column.get("mysqlType", ""))
    return found


def _fields(message: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.is_repeated:
            found[field.name] = [_fields(each) for each in value]
        else:
            found[field.name] = _fields(value) if field.message_type else value
    return found


def entries(port: int, table_filter: str, count: int) -> list[Any]:
    """Of whole transactions that hold something for us, and statements: what is empty goes by the clock of each server."""
    found: list[Any] = []
    with CanalClient("shop", port=port, table_filter=table_filter) as client:
        for batch in client.batches(idle_seconds=SECONDS_MAX):
            found += batch.entries
            found = _without_empty(found)
            if len(found) >= count:
                break
    return found


def _without_empty(found: list[Any]) -> list[Any]:
    kept: list[Any] = []
    for entry in found:
        if entry.entryType == EntryType.TRANSACTIONEND and kept and kept[-1].entryType == EntryType.TRANSACTIONBEGIN:
            kept.pop()
        else:
            kept.append(entry)
    return kept


@pytest.mark.parametrize("server", ["mysql80", "mysql57"])
def test_entries_are_those_of_the_real_canal(server: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    mysql: DatabaseServer = request.getfixturevalue(server)
    captured = Captured(tmp_path, mysql)
    port = free_port()
    captured.describe(f"canal_server: {{port: {port}}}")
    database = captured.database
    captured.run(
        *ACCOUNT,
        TABLE.format(db=database) + " CHARACTER SET utf8mb4",
        f"CREATE TABLE {database}.plain (n INT, note VARCHAR(10))",
    )
    with mysql.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        place = cursor.fetchone()[:2]
    engine = Engine(captured.config, "shop")
    engine.start()
    try:
        engine.consumers.subscribe(1001)
        captured.run("SET time_zone = '+00:00'", INSERT.format(db=database))
        captured.run(*(line.format(db=database) for line in STATEMENTS.strip().splitlines()))
        table_filter = rf"{database}\..*"
        count = 7 + 3 * (len(STATEMENTS.strip().splitlines()) - 7 + 1)
        ours = [alike(each) for each in entries(port, table_filter, count)]
        with canal_server(mysql.port, "shop", place, table_filter, tmp_path / "canal.log") as canal:
            theirs = [alike(each) for each in entries(canal, table_filter, count)]
    finally:
        engine.stop()
    assert len(ours) == len(theirs) == count
    for our, their in zip(ours, theirs, strict=True):
        assert our == their
