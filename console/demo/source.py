"""Runs the demo's MySQL: a private server with the tables of the shop and a user for Sluice."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path
from typing import Any

import pymysql

from sluice.cdc_engine.position import file_number
from sluice.console.demo.schema import DATABASE, VISITS, create_database_statement, create_statements, old_statements
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.ports import LOOPBACK

VERSION = "mysql-8.0.31"
USER = "sluice"
PASSWORD_VARIABLE = "SLUICE_DEMO_PASSWORD"  # noqa: S105  the name of the variable
# The privileges that docs/guides/README.md requires.
GRANTS = "SELECT, LOCK TABLES, REPLICATION SLAVE, REPLICATION CLIENT"
SERVER_ID = 4201


class DemoSource:
    """The MySQL server of a demo. `folder` contains the server's data and the file with the password (mode 0600), and is kept when the
    server stops.
    """

    def __init__(self, folder: Path, port: int | None) -> None:
        self.folder = folder
        self.password = _password(folder)
        options: dict[str, str | int | None] = {"default_time_zone": "+00:00", "server_id": SERVER_ID}
        self.server = DatabaseServer(VERSION, folder / "mysql", port=port, options=options)

    def start(self, visits: int) -> None:
        """Starts the server, and creates the user for Sluice. If the shop's tables do not exist yet, creates them, with `visits` rows in
        the table `visits` that are in no binlog file.
        """
        self.server.start()
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
            self._make_old(cursor, visits)
            for statement in create_statements():
                cursor.execute(statement)
            cursor.execute(f"CREATE USER IF NOT EXISTS '{USER}'@'%%' IDENTIFIED BY %s", (self.password,))
            cursor.execute(f"ALTER USER '{USER}'@'%%' IDENTIFIED BY %s", (self.password,))
            cursor.execute(f"GRANT {GRANTS} ON *.* TO '{USER}'@'%'")

    @staticmethod
    def _make_old(cursor: Any, visits: int) -> None:
        """Creates the rows that the initial snapshot will read. The binlog is switched off, so that no binlog file contains them."""
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute(create_database_statement())
        if not cursor.execute(f"SHOW TABLES FROM {DATABASE} LIKE '{VISITS}'"):
            for statement in old_statements(visits):
                cursor.execute(statement)
            cursor.execute("COMMIT")
        cursor.execute("SET SESSION sql_log_bin = 1")

    def stop(self) -> None:
        self.server.stop()

    def connect(self) -> pymysql.Connection[Any]:
        """Returns a new connection as root, in the time zone UTC, for the traffic."""
        return self.server.connect(init_command="SET time_zone = '+00:00'")

    def end(self) -> tuple[int, int]:
        """Returns the end of the binlog: the number of the current binlog file, and the offset in the file. All committed changes are
        before it.
        """
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SHOW MASTER STATUS")
            row = cursor.fetchone()
        if row is None:
            raise RuntimeError("the demo's MySQL writes no binlog")
        return file_number(row[0]), int(row[1])

    def destination(self) -> dict[str, Any]:
        """Returns the content of conf/destinations/shop.yaml for this server."""
        source = {"host": LOOPBACK, "port": self.server.port, "user": USER, "password": f"${PASSWORD_VARIABLE}"}
        return {
            "source": source,
            "include": rf"{DATABASE}\..*",
            "runs": "drain",
            "tables": {f"{DATABASE}.{VISITS}": {"snapshot": "initial"}},
        }


def _password(folder: Path) -> str:
    """Returns the password of the demo's user. The first start creates it, in a file that only the current user can read."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "password"
    if not file.exists():
        file.touch(mode=0o600)
        file.write_text(secrets.token_urlsafe(24))
    return file.read_text()
