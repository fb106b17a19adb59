"""Provides real MySQL servers that imitate those of cloud providers, by the marks, tables, routines and missing privileges that the
providers document.

Everything that statements can create is in the server. Marks that no statement can set, such as the greeting or `basedir`, are inserted
into its answers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from sluice.cdc_engine.parser import server_facts
from sluice.cdc_engine.parser.connection import SourceConnection
from sluice.console.toolchain.database.server import DatabaseServer
from tests.parser.fix_shop import run
from tests.parser.proxy import Proxy

SECRET = "managed-secret-7"  # noqa: S105
RDS_MARKS = {"basedir": "/rdsdbbin/mysql-8.0.31.R1/", "datadir": "/rdsdbdata/db/"}
AURORA_MARKS = {**RDS_MARKS, "aurora_version": "3.05.2"}
HELD = (
    "DROP TABLE IF EXISTS mysql.rds_configuration",
    "DROP PROCEDURE IF EXISTS mysql.rds_show_configuration",
    "DROP PROCEDURE IF EXISTS mysql.rds_set_configuration",
)
RDS = (
    *HELD,
    "CREATE TABLE mysql.rds_configuration (name varchar(64) PRIMARY KEY, value varchar(64), description varchar(300))",
    "INSERT INTO mysql.rds_configuration VALUES ('binlog retention hours', NULL, 'the hours'), ('target delay', '0', '')",
    "CREATE PROCEDURE mysql.rds_show_configuration() SELECT name, value, description FROM mysql.rds_configuration",
    """CREATE PROCEDURE mysql.rds_set_configuration(IN given varchar(64), IN hours int)
    UPDATE mysql.rds_configuration SET value = hours WHERE name = given""",
)


def account(server: DatabaseServer, *grants: str) -> None:
    """Creates the account `managed` with these grants, which do not include SUPER. Also creates the database managed_shop with an empty
    table.
    """
    run(
        server,
        "CREATE DATABASE IF NOT EXISTS managed_shop",
        "CREATE TABLE IF NOT EXISTS managed_shop.orders (id int PRIMARY KEY)",
        "DROP USER IF EXISTS managed@'%'",
        f"CREATE USER managed@'%' IDENTIFIED BY '{SECRET}'",
        *(f"GRANT {each} TO managed@'%'" for each in grants),
    )


@contextlib.contextmanager
def amazon(server: DatabaseServer, patch: pytest.MonkeyPatch, marks: dict[str, str]) -> Iterator[None]:
    """Makes the server one of RDS or Aurora until the block ends."""
    variables = server_facts._variables

    def marked(connection: SourceConnection) -> dict[str, str]:
        return {**variables(connection), **marks}

    patch.setattr(server_facts, "_variables", marked)
    run(server, *RDS)
    try:
        yield
    finally:
        run(server, *HELD)


@contextlib.contextmanager
def greeting(server: DatabaseServer, suffix: str) -> Iterator[int]:
    """Yields a port on which the server adds a suffix to the version in its greeting, such as `-google`."""
    with Proxy(server.port) as proxy:
        proxy.tamper = lambda piece: _suffixed(piece, suffix.encode())
        yield proxy.port


def _suffixed(piece: bytes, suffix: bytes) -> bytes:
    """Adds the suffix to the server's first packet. Returns every other piece unchanged."""
    if piece[3:5] != b"\x00\x0a":  # packet number 0, protocol 10
        return piece
    end = piece.index(b"\x00", 5)
    length = int.from_bytes(piece[:3], "little") + len(suffix)
    return length.to_bytes(3, "little") + piece[3:end] + suffix + piece[end:]
