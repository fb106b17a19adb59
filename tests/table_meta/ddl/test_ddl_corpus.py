"""Tests some 1 300 statements on real servers: after each, the schema that is read from the binlog equals the one in
information_schema.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pymysql
import pytest

from sluice.cdc_engine.binlog.charsets.statement_text import UNKNOWN
from sluice.cdc_engine.binlog.column_types.labels import HIDDEN_CHARACTER
from sluice.cdc_engine.binlog.events.control import parse_query
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import read_snapshot
from sluice.cdc_engine.table_meta.schema import ROWS_ELSEWHERE, DeclaredColumn, Stopped, TableSchema
from sluice.console.toolchain.database.server import DatabaseServer
from tests.table_meta.ddl_corpus import Group, groups
from tests.table_meta.replay import QUERY, Scene, events_since, file_format, scene

pytestmark = pytest.mark.servers

ACCEPTED_MIN = {"mysql80": 880, "mysql9": 860, "mariadb114": 1000, "mysql57": 780, "mariadb1011": 980}
Schemas = dict[tuple[str, str], TableSchema]


@dataclasses.dataclass
class Step:
    """A statement of the corpus that the server accepted, the end of its event, and the schemas that the server had then."""

    group: str
    statement: bytes
    position: Position
    schemas: Schemas


def schemas_on_server(watching: pymysql.Connection[Any]) -> Schemas:
    snapshot = read_snapshot(watching, lambda database, _: database.startswith("ddl_"))
    assert not snapshot.unreadable
    return {(table.database, table.table): table for table in snapshot.tables}


def played_group(played: Scene, group: Group, server: str) -> list[Step]:
    """Executes a group's statements on the server, and returns a step for each statement that the server accepts. Reads the schemas in
    another session, because a statement may change its own session.
    """
    steps: list[Step] = []
    with played.connection.cursor() as cursor, played.server.connect() as watching:
        cursor.execute(f"CREATE DATABASE {group.database} CHARACTER SET utf8mb4")
        played.connection.select_db(group.database)
        for statement in group.of(server):
            try:
                played.connection.query(statement)  # Bytes are sent unchanged.
            except pymysql.MySQLError:
                continue
            position = played.now(watching)
            silent = steps and steps[-1].position == position  # A statement that writes no event changes nothing.
            schemas = steps[-1].schemas if silent else schemas_on_server(watching)
            steps.append(Step(group.name, statement, position, schemas))
        cursor.execute(f"DROP DATABASE {group.database}")
    return steps


def fed(played: Scene, folder: Path) -> TableHistory:
    history = TableHistory(folder / "schema.jsonl", lambda database, _: database.startswith("ddl_"))
    history.seed(played.before, Position(epoch=1, file=played.file, offset=played.start))
    logs = file_format(played.server, played.file).logs_timestamps
    for event_type, end, event in events_since(played.server, played.file, played.start):
        if event_type == QUERY:
            query = parse_query(event, 0, logs_timestamps=logs)
            if not query.takes_effect:
                continue
            position = Position(epoch=1, file=played.file, offset=end)
            history.apply(query.text, query.database, position, query.session)
    return history


def schema_of(history: TableHistory, name: tuple[str, str], position: Position) -> TableSchema | None:
    state = history.state(*name, position)
    if isinstance(state, Stopped):
        return state.schema
    return state if isinstance(state, TableSchema) else None


def differences(history: TableHistory, steps: list[Step]) -> list[str]:
    """Returns each difference between history and server once, with the first statement that shows it."""
    found: dict[str, bytes] = {}
    everywhere, names, group = list(history.table_names()), [], ""
    for step in steps:
        begins, group = step.group != group, step.group
        if begins:  # Tables of other groups are gone, and stay gone.
            databases = {database for each in steps if each.group == group for database, _ in each.schemas}
            names = [name for name in everywhere if name[0] in databases or name[0].startswith(f"ddl_{group}")]
        got = {name: schema_of(history, name, step.position) for name in (everywhere if begins else names)}
        held, expected = {name: schema for name, schema in got.items() if schema is not None}, step.schemas
        for name in sorted(held.keys() | expected.keys()):
            if difference := _difference(held.get(name), expected.get(name)):
                found.setdefault(f"{name}: {difference}", step.statement)
    return [f"{statement!r}\n    {difference}" for difference, statement in found.items()]


def _difference(got: TableSchema | None, expected: TableSchema | None) -> str:
    if got is not None and expected is not None and got.comments != expected.comments:
        return f"got the comments {got.comments}, expected {expected.comments}"
    if got == expected:
        return ""
    if got is None or expected is None:
        return f"got {got is not None}, expected {expected is not None}"
    columns = [
        f"got {mine}, expected {theirs}"
        for mine, theirs in itertools.zip_longest(got.columns, expected.columns)
        if mine is None or theirs is None or not _same_column(mine, theirs)
    ]
    # No statement shows the server's default storage engine, or that the server replaces the engine in the statement. So engines are
    # compared only if one of the two is in ROWS_ELSEWHERE.
    if not ROWS_ELSEWHERE & {got.engine, expected.engine}:
        got, expected = (dataclasses.replace(schema, engine="") for schema in (got, expected))
    tables = [dataclasses.replace(schema, columns=()) for schema in (got, expected)]
    if columns or tables[0] == tables[1]:
        return columns[0] if columns else ""
    return f"got {tables[0]}, expected {tables[1]}"


def _same_column(mine: DeclaredColumn, theirs: DeclaredColumn) -> bool:
    """Returns whether two columns are equal. A default that one side does not know (because it is no plain literal) is not compared, nor is
    a default that a server shows with `?`.
    """
    mine, theirs = (
        dataclasses.replace(each, type=each.type.replace(HIDDEN_CHARACTER, UNKNOWN)) for each in (mine, theirs)
    )
    if not mine.default or not theirs.default:
        mine, theirs = dataclasses.replace(mine, default=()), dataclasses.replace(theirs, default=())
    return mine == theirs


@pytest.mark.parametrize("server", ["mysql80", "mysql9", "mariadb114", "mysql57", "mariadb1011"])
def test_every_statement_gives_the_schema_that_the_server_has(
    server: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source: DatabaseServer = request.getfixturevalue(server)
    with scene(source, "ddl_none") as played:
        steps = [step for group in groups() for step in played_group(played, group, server)]
        history = fed(played, tmp_path)
    wrong = differences(history, steps)
    assert not wrong, f"{len(wrong)} of {len(steps)}:\n" + "\n".join(wrong[:40])
    assert len(steps) >= ACCEPTED_MIN[server]
