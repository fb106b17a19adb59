"""Tests character sets: ids and lengths as both servers list them, and every codec against the conversion of a real server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pymysql
import pytest

from sluice.cdc_engine.binlog.charsets.collations import CHARSETS, charset_of_collation, charset_of_id, charset_of_name
from sluice.console.toolchain.database.server import DatabaseServer

MYSQL_COLLATIONS = "SELECT id, collation_name, character_set_name FROM information_schema.collations"
MARIADB_COLLATIONS = (
    "SELECT id, full_collation_name, character_set_name FROM information_schema.collation_character_set_applicability"
)
ROWS_MAX = 400  # The number of values that one statement converts.


@pytest.mark.servers
@pytest.mark.parametrize(("server", "statement"), [("mysql80", MYSQL_COLLATIONS), ("mariadb114", MARIADB_COLLATIONS)])
def test_every_collation_of_a_server_leads_to_its_charset(
    server: str, statement: str, request: pytest.FixtureRequest
) -> None:
    source: DatabaseServer = request.getfixturevalue(server)
    with source.connect() as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        collations = cursor.fetchall()
        cursor.execute("SELECT character_set_name, maxlen FROM information_schema.character_sets")
        lengths = dict(cursor.fetchall())
    assert len(collations) > 250
    for number, collation, name in collations:
        by_id, by_name = charset_of_id(number), charset_of_collation(collation)
        assert by_id is not None
        assert by_id is by_name
        assert by_id is charset_of_name(name)
        assert by_id.bytes_max == lengths[name]


@pytest.mark.servers
@pytest.mark.parametrize("server", ["mysql57", "mysql80", "mariadb1011", "mariadb114"])
def test_every_charset_of_every_server_has_a_codec_fidelity(server: str, request: pytest.FixtureRequest) -> None:
    with request.getfixturevalue(server).connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW CHARACTER SET")
        names = [row[0] for row in cursor.fetchall()]
    assert len(names) >= 40
    known = {name: charset_of_name(name) for name in names}
    assert not [name for name, charset in known.items() if charset is None or (not charset.codec and name != "binary")]


def test_no_collation_is_in_two_charsets() -> None:
    ids = [number for number in range(1, 4000) if charset_of_id(number)]
    assert len(ids) > 1200
    assert charset_of_id(0) is None
    assert charset_of_name("UTF8") is CHARSETS["utf8mb3"]
    assert charset_of_collation("uca1400_ai_ci") is None


@pytest.mark.servers
@pytest.mark.parametrize("name", sorted(name for name, charset in CHARSETS.items() if charset.codec))
def test_a_codec_reads_what_the_server_reads(mysql80: DatabaseServer, name: str) -> None:
    """Tests all values of one byte and many values of several bytes. If the server has a character for a value, the codec must read the
    same character.
    """
    codec = CHARSETS[name].codec
    read = refused = 0
    with mysql80.connect() as connection:
        for raw, character in _server_reads(connection, name):
            try:
                ours = raw.decode(codec)
            except UnicodeDecodeError:
                refused += 1
                continue
            assert ours == character, raw.hex()
            assert ours.encode(codec).decode(codec) == ours
            read += 1
    assert read >= (127 if name == "swe7" else 128)
    assert not refused


def _server_reads(connection: pymysql.Connection[pymysql.cursors.Cursor], name: str) -> Iterator[tuple[bytes, str]]:
    wide = name in {"ucs2", "utf16", "utf16le", "utf32"}  # No character of these charsets has one byte.
    pairs = [bytes(pair) for pair in itertools.product(range(0 if wide else 0x80, 256), range(0x20, 256, 3))]
    if wide:
        values = [b"\0\0" + pair for pair in pairs] if name == "utf32" else pairs
    elif name in {"ujis", "eucjpms"}:
        values = [
            *pairs,
            *(b"\x8f" + pair for pair in pairs if min(pair) >= 0xA1),
            *(bytes([octet]) for octet in range(256)),
        ]
    else:
        values = [bytes([octet]) for octet in range(256)] + (pairs if CHARSETS[name].bytes_max > 1 else [])
    with connection.cursor() as cursor:
        for raw, text in _converted(cursor, name, values):
            if text is None:
                continue
            character = bytes.fromhex(text).decode()
            if not character or character.count("?") > raw.count(b"?") or "\ufffd" in character:
                continue  # The server has no character for these bytes.
            yield raw, character


def _converted(cursor: pymysql.cursors.Cursor, name: str, values: list[bytes]) -> Iterator[tuple[bytes, str | None]]:
    """Returns the server's conversion of the values. The server refuses a statement with an ill-formed literal, so the values go through a
    cast, which gives NULL for them.
    """
    for start in range(0, len(values), ROWS_MAX):
        chunk = values[start : start + ROWS_MAX]
        columns = ", ".join(f"HEX(CONVERT(CONVERT(x'{raw.hex()}' USING {name}) USING utf8mb4))" for raw in chunk)
        cursor.execute(f"SELECT {columns}")
        yield from zip(chunk, cursor.fetchall()[0], strict=True)
