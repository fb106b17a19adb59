"""Compares generated values of every type: a real server writes them, Sluice decodes them from the binlog, and the result must equal what
SELECT returns.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import itertools
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.cdc_engine.binlog.rows.decoder import RowDecoder
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fix_binlog import Recording, execute

pytestmark = pytest.mark.servers

Strategy = st.SearchStrategy[Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """A declared type and values for it. `select` is the expression by which SELECT reads the column if printing would lose digits."""

    declared: str
    values: Strategy
    select: str = "v"

    def __hash__(self) -> int:
        return hash(self.declared)

    def __str__(self) -> str:
        return self.declared


def integers(bits: int, signed: bool) -> Strategy:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return st.integers(low, high) | st.sampled_from([low, high, 0])


def decimals(precision: int, scale: int) -> Strategy:
    return st.integers(-(10**precision) + 1, 10**precision - 1).map(
        lambda digits: decimal.Decimal(digits).scaleb(-scale, decimal.Context(prec=99))
    )


@st.composite
def clock_texts(draw: st.DrawFn, digits: int) -> str:
    hours, rest = draw(st.integers(0, 838)), draw(st.integers(0, 3599))
    fraction = f".{draw(st.integers(0, 10**digits - 1)):0{digits}}" if digits and hours < 838 else ""
    return f"{draw(st.sampled_from(['', '-']))}{hours}:{rest // 60:02}:{rest % 60:02}{fraction}"


@st.composite
def moments(draw: st.DrawFn, digits: int, first: int, last: int) -> str:
    at = dt.datetime(1970, 1, 1) + dt.timedelta(seconds=draw(st.integers(first, last)))  # noqa: DTZ001 - printed, never compared
    fraction = f".{draw(st.integers(0, 10**digits - 1)):0{digits}}" if digits else ""
    return f"{at.year:04}-{at:%m-%d %H:%M:%S}{fraction}"


def datetimes(digits: int) -> Strategy:
    return moments(digits, -30_610_224_000, 253_402_300_798) | st.sampled_from(
        ["0000-00-00 00:00:00", "2020-00-00 00:00:00", "2020-05-00 10:11:12", "0001-01-01 00:00:00"]
    )


def timestamps(digits: int) -> Strategy:
    return moments(digits, 1, (1 << 31) - 1) | st.just("0000-00-00 00:00:00")


def text(codec: str, length: int = 40) -> Strategy:
    return st.text(st.characters(codec=codec, exclude_categories=["Cs"]), max_size=length)


documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text("utf-8"),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(text("utf-8", 10), inner, max_size=5),
    max_leaves=20,
).map(json.dumps)

INTEGERS = (("tinyint", 8), ("smallint", 16), ("mediumint", 24), ("int", 32), ("bigint", 64))
DECIMALS = ((1, 0), (5, 5), (9, 0), (10, 2), (18, 9), (20, 19), (38, 0), (38, 20), (39, 1), (65, 30))
CASES = [
    *(Case(f"{name}{sign}", integers(bits, not sign)) for name, bits in INTEGERS for sign in ("", " unsigned")),
    *(Case(f"decimal({p},{s})", decimals(p, s)) for p, s in DECIMALS),
    Case("float", st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**120), max_value=2.0**120), "v * 1e0"),
    Case("double", st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300), "v * 1e0"),
    *(Case(f"bit({bits})", integers(bits, signed=False), "v + 0") for bits in (1, 2, 8, 9, 40, 63, 64)),
    Case("year", st.integers(1901, 2155) | st.just(0)),
    Case("date", st.dates(dt.date(1, 1, 1)).map(str) | st.sampled_from(["0000-00-00", "2020-00-00", "2020-05-00"])),
    *(Case(f"datetime({digits})", datetimes(digits)) for digits in range(7)),
    *(Case(f"timestamp({digits}) NULL", timestamps(digits)) for digits in range(7)),
    *(Case(f"time({digits})", clock_texts(digits)) for digits in range(7)),
    Case("char(10)", text("utf-8", 10)),
    Case("char(255)", text("utf-8", 255)),
    Case("varchar(60)", text("utf-8", 60)),
    Case("varchar(300)", text("utf-8", 300)),
    Case("char(40) character set ascii", text("ascii")),
    Case("varchar(40) character set latin1", text("latin-1") | text("cp1252")),
    Case("varchar(40) character set utf8mb3", text("utf-8")),
    Case("varchar(40) character set cp1251", text("cp1251")),
    Case("varchar(40) character set koi8r", text("koi8-r")),
    Case("varchar(40) character set gbk", text("gbk")),
    Case("varchar(40) character set utf16", text("utf-16")),
    *(Case(f"{size}text", text("utf-8", 100)) for size in ("tiny", "", "medium", "long")),
    Case("text character set latin1", text("cp1252", 300)),
    Case("binary(7)", st.binary(max_size=7)),
    Case("binary(255)", st.binary(max_size=255)),
    Case("varbinary(20)", st.binary(max_size=20)),
    Case("varbinary(400)", st.binary(max_size=400)),
    *(Case(f"{size}blob", st.binary(max_size=200)) for size in ("tiny", "", "medium", "long")),
    Case("enum('a','b''c','ü,x')", st.sampled_from(["a", "b'c", "ü,x", 0])),
    Case("enum(" + ",".join(f"'e{n}'" for n in range(300)) + ")", st.integers(1, 300)),
    Case("set('a','b','c','d','e','f','g','h','i')", st.integers(0, (1 << 9) - 1)),
    Case("set(" + ",".join(f"'s{n}'" for n in range(64)) + ")", st.integers(0, (1 << 64) - 1)),
    Case("json", documents),
]  # fmt: skip


def printed(value: Any, declared: str) -> Any:
    """Returns a decoded value as the text that the server prints: bytes for byte strings, None for NULL."""
    digits = int(declared.partition("(")[2][:1] or 0) if declared.startswith(("datetime", "timestamp")) else 0
    match value:
        case bool():
            return str(int(value))
        case dt.datetime():
            return f"{value.year:04}-{value:%m-%d %H:%M:%S}" + (
                f".{value.microsecond:06}"[: digits + 1] if digits else ""
            )
        case dt.date():
            return f"{value.year:04}-{value:%m-%d}"
        case int() | decimal.Decimal():
            return f"{value:f}" if isinstance(value, decimal.Decimal) else str(value)
        case _:
            return value


def expected(raw: bytes | None, declared: str) -> Any:
    """Converts the raw bytes that SELECT printed to the form of `printed`. Dates without a day (zero and partial dates) become NULL."""
    if raw is None or declared.startswith(("binary", "varbinary")) or "blob" in declared:
        return raw
    if declared.startswith(("float", "double")):
        return float(raw)
    shown = raw.decode()
    if declared.startswith(("date", "timestamp")) and (shown[5:7] == "00" or shown[8:10] == "00"):
        return None
    return str(int(shown)) if declared == "year" else shown


def examples(case: Case) -> list[Any]:
    """Returns some values of the case, including NULLs. They are the same in every run."""
    found: list[Any] = []

    @settings(max_examples=12, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(case.values | st.none(), max_size=40))
    def collect(values: list[Any]) -> None:
        found.extend(values)

    collect()
    return [None, *found]


def write_and_read(server: DatabaseServer) -> dict[Case, tuple[list[Any], list[Any]]]:
    """Inserts the examples of all types into one table, which has a column for each type. Returns a mapping of each case to its decoded
    values and its expected values.
    """
    columns = {f"c{index}": case for index, case in enumerate(CASES)}
    rows = itertools.zip_longest(*(examples(case) for case in CASES))
    definition = ", ".join(f"{name} {case.declared}" for name, case in columns.items())
    with server.connect(conv={}, use_unicode=False) as connection, server.connect() as writer:
        execute(
            connection,
            "SET sql_mode = '', time_zone = '+00:00'",
            "DROP DATABASE IF EXISTS oracle",
            "CREATE DATABASE oracle",
            "USE oracle",
        )
        execute(writer, "SET sql_mode = '', time_zone = '+00:00'", "USE oracle")
        execute(connection, f"CREATE TABLE t (id int PRIMARY KEY, {definition}) CHARACTER SET utf8mb4")
        recording = Recording.begin(server)
        with writer.cursor() as writing:
            marks = ", ".join(["%s"] * (len(CASES) + 1))
            writing.executemany(f"INSERT INTO t VALUES ({marks})", [(number, *row) for number, row in enumerate(rows)])
        block = recording.block()
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT "
                + ", ".join(case.select.replace("v", name) for name, case in columns.items())
                + " FROM t ORDER BY id"
            )
            shown = list(zip(*cursor.fetchall(), strict=True))
    chosen = np.flatnonzero([block.tables[index].name == "oracle.t" for index in block.event_table])
    table = pa.Table.from_batches(RowDecoder(block.tables[block.event_table[chosen[0]]]).chunks(block, chosen))
    return {
        case: (
            [printed(value, case.declared) for value in table.column(name).to_pylist()],
            [expected(raw, case.declared) for raw in shown[index]],
        )
        for index, (name, case) in enumerate(columns.items())
    }


Values = dict[Case, tuple[list[Any], list[Any]]]


@pytest.fixture(scope="module")
def values_of_mysql(mysql80: DatabaseServer) -> Values:
    return write_and_read(mysql80)


@pytest.fixture(scope="module")
def values_of_mariadb(mariadb114: DatabaseServer) -> Values:
    return write_and_read(mariadb114)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_of_mysql_80_are_what_select_returns_oracle(case: Case, values_of_mysql: Values) -> None:
    decoded, selected = values_of_mysql[case]
    assert len({*map(str, decoded)}) > 1
    assert decoded == selected


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_of_mariadb_114_are_what_select_returns_oracle(case: Case, values_of_mariadb: Values) -> None:
    decoded, selected = values_of_mariadb[case]
    assert len({*map(str, decoded)}) > 1
    assert decoded == selected
