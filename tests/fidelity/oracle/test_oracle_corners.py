"""Compares corner cases that need their own table or session with SELECT on every server."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from sluice.cdc_engine.binlog.charsets.collations import BINARY, Charset, charset_of_name
from sluice.cdc_engine.binlog.rows.refused_values import ValuePolicy
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fidelity.pipeline import SERVERS, Pipeline, images, row_metadata, run

pytestmark = pytest.mark.servers

DATABASE = "oracle_corners"
MANY_COLUMNS = 600
MANY_SCRIPTS = "Aé~ßŽЖΩ中文あア한한글€，\u00a0😀"  # noqa: RUF001 - every script
DATES = (
    "'0000-00-00'",
    "'2020-00-00'",
    "'2020-05-00'",
    "'2023-02-30'",
    "'0000-05-01'",
    "'0001-01-01'",
    "'9999-12-31'",
    "NULL",
)
DATE_TYPES = ("date", *(f"{kind}({digits})" for kind in ("datetime", "timestamp") for digits in (0, 1, 3, 6)))


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> DatabaseServer:
    chosen: DatabaseServer = request.getfixturevalue(request.param)
    run(chosen, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    return chosen


def captured(server: DatabaseServer, folder: Path, create: str, *writes: str, **policy: Any) -> Any:
    """Returns the staged images of table `t` after the writes, which use a relaxed sql_mode."""
    run(server, create, database=DATABASE)
    pipeline = Pipeline.of(server, DATABASE, folder)
    run(server, "SET sql_mode = 'ALLOW_INVALID_DATES'", *writes, database=DATABASE)
    policies = {f"{DATABASE}.t": ValuePolicy(**policy)}
    return images(pipeline.staged(policies=policies), "t")


def shown(server: DatabaseServer, query: str) -> list[tuple[str | None, ...]]:
    with server.connect(conv={}, database=DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(query)
        return list(cursor.fetchall())


def test_zero_dates_as_text_are_what_select_prints_oracle(server: DatabaseServer, tmp_path: Path) -> None:
    columns = ", ".join(f"c{index} {kind} NULL" for index, kind in enumerate(DATE_TYPES))
    rows = []
    for row, date in enumerate(DATES):
        moment = date if date == "NULL" else f"{date[:-1]} 23:59:58.987654'"
        instant = "0" if row % 2 else "'2024-02-29 12:34:56.123456'"
        values = [
            date if kind == "date" else instant if kind.startswith("timestamp") else moment for kind in DATE_TYPES
        ]
        rows.append(f"({row}, {', '.join(values)})")
    create = f"CREATE TABLE t (id int PRIMARY KEY, {columns})"
    found = captured(server, tmp_path, create, f"INSERT INTO t VALUES {', '.join(rows)}", zero_dates="text")
    names = [f"c{index}" for index in range(len(DATE_TYPES))]
    ours = [tuple(row[name] for name in names) for row in found.to_pylist()]
    assert ours == shown(server, f"SELECT {', '.join(names)} FROM t ORDER BY id")
    assert any(text == "2020-05-00" for row in ours for text in row)


def test_a_timestamp_is_one_instant_whatever_the_zone_oracle(server: DatabaseServer, tmp_path: Path) -> None:
    """The values are written in sessions with three time zones, while the server itself has a fourth one."""
    run(server, "SET GLOBAL time_zone = '-03:30'")
    try:
        found = captured(
            server,
            tmp_path,
            "CREATE TABLE t (id int PRIMARY KEY, at timestamp(3) NULL, local datetime)",
            *(
                statement
                for row, zone in enumerate(("+00:00", "+05:30", "-08:00"))
                for statement in (
                    f"SET time_zone = '{zone}'",
                    f"INSERT INTO t VALUES ({row}, '2024-06-01 12:00:00.5', '2024-06-01 12:00:00')",
                )
            ),
        )
    finally:
        run(server, "SET GLOBAL time_zone = 'SYSTEM'")
    noon = dt.datetime(2024, 6, 1, 12, 0, 0, 500_000, tzinfo=dt.UTC)
    expected = [noon, noon - dt.timedelta(hours=5, minutes=30), noon + dt.timedelta(hours=8)]
    assert found["at"].to_pylist() == expected
    assert {str(local) for local in found["local"].to_pylist()} == {"2024-06-01 12:00:00"}


def test_a_table_of_hundreds_of_columns_oracle(server: DatabaseServer, tmp_path: Path) -> None:
    kinds = ("int", "varchar(3)", "tinyint unsigned", "bit(3)", "date")
    columns = ", ".join(f"c{index} {kinds[index % len(kinds)]}" for index in range(MANY_COLUMNS))
    values = ("7", "'äb'", "255", "b'101'", "'2024-02-29'")
    row = ", ".join(values[index % len(values)] if index % 7 else "NULL" for index in range(MANY_COLUMNS))
    create = f"CREATE TABLE t (id int PRIMARY KEY, {columns}) CHARACTER SET utf8mb4"
    found = captured(server, tmp_path, create, f"INSERT INTO t VALUES (1, {row})")
    selected = shown(
        server,
        "SELECT " + ", ".join(f"c{index}{' + 0' * (index % 5 == 3)}" for index in range(MANY_COLUMNS)) + " FROM t",
    )
    (ours,) = found.to_pylist()
    ours_shown = [ours[f"c{index}"] for index in range(MANY_COLUMNS)]
    assert [None if value is None else str(value) for value in ours_shown] == list(selected[0])


def alphabet(charset: Charset) -> str:
    """Returns characters of a charset: all characters of a single-byte charset, or some of each script of a multibyte charset."""
    if charset.bytes_max > 1:
        return "".join(character for character in MANY_SCRIPTS if _encodes(character, charset.codec))
    octets = [bytes([octet]) for octet in range(0x20, 0x100)]
    return "".join(octet.decode(charset.codec) for octet in octets if _decodes(octet, charset.codec))


def _encodes(character: str, codec: str) -> bool:
    try:
        return bool(character.encode(codec))
    except UnicodeEncodeError:
        return False


def _decodes(octet: bytes, codec: str) -> bool:
    try:
        return octet.decode(codec).isprintable()
    except UnicodeDecodeError:
        return False


@pytest.mark.parametrize("metadata", ["MINIMAL", "FULL"])
def test_text_and_labels_of_every_charset_oracle(server: DatabaseServer, tmp_path: Path, metadata: str) -> None:
    """The table has a text column and an enum column for each character set of the server. Each column must be decoded by its own character
    set.
    """
    names = [str(row[0]) for row in shown(server, "SHOW CHARACTER SET") if row[0] != "binary"]
    texts = [alphabet(charset_of_name(name) or BINARY) for name in names]
    # Each label has its number, because MySQL 5.7 mixes up enums of one table that have the same labels in different charsets.
    labels = [f"{index}{''.join(each for each in text if each.isalnum())[-8:]}" for index, text in enumerate(texts)]
    columns = ", ".join(
        f"c{index} text CHARACTER SET {name}, e{index} enum('a', '{labels[index]}') CHARACTER SET {name}"
        for index, name in enumerate(names)
    )
    values = ", ".join(f"CONVERT(x'{text.encode().hex()}' USING utf8mb4), 2" for text in texts)
    with row_metadata(server, metadata):
        found = captured(
            server, tmp_path, f"CREATE TABLE t (id int PRIMARY KEY, {columns})", f"INSERT INTO t VALUES (1, {values})"
        )
    (ours,) = found.to_pylist()
    (theirs,) = shown(server, "SELECT * FROM t")
    assert [str(value) for name, value in ours.items() if not name.startswith("_sluice_")] == list(theirs)
    kept = [ours[f"e{index}"] == labels[index] for index in range(len(names))]
    assert kept.count(False) <= 1, "cp1256 of the servers lacks a letter that Python's has"
    assert all(len(ours[f"c{index}"]) >= len("Aé") for index in range(len(names)))


def test_generated_and_invisible_columns_have_their_indices_oracle(server: DatabaseServer, tmp_path: Path) -> None:
    create = (
        "CREATE TABLE t (id int PRIMARY KEY, a int, v int GENERATED ALWAYS AS (a * 2) VIRTUAL, s varchar(20) GENERATED ALWAYS AS "
        "(concat('s', a)) STORED, b varchar(9), KEY (v)) CHARACTER SET utf8mb4"
    )
    more = []
    if server.version.startswith("mysql-8"):
        create = create.replace(
            "b varchar(9)", "hidden int DEFAULT 5 INVISIBLE, b varchar(9), KEY ((a + 1)), KEY ((lower(b)), a)"
        )
        more = ["hidden"]
    elif server.version.startswith("mariadb"):
        create = create.replace("b varchar(9)", "hidden int INVISIBLE DEFAULT 5, b varchar(9)")
        more = ["hidden"]
    names = ["id", "a", "v", "s", "b", *more]
    found = captured(
        server,
        tmp_path,
        create,
        "INSERT INTO t (id, a, b) VALUES (1, 10, 'x'), (2, NULL, 'Y')",
        "UPDATE t SET a = -3 WHERE id = 1",
    )
    final = {
        row["id"]: tuple(None if row[name] is None else str(row[name]) for name in names) for row in found.to_pylist()
    }
    assert [final[1], final[2]] == shown(server, f"SELECT {', '.join(names)} FROM t ORDER BY id")
    assert final[1][2:4] == ("-6", "s-3")
