"""Tests unmodified clients of Canal with a running engine, and each field that they receive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.ports import free_port
from tests.instance.fix_destination import Captured

pytestmark = pytest.mark.servers

ROOT = Path(__file__).parents[3]
BEGIN, ROWS, END = 1, 2, 3
TABLE = """CREATE TABLE {db}.everything (
 id INT UNSIGNED PRIMARY KEY, tiny TINYINT UNSIGNED, small SMALLINT, medium MEDIUMINT UNSIGNED, big BIGINT UNSIGNED,
 price DECIMAL(10,2), f FLOAT, d DOUBLE, flag BIT(1), bits BIT(10), day DATE, moment DATETIME(3), stamp TIMESTAMP NULL,
 hours TIME, y YEAR, kind ENUM('a','b'), kinds SET('x','y','z'), c CHAR(5), v VARCHAR(20), bin VARBINARY(10),
 t TEXT, b BLOB, j JSON, nothing INT NULL)"""
INSERT = """INSERT INTO {db}.everything VALUES (4294967295, 200, -5, 5, 18446744073709551615, 1.5, 1.1, 0.0001, b'1', b'1000000001',
 '2020-01-02', '2020-01-02 03:04:05.678', '2020-01-02 03:04:05', '-838:59:59', 2001, 'b', 'x,z', 'abc', 'grün', X'00FF',
 'text', X'E68891', '{{"a": 1.5, "b": [true, null]}}', NULL)"""
EXPECTED = {
    "id": ("4294967295", -5, "int unsigned"),
    "tiny": ("200", 5, "tinyint unsigned"),
    "small": ("-5", 5, "smallint"),
    "medium": ("5", 4, "mediumint unsigned"),
    "big": ("18446744073709551615", 3, "bigint unsigned"),
    "price": ("1.50", 3, "decimal(10,2)"),
    "f": ("1.1", 7, "float"),
    "d": ("1.0E-4", 8, "double"),
    "flag": ("1", -7, "bit(1)"),
    "bits": ("513", -7, "bit(10)"),
    "day": ("2020-01-02", 91, "date"),
    "moment": ("2020-01-02 03:04:05.678", 93, "datetime(3)"),
    "stamp": ("2020-01-02 03:04:05", 93, "timestamp"),
    "hours": ("-838:59:59", 92, "time"),
    "y": ("2001", 12, "year"),
    "kind": ("2", 4, "enum('a','b')"),
    "kinds": ("5", -7, "set('x','y','z')"),
    "c": ("abc", 1, "char(5)"),
    "v": ("grün", 12, "varchar(20)"),
    "bin": ("\x00ÿ", 2004, "varbinary(10)"),
    "t": ("text", 2005, "text"),
    "b": ("æ\x88\x91", 2004, "blob"),
    "j": ('{"a": 1.5, "b": [true, null]}', 12, "json"),
    "nothing": (None, 4, "int"),
}


@pytest.fixture
def captured(mysql80: DatabaseServer, tmp_path: Path) -> Captured:
    made = Captured(tmp_path, mysql80)
    made.describe(f"canal_server: {{port: {free_port()}}}")
    return made


@pytest.fixture
def engine(captured: Captured) -> Iterator[Engine]:
    made = Engine(captured.config, "shop")
    made.start()
    yield made
    made.stop()


def shown(captured: Captured, table_filter: str, count: int) -> list[dict[str, Any]]:
    """Returns the entries that canal-python gets. Requires that it gets the same entries again after a rollback."""
    port = captured.config.destinations["shop"].canal_server.port
    done = subprocess.run(
        [sys.executable, "-m", "tests.server.protocol.stock_client", str(port), "shop", table_filter, str(count)],
        cwd=ROOT,
        env={**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},
        capture_output=True,
        text=True,
        timeout=260,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout)
    assert reported["same"]
    entries: list[dict[str, Any]] = reported["entries"]
    return entries


def test_canal_python_is_shown_every_type_as_canal_shows_it(captured: Captured, engine: Engine) -> None:
    assert engine.consumers.subscribe(1001).acked is not None
    captured.run(TABLE.format(db=captured.database), "SET time_zone = '+00:00'", INSERT.format(db=captured.database))
    captured.run(
        f"UPDATE {captured.database}.everything SET v = 'neu', f = 1e10", f"DELETE FROM {captured.database}.everything"
    )
    entries = shown(captured, rf"{captured.database}\.everything", 10)
    assert [entry["entryType"] for entry in entries] == [ROWS, *[BEGIN, ROWS, END] * 3]
    ddl, inserted, updated, deleted = (entries[index] for index in (0, 2, 5, 8))
    assert (ddl["header"]["eventType"], ddl["storeValue"]["isDdl"]) == (4, True)
    assert (ddl["header"]["schemaName"], ddl["header"]["tableName"]) == (captured.database, "everything")
    assert ddl["storeValue"]["sql"].startswith("CREATE TABLE")
    _inserted(captured, entries[1], inserted, entries[3])
    before, after = (updated["storeValue"]["rowDatas"][0][side] for side in ("beforeColumns", "afterColumns"))
    assert [each["name"] for each in after if each.get("updated")] == ["f", "v"]
    assert not any(each.get("updated") for each in before)
    assert {each["name"]: each.get("value") for each in after}["f"] == "1.0E10"
    assert [*deleted["storeValue"]["rowDatas"][0]] == ["beforeColumns"]
    assert deleted["storeValue"]["eventType"] == 3


def _inserted(captured: Captured, begin: dict[str, Any], rows: dict[str, Any], end: dict[str, Any]) -> None:
    columns = rows["storeValue"]["rowDatas"][0]["afterColumns"]
    found = {each["name"]: (each.get("value"), each["sqlType"], each["mysqlType"]) for each in columns}
    assert found == EXPECTED
    assert [each.get("index", 0) for each in columns] == [*range(len(EXPECTED))]
    assert [each["name"] for each in columns if each.get("isKey")] == ["id"]
    assert all(each["updated"] and each["isNull"] == (each["name"] == "nothing") for each in columns)
    header = rows["header"]
    assert header["props"] == [{"key": "rowsCount", "value": "1"}]
    assert (header["version"], header["serverenCode"], header["sourceType"], header["eventType"]) == (1, "UTF-8", 2, 1)
    assert (header["schemaName"], header["tableName"]) == (captured.database, "everything")
    offsets = [each["header"]["logfileOffset"] for each in (begin, rows, end)]
    assert offsets == sorted(offsets)
    assert all(each["header"]["serverId"] == header["serverId"] for each in (begin, end))
    assert begin["storeValue"]["threadId"] > 0
    assert int(end["storeValue"]["transactionId"]) > 0
