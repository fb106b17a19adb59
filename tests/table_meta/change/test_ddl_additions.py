"""Tests the values that existing rows get in an added column, on real servers: they equal what SELECT prints, or the table stops."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

import pymysql
import pytest

from sluice.cdc_engine.contracts import TableChange, TableChangeKind
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.table_meta.ddl.declared_type import declared_type
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.schema import Stopped, TableSchema
from sluice.console.toolchain.database.server import DatabaseServer
from tests.table_meta.additions import additions
from tests.table_meta.replay import Scene, scene

pytestmark = pytest.mark.servers

TAKEN_MIN = {"mysql57": 200, "mysql80": 350, "mysql9": 350, "mariadb1011": 350, "mariadb114": 350}
SECONDS, FRACTION = 1600000000, ".123456"


@dataclasses.dataclass(frozen=True)
class Taken:
    """Describes a definition that the server accepted. `there` is what SELECT prints for the existing row. `inserted` is what SELECT prints
    for a row that was inserted without the column, and is empty if the server refuses such a row.
    """

    definition: str
    there: str | None
    inserted: tuple[str | None, ...]
    change: TableChange
    schema: TableSchema | None


def taken(played: Scene, folder: Path, definitions: tuple[str, ...], sql_mode: str = "") -> list[Taken]:
    values = {f"t{number}": _values(played, number, each, sql_mode) for number, each in enumerate(definitions)}
    history = TableHistory(folder / "schema.jsonl", played.captured)
    history.seed(played.before, Position(epoch=1, file=played.file, offset=played.start))
    changes = {change.table: change for change in played.replay(history).changes}
    end = played.now()
    found = []
    for table, shown in values.items():
        if shown is not None:
            state = history.state(played.database, table, end)
            schema = state.schema if isinstance(state, Stopped) else state
            assert schema is None or isinstance(schema, TableSchema)
            found.append(Taken(definitions[int(table[1:])], *shown, changes[table], schema))
    return found


def _values(
    played: Scene, number: int, definition: str, sql_mode: str
) -> tuple[str | None, tuple[str | None, ...]] | None:
    """Returns what SELECT prints of the two rows, with a TIMESTAMP in UTC and bytes in hexadecimal. Returns None if the server refuses the
    definition.
    """
    with played.connection.cursor() as cursor:
        cursor.execute("SET sql_mode = %s, time_zone = '+03:30'", (sql_mode,))
        cursor.execute(f"CREATE TABLE t{number} (id int primary key)")
        cursor.execute(f"INSERT INTO t{number} VALUES (1)")
        cursor.execute(f"SET timestamp = {SECONDS}{FRACTION}")
        try:
            cursor.execute(f"ALTER TABLE t{number} ADD COLUMN c {definition}")
        except pymysql.MySQLError:
            return None
        finally:
            cursor.execute("SET time_zone = '+00:00', timestamp = DEFAULT")
        with contextlib.suppress(pymysql.MySQLError):  # MariaDB checks JSON
            cursor.execute(f"INSERT IGNORE INTO t{number} (id) VALUES (2)")
        cursor.execute(f"SELECT {_exactly(definition)} FROM t{number} ORDER BY id")
        first, *others = (row[0] for row in cursor.fetchall())
        return first, tuple(others)


def _exactly(definition: str) -> str:
    base = definition.split("(", maxsplit=1)[0].split(" ", maxsplit=1)[0].lower()
    if base in {"bit", "year"} or "zerofill" in definition:
        return "CAST(c + 0 AS CHAR)"
    if base in {"float", "double"}:
        return "CAST(c + 0e0 AS CHAR)"
    if base.endswith(("binary", "blob")) or base in {"point", "geometry"}:
        return "LOWER(HEX(c))"
    return "CAST(c AS CHAR)" if base != "timestamp" else "DATE_FORMAT(c, '%Y-%m-%d %H:%i:%s.%f')"


def _same(reported: str | None, shown: str | None, mysql_type: str) -> bool:
    if reported is None or shown is None:
        return reported is shown
    base = declared_type(mysql_type).base
    if base == "timestamp":
        return reported.ljust(20, ".").ljust(26, "0") == shown
    return float(reported) == float(shown) if base in {"float", "double"} else reported == shown


@pytest.mark.parametrize("server", ["mysql57", "mysql80", "mysql9", "mariadb1011", "mariadb114"])
def test_ddl_rows_already_there_hold_what_the_fills_say_fidelity(
    server: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source: DatabaseServer = request.getfixturevalue(server)
    with scene(source, "meta_fills") as played, played.connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.explicit_defaults_for_timestamp")
        unknowable = additions().unknowable(server, explicit_timestamps=bool(int(cursor.fetchall()[0][0])))
        found = taken(played, tmp_path, additions().all)
    stopped = {each.definition: each.change.reason for each in found if each.change.kind is TableChangeKind.STOPPED}
    wrong: list[tuple[str | None, ...]] = []
    for each in found:
        if each.schema is None:
            continue
        column = each.schema.columns[-1]
        fill = dict(each.change.fills).get("c")
        if each.definition not in stopped and not _same(fill, each.there, column.type):
            wrong.append((each.definition, fill, each.there))
        pairs = zip(column.column().default, each.inserted, strict=False)
        wrong += [(each.definition, "inserted", *pair) for pair in pairs if not _same(*pair, column.type)]
    assert not wrong, "\n".join(map(str, wrong))
    took = {each.definition for each in found}
    assert {each: stopped.get(each) for each in took if (each in stopped) != (each in unknowable)} == {}
    assert len(found) >= TAKEN_MIN[server]


EMPTY = (
    "varchar(9) DEFAULT ''",
    "varchar(9) DEFAULT ('')",
    "varchar(9) DEFAULT _utf8mb4''",
    "varchar(9) DEFAULT _utf8mb4'x'",
    "varbinary(9) DEFAULT ''",
    "varbinary(9) DEFAULT x''",
    "char(3) DEFAULT ' '",
    "enum('','b') DEFAULT ''",
    "text DEFAULT ''",
    "varchar(9) NOT NULL DEFAULT 'x'",
    "varchar(9) NOT NULL",
    "varchar(9) DEFAULT (concat('a', ''))",
)


@pytest.mark.parametrize("server", ["mariadb1011", "mariadb114"])
def test_ddl_an_empty_string_is_null_where_the_session_says_so_fidelity(
    server: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with scene(request.getfixturevalue(server), "meta_empty") as played:
        found = taken(played, tmp_path, EMPTY, "EMPTY_STRING_IS_NULL")
    assert len(found) > 8
    for each in found:
        if each.change.kind is not TableChangeKind.STOPPED:
            assert each.schema is not None
            reported = (dict(each.change.fills).get("c"), *each.schema.columns[-1].column().default)
            shown = (each.there, *each.inserted)[: len(reported)]
            assert all(map(_same, reported, shown, [each.schema.columns[-1].type] * 2)), (
                each.definition,
                reported,
                shown,
            )
    assert [each.definition for each in found if each.change.kind is TableChangeKind.STOPPED] == [EMPTY[-1]]
