"""Tests the values that existing rows get in an added column, depending on the session that ran the statement, and the parsing of this
session from its event.
"""

from __future__ import annotations

import dataclasses
import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.cdc_engine.binlog.events.control import FileFormat, parse_query
from sluice.cdc_engine.contracts import StatementSession
from sluice.cdc_engine.table_meta.change.alteration import Altered, altered
from sluice.cdc_engine.table_meta.ddl.reader import read_statement
from sluice.cdc_engine.table_meta.ddl.statement import AlterTable
from sluice.cdc_engine.table_meta.schema import DdlServerFacts, DeclaredColumn, TableSchema
from tests.parser.scan.event_factory import TIME, EventFactory

T = TableSchema(database="shop", table="t", charset="utf8mb4", columns=(DeclaredColumn(name="id", type="int"),))
STARTED_US = 1_600_000_000_123_456  # 2020-09-13 12:26:40.123456 UTC
SESSION = StatementSession(started_us=STARTED_US, fraction=True, time_zone="+03:30", explicit_timestamps=True)


def added(definition: str, session: StatementSession = SESSION) -> Altered:
    statement = read_statement(f"ALTER TABLE t ADD c {definition}", "mysql")
    assert isinstance(statement, AlterTable), statement
    return altered(statement, T, "utf8mb4", session)


@pytest.mark.parametrize(
    ("definition", "value"),
    [
        ("timestamp DEFAULT CURRENT_TIMESTAMP", "2020-09-13 12:26:40"),
        ("timestamp(3) DEFAULT now(3)", "2020-09-13 12:26:40.123"),
        ("datetime DEFAULT CURRENT_TIMESTAMP()", "2020-09-13 15:56:40"),
        ("datetime(6) DEFAULT LOCALTIME(6)", "2020-09-13 15:56:40.123456"),
        ("timestamp NULL DEFAULT '2020-01-01 00:00:00'", "2019-12-31 20:30:00"),
        ("timestamp(2) NULL DEFAULT '2020-01-01 00:00:00'", "2019-12-31 20:30:00.00"),
        ("bit(4) DEFAULT 0b101", "5"),
        ("bit(4) DEFAULT B'11'", "3"),
        ("time(1) NOT NULL", "00:00:00.0"),
    ],
)
def test_ddl_an_added_column_has_the_value_of_its_session(definition: str, value: str) -> None:
    done = added(definition)
    assert (done.unknown, done.fills) == ("", (("c", value),))


@pytest.mark.parametrize(
    ("definition", "session", "words"),
    [
        ("timestamp", StatementSession(), "server's settings"),
        ("timestamp", StatementSession(explicit_timestamps=False), "server's settings"),
        ("timestamp DEFAULT NOW()", StatementSession(), "the binlog does not contain"),
        ("timestamp(1) DEFAULT NOW(1)", StatementSession(started_us=STARTED_US), "the binlog does not contain"),
        ("datetime DEFAULT NOW()", StatementSession(started_us=STARTED_US), "is unknown (the statement names no zone)"),
        ("datetime DEFAULT NOW()", StatementSession(started_us=STARTED_US, time_zone="Nowhere/Else"), "Nowhere/Else"),
        ("datetime DEFAULT NOW()", StatementSession(started_us=STARTED_US, time_zone="SYSTEM, CET"), "SYSTEM, CET"),
        ("timestamp DEFAULT '2020-02-31 00:00:00'", SESSION, "does not exist"),
        ("datetime DEFAULT '2020-03-29 02:30:00.5'", SESSION, "more digits of a fraction of a second than the column"),
        ("time(1) DEFAULT '10:11:12.55'", SESSION, "more digits of a fraction of a second than the column"),
        ("date DEFAULT '20200101'", SESSION, "not a date of the form"),
        ("time DEFAULT '10:11'", SESSION, "not a time of the form"),
        ("time DEFAULT '839:00:00'", SESSION, "more than a TIME can store"),
        ("int DEFAULT 1.5", SESSION, "of the column to int"),
        ("enum('2','1') DEFAULT 1", SESSION, "of the column to enum"),
        ("bit(30) DEFAULT NOW()", SESSION, "of the column to bit"),
        ("binary(3) DEFAULT 'ä'", SESSION, "of the column to binary"),
        ("varchar(9) DEFAULT (uuid())", SESSION, "an expression or a function"),
        ("int DEFAULT (1 + 1)", SESSION, "an expression or a function"),
        ("datetime DEFAULT (now() + interval 1 day)", SESSION, "an expression or a function"),
        ("datetime DEFAULT (utc_timestamp())", SESSION, "an expression or a function"),
        (f"int DEFAULT ({'(' * 5000}1 + 1{')' * 5000})", SESSION, "an expression or a function"),
        ("int AS (5)", SESSION, "the column is a generated column"),
        ("json DEFAULT ('[]')", SESSION, "of the column to json"),
        ("datetime DEFAULT '2020-01-02 03:04:05+05:00'", SESSION, "not a date of the form"),
    ],
)
def test_ddl_a_value_that_cannot_be_said_is_named(definition: str, session: StatementSession, words: str) -> None:
    done = added(definition, session)
    assert done.fills == ()
    assert words in done.unknown


def test_ddl_a_bare_timestamp_is_null_where_the_session_says_so() -> None:
    assert added("timestamp") == added("timestamp NULL")
    assert added("timestamp").unknown == ""


def test_ddl_a_session_has_the_servers_values_that_its_event_lacks() -> None:
    server = DdlServerFacts(flavour="mysql", charset="", explicit_timestamps=True, system_time_zone="UTC")
    known = server.known(StatementSession(time_zone="SYSTEM", started_us=1))
    assert known == StatementSession(time_zone="UTC", started_us=1, explicit_timestamps=True, flavour="mysql")
    reported = StatementSession(time_zone="+01:00", explicit_timestamps=False)
    assert server.known(reported) == dataclasses.replace(reported, flavour="mysql")
    short = dataclasses.replace(server, system_time_zone="CST")
    assert short.known(StatementSession(time_zone="SYSTEM")).time_zone == "SYSTEM, CST", (
        "Chicago's, Shanghai's or Havana's"
    )


@pytest.mark.parametrize(
    ("definition", "value"),
    [
        ("datetime DEFAULT NOW()", "2020-09-13 14:26:40"),
        ("timestamp DEFAULT NOW()", "2020-09-13 12:26:40"),
        ("timestamp NULL DEFAULT '2020-01-01 00:00:00'", "2019-12-31 23:00:00"),
        ("timestamp NULL DEFAULT '2020-07-01 00:00:00'", "2020-06-30 22:00:00"),
        ("timestamp NULL DEFAULT '2020-10-25 02:30:00'", None),
        ("timestamp NULL DEFAULT '2020-03-29 02:30:00'", None),
    ],
)
def test_ddl_a_named_zone_has_the_rules_of_the_zone_database(definition: str, value: str | None) -> None:
    done = added(definition, dataclasses.replace(SESSION, time_zone="europe/PARIS"))
    assert done.fills == (() if value is None else (("c", value),))
    assert value is not None or "twice or never" in done.unknown


@given(st.integers(1, 4_000_000_000), st.integers(0, 999_999), st.integers(0, 6), st.integers(-13 * 60, 14 * 60))
def test_ddl_now_is_printed_in_the_zone_and_with_the_digits_of_its_column(
    seconds: int, microseconds: int, digits: int, minutes: int
) -> None:
    zone = f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"
    session = StatementSession(started_us=seconds * 1_000_000 + microseconds, fraction=True, time_zone=zone)
    ((_, value),) = added(f"datetime({digits}) DEFAULT CURRENT_TIMESTAMP({digits})", session).fills
    there = dt.datetime.fromtimestamp(seconds, dt.timezone(dt.timedelta(minutes=minutes)))
    fraction = f".{microseconds:06d}"[: digits + 1] if digits else ""
    assert value == f"{there:%Y-%m-%d %H:%M:%S}{fraction}"


# ── what an event tells ──

STATUS = (
    b"\x00\x00\x00\x00\x00" + b"\x01\x20\x00\x40\x01\x00\x00\x00\x00" + b"\x06\x03std" + b"\x03\x01\x00\x01\x00"
    b"\x04\x2d\x00\x2d\x00\xff\x00" + b"\x05\x06+03:30" + b"\x07\x00\x00" + b"\x08\xff\x00" + b"\x0b\x01u\x01h"
    b"\x0c\x02a\x00bc\x00" + b"\x0d\x40\xe2\x01" + b"\x10\x01" + b"\x11" + bytes(8) + b"\x80\x01\x00\x00"
)


def session_of(status: bytes) -> StatementSession:
    return parse_query(EventFactory(checksum=False).query("ALTER TABLE t ADD c int", status=status), 0).session


def test_ddl_an_event_has_the_variables_of_its_session() -> None:
    assert session_of(STATUS) == StatementSession(
        sql_mode=0x01400020,
        started_us=TIME * 1_000_000 + 123_456,
        fraction=True,
        time_zone="+03:30",
        explicit_timestamps=True,
        client="utf8mb4",
        connection="utf8mb4",
        server="utf8mb4",
    )
    assert session_of(b"\x80\x07\x00\x00").started_us == TIME * 1_000_000 + 7, "MariaDB's microseconds"
    assert session_of(b"\x0c\xfe\x05\x03UTC").time_zone == "UTC", "of too many databases no name is there"


@pytest.mark.parametrize(
    ("version", "logs"),
    [
        ("10.11.5-MariaDB-log", True),
        ("5.5.5-10.5.17-MariaDB", True),
        ("10.5.16-MariaDB", False),
        ("10.9.1-MariaDB", False),
        ("11.4.5-MariaDB", True),
        ("8.0.31", False),
        ("MariaDB", False),
    ],
)
def test_ddl_mariadb_says_in_its_flags_whether_a_bare_timestamp_is_null(version: str, logs: bool) -> None:
    assert FileFormat(version, checksum=True, created=0).logs_timestamps is logs
    for flags, said in ((1 << 24, True), (0, False)):
        event = EventFactory(checksum=False).query(
            "CREATE TABLE t (a timestamp)", status=b"\0" + flags.to_bytes(4, "little")
        )
        assert parse_query(event, 0, logs_timestamps=logs).session.explicit_timestamps == (said if logs else None)


@given(st.integers(0, len(STATUS)), st.binary(max_size=12))
def test_ddl_a_truncated_or_unknown_variable_ends_the_variables_of_an_event(size: int, garbage: bytes) -> None:
    reported = session_of(STATUS[:size])
    assert reported.time_zone in ("", "+03:30")
    assert reported.sql_mode in (0, 0x01400020)
    assert session_of(b"\x63" + STATUS) == StatementSession(started_us=TIME * 1_000_000)
    session_of(garbage)
