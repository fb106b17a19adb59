"""Tests the steps of docs/from-canal.md: the command imports Canal's folder, the engine starts, and the client
continues at its position.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sluice.canal_client import CanalClient, ClientSettings
from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.console.main import app
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.ports import free_port
from tests.console.canal_import.fix_canal import canal_folder, meta
from tests.instance.fix_destination import Captured

pytestmark = pytest.mark.servers

PAGE = Path(__file__).parents[3] / "docs" / "from-canal.md"
IMPORT = re.search(r"^ +(\./sluice import-canal .*)$", PAGE.read_text(), re.MULTILINE)


def test_a_client_of_canal_continues_where_it_stood(
    mysql80: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured, port = Captured(tmp_path / "source", mysql80), free_port()
    with mysql80.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        file = cursor.fetchone()[0]
        cursor.execute("SELECT UNIX_TIMESTAMP()")
        seconds = cursor.fetchone()[0]
    captured.insert(range(3))
    instance = rf"""
canal.instance.master.address = 127.0.0.1:{mysql80.port}
canal.instance.dbUsername = root
canal.instance.dbPassword =
canal.instance.filter.regex = {captured.database}\\..*
"""
    folder = canal_folder(tmp_path, f"canal.port = {port}\ncanal.metrics.pull.port = 0", instance)
    left = meta((1001, 4, seconds * 1000)).replace("mysql-bin.000009", file)
    (folder / "example" / "meta.dat").write_text(left)
    monkeypatch.chdir(tmp_path)
    assert IMPORT is not None
    done = CliRunner().invoke(app, shlex.split(IMPORT[1])[1:])
    assert done.exit_code == 0, done.output
    assert "clients 1001 continue" in done.output
    engine = Engine(load_config(tmp_path / "conf"), "example")
    engine.start()
    try:
        captured.insert(range(3, 5))
        with CanalClient(
            "example", port=port, settings=ClientSettings(table_filter=rf"{captured.database}\.numbers")
        ) as client:
            found: list[int] = []
            for change in client.changes(idle_seconds=60.0):
                found.append(change.row["n"])
                if len(found) == 5:
                    break
        assert found == [*range(5)]
    finally:
        engine.stop()
