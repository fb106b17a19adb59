"""Tests that the GRANT of docs/guides/connect-a-source.md is enough for an engine and the console, and that each missing part of it is
printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.cdc_engine.instance.discovery import SourceSchema
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.console.check import check_destination
from sluice.console.keyless_check import Keyless, find_keyless
from sluice.console.toolchain.database.server import DatabaseServer
from tests.instance.fix_destination import Captured
from tests.parser.fix_shop import purge_all_but_newest

pytestmark = [pytest.mark.managed, pytest.mark.servers]

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "connect-a-source.md"
# The first GRANT of the page has the privileges that are always needed. The second GRANT is only for sessions with binlog_format MIXED.
PRIVILEGES = re.findall(r"^GRANT (.+) ON \*\.\* TO 'sluice'@'%';$", PAGE.read_text(), re.MULTILINE)[0]
USER = "granted"


@pytest.fixture(params=["mysql80", "mysql9", "mariadb114"])
def captured(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Captured]:
    server: DatabaseServer = request.getfixturevalue(request.param)
    # Other tests log changes as statements, which stop every table whose columns are unknown at that position.
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("FLUSH BINARY LOGS")
    purge_all_but_newest(server)
    made = Captured(tmp_path, server)
    made.run(f"DROP USER IF EXISTS {USER}", f"CREATE USER {USER} IDENTIFIED BY 'granted-7'")
    (tmp_path / "password").write_text("granted-7")
    yield made
    made.run(f"DROP USER {USER}")


def describe(captured: Captured, root: Path, *lines: str) -> None:
    source = f"{{user: {USER}, port: {captured.server.port}, password: {{file: {root / 'password'}}}}}"
    captured.describe(*lines, source=source)


def test_the_documented_grant_is_enough(captured: Captured, tmp_path: Path) -> None:
    captured.run(
        f"GRANT {PRIVILEGES} ON *.* TO {USER}",
        f"CREATE TABLE {captured.database}.keyless (n INT)",
        f"INSERT INTO {captured.database}.numbers VALUES (7, '')",
    )
    describe(captured, tmp_path, "start: {earliest: true}", "failover: by_time")
    shop = captured.config.destinations["shop"]
    finding = check_destination(shop)
    assert finding.problems == ()
    assert find_keyless(SourceSchema(shop)) == Keyless(names=(f"{captured.database}.keyless",))
    engine = Engine(captured.config, "shop", watch_seconds=0.5)
    engine.start()
    try:
        assert captured.take(engine, 1) == [7], "what was written before the start is read"
        captured.run(f"ALTER TABLE {captured.database}.numbers ADD COLUMN more INT")
        captured.run(f"INSERT INTO {captured.database}.numbers VALUES (8, '', 1)")
        assert captured.take(engine, 1) == [8]
        assert engine.status().state == "RUNNING"
        assert [each for each in engine.status().troubles if "grant" in each.lower()] == []
    finally:
        engine.stop()


@pytest.mark.parametrize("left_out", PRIVILEGES.split(", "))
def test_each_missing_privilege_is_printed_with_its_name(captured: Captured, tmp_path: Path, left_out: str) -> None:
    captured.run(f"CREATE TABLE {captured.database}.keyless (n INT)")
    given = [each for each in PRIVILEGES.split(", ") if each != left_out]
    captured.run(f"GRANT {', '.join(given)} ON *.* TO {USER}")
    describe(captured, tmp_path, "snapshot: initial")
    shop = captured.config.destinations["shop"]
    requested = list(check_destination(shop).problems)
    if left_out == "LOCK TABLES":
        requested += find_keyless(SourceSchema(shop)).notes
    known = {left_out, {"REPLICATION CLIENT": "BINLOG MONITOR"}.get(left_out, left_out)}
    named = [each for each in requested if any(f"GRANT {name}" in each for name in known)]
    # Snapshots of InnoDB tables of MariaDB do not need LOCK TABLES.
    needless = left_out == "LOCK TABLES" and "mariadb" in captured.server.version
    assert (len(named), len(requested)) == ((0, 0) if needless else (1, 1)), requested
