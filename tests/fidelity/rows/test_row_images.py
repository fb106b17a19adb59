"""Tests row images of every kind from real servers: after the merge, rows whose images leave columns out equal SELECT.

A history of statements runs with each `binlog_row_image`, and once with a different one for each statement. The staged images are replayed
in plain Python for every server, and Spark merges some of them.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pymysql.constants import FIELD_TYPE

from sluice.batch_manifest.values import ChangesSegment
from sluice.cdc_engine.staging import StagingResult
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.spark_jobs.batch.run_batch import merge_batch
from sluice.spark_jobs.session import SparkSettings
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.targets.report import TableTarget
from tests.fidelity.pipeline import SERVERS, Pipeline, run
from tests.staging.staged_rows import read_rows

DATABASE = "images"
COLUMNS = (
    "id int PRIMARY KEY, n int DEFAULT 7, s varchar(20) DEFAULT 'it''s', body text, price decimal(10,2) DEFAULT 1.5, "
    "kind enum('a','b') NOT NULL, at datetime DEFAULT '2020-01-02 03:04:05', factor double DEFAULT -2.5, "
    "changed timestamp DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, made int AS (n + 2) STORED, "
    "flags bit(8) DEFAULT b'101', since year DEFAULT 2020, until time DEFAULT '12:30:00', raw varbinary(5) DEFAULT 'abc'"
)
HISTORY = (
    "INSERT INTO {t} (id, n) VALUES (1, 1)",
    "INSERT INTO {t} (id) VALUES (2), (3)",
    "INSERT INTO {t} (id, body, s) VALUES (4, 'long text', NULL), (5, 'five', 'r')",
    "UPDATE {t} SET n = n + 10 WHERE id IN (1, 2)",
    "UPDATE {t} SET body = 'changed' WHERE id = 4",
    "UPDATE {t} SET s = NULL, price = 2 WHERE id = 3",
    "DELETE FROM {t} WHERE id = 3",
    "UPDATE {t} SET id = id + 100 WHERE id = 4",
    "UPDATE {t} SET id = id + 100, n = 3 WHERE id = 104",
    "UPDATE {t} SET id = 99 WHERE id = 1",
    "UPDATE {t} SET id = 1 WHERE id = 2",
    "UPDATE {t} SET id = 2 WHERE id = 99",
    "INSERT INTO {t} (id, body) VALUES (3, 'again')",
    "ALTER TABLE {t} ALTER COLUMN n SET DEFAULT 8",
    "INSERT INTO {t} (id) VALUES (6), (7)",
    "DELETE FROM {t} WHERE id = 7",
)
# On MySQL, these statements run too. MariaDB logs them like updates, although they are none.
MYSQL_HISTORY = (
    "REPLACE INTO {t} (id, n) VALUES (5, 50)",
    "INSERT INTO {t} (id, n) VALUES (6, 1), (8, 1) ON DUPLICATE KEY UPDATE s = 'twice'",
)
Row = dict[str, Any]


def kinds_of(server: str) -> tuple[str, ...]:
    return ("FULL", "MINIMAL", "NOBLOB", *(("FULL_NODUP",) if server == "mariadb114" else ()))


@dataclasses.dataclass
class Captured:
    """Contains what was staged, and the rows that SELECT returned for each table at the end."""

    staged: StagingResult
    selected: dict[str, list[tuple[Any, ...]]]


def capture(server: DatabaseServer, name: str, folder: Path) -> Captured:
    """Captures one table per kind of images. `mixed` uses another kind for each statement, and is created by DDL after the beginning."""
    kinds, history = kinds_of(name), HISTORY + (MYSQL_HISTORY if name.startswith("mysql") else ())
    virtual = ", extra int AS (n + 1) VIRTUAL" if name.startswith("mysql") else ""
    run(server, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    run(server, *(f"CREATE TABLE t_{kind.lower()} ({COLUMNS}{virtual})" for kind in kinds), database=DATABASE)
    pipeline = Pipeline.of(server, DATABASE, folder)
    operations = itertools.cycle(kinds)
    statements = [f"CREATE TABLE t_mixed ({COLUMNS}{virtual})"]
    for kind in kinds:
        statements += [f"SET binlog_row_image = {kind}", *(each.format(t=f"t_{kind.lower()}") for each in history)]
    for each in history:
        statements += [f"SET binlog_row_image = {next(operations)}", each.format(t="t_mixed")]
    run(server, *statements, database=DATABASE)
    selected = {}
    with server.connect(database=DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        bits: Any = lambda data: int.from_bytes(data, "big")  # noqa: E731  pymysql's stubs know decoders of text alone
        connection.decoders = {**connection.decoders, FIELD_TYPE.BIT: bits}
        for table in (*(f"t_{kind.lower()}" for kind in kinds), "t_mixed"):
            cursor.execute(f"SELECT * FROM {table} ORDER BY id")
            selected[table] = list(cursor.fetchall())
    return Captured(pipeline.staged(), selected)


def replayed(staged: StagingResult, table: str) -> list[tuple[Any, ...]]:
    """Returns the rows that result from the staged images of a table, by key."""
    rows: dict[Any, Row] = {}
    before: Row = {}
    for segment in changes(staged, table):
        names = [column.name for column in segment.columns]
        for image in read_rows(staged.path, segment).to_pylist():
            present = image.get("_sluice_present_0", (1 << len(names)) - 1)
            seen = {name: image[name] for bit, name in enumerate(names) if present >> bit & 1}
            match image["_sluice_operation"]:
                case 1:
                    assert len(seen) == len(names)
                    rows[image["id"]] = seen
                case 2:
                    before = rows.pop(image["id"])
                case 3 if image.get("_sluice_moved"):
                    rows[image["id"]] = {**before, **seen}
                case 3:
                    rows[image["id"]] = {**rows.get(image["id"], {}), **seen}
                case 4:
                    del rows[image["id"]]
    return [tuple(rows[key].values()) for key in sorted(rows)]


def changes(staged: StagingResult, table: str) -> list[ChangesSegment]:
    return [
        segment
        for each in staged.manifest.tables
        if each.table == table
        for segment in each.segments
        if isinstance(segment, ChangesSegment)
    ]


def comparable(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    """Returns rows in a form that can be compared. Instants lose their zone, which is UTC, because PyMySQL returns no zone. Times become
    text.
    """
    return [[_comparable(value) for value in row] for row in rows]


def _comparable(value: Any) -> Any:
    if isinstance(value, dt.timedelta):
        return str(value)
    return value.replace(tzinfo=None) if hasattr(value, "tzinfo") else value


class Captures(dict[str, Captured]):
    """Provides the capture of each server. A capture is made when it is first used."""

    def __init__(self, request: pytest.FixtureRequest, factory: pytest.TempPathFactory) -> None:
        super().__init__()
        self.request, self.factory = request, factory

    def __missing__(self, name: str) -> Captured:
        self[name] = capture(self.request.getfixturevalue(name), name, self.factory.mktemp(f"images-{name}"))
        return self[name]


@pytest.fixture(scope="module")
def captured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Captures:
    return Captures(request, tmp_path_factory)


@pytest.mark.servers
@pytest.mark.parametrize("server", SERVERS)
def test_staged_images_of_every_kind_give_the_rows_fidelity(server: str, captured: Captures) -> None:
    capture = captured[server]
    assert not capture.staged.stopped
    for table, rows in capture.selected.items():
        assert comparable(replayed(capture.staged, table)) == comparable(rows), table
        assert any(segment.partial for segment in changes(capture.staged, table)) == (
            table not in {"t_full", "t_full_nodup"}
        )


@pytest.mark.servers
@pytest.mark.spark
@pytest.mark.parametrize(("server", "table"), [("mysql80", "t_mixed"), ("mariadb114", "t_minimal")])
def test_images_merge_to_what_select_returns_fidelity(
    server: str, table: str, captured: Captures, spark_server: SparkConnectServer, tmp_path: Path
) -> None:
    """Each segment is a commit. To save time, Spark therefore merges only one table of a server."""
    capture = captured[server]
    alone = tmp_path / "alone"
    shutil.copytree(capture.staged.path, alone)
    manifest = json.loads((alone / "manifest.json").read_bytes())
    manifest["tables"] = [each for each in manifest["tables"] if each["table"] == table]
    (alone / "manifest.json").write_text(json.dumps(manifest))
    target = TableTarget(path=str(tmp_path / table))
    merge_batch(read_staged_batch(alone), {f"{DATABASE}.{table}": target}, SparkSettings(remote=spark_server.url))
    names = ", ".join(column.name for column in changes(capture.staged, table)[0].columns)
    log = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(target.path))
    found: Any = pa.table(log.execute(f"SELECT {names} FROM t ORDER BY id").read_all())
    assert comparable([tuple(row.values()) for row in found.to_pylist()]) == comparable(capture.selected[table])


STOPS = (
    ("CREATE TABLE u (a int NOT NULL, b int, UNIQUE (a))", "INSERT INTO u VALUES (1, 2); UPDATE u SET b = 3", "column b"),
    ("CREATE TABLE d (id int PRIMARY KEY, x float NOT NULL DEFAULT 1.2345678)", "INSERT INTO d (id) VALUES (1)", "column x"),
)  # fmt: skip
MARIADB_STOPS = (
    ("CREATE TABLE r (id int PRIMARY KEY, a int, b int)", "INSERT INTO r VALUES (1, 2, 3); REPLACE INTO r SET id = 1, a = 4", "REPLACE"),
    ("CREATE TABLE v (id int PRIMARY KEY, a int, w int AS (a + 1) VIRTUAL)", "INSERT INTO v (id, a) VALUES (1, 1)", "column w"),
)  # fmt: skip


@pytest.mark.servers
@pytest.mark.parametrize("server", SERVERS)
def test_values_that_minimal_images_lack_stop_only_their_table_fidelity(
    server: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source: DatabaseServer = request.getfixturevalue(server)
    stops = STOPS + (MARIADB_STOPS if server.startswith("mariadb") else ())
    keyless = "CREATE TABLE fine (a int DEFAULT 3, b text, c int)"
    run(source, "DROP DATABASE IF EXISTS untold", "CREATE DATABASE untold")
    run(source, keyless, *(create for create, _, _ in stops), database="untold")
    pipeline = Pipeline.of(source, "untold", tmp_path)
    statements = [part for _, changes, _ in stops for part in changes.split(";")]
    fine = ["INSERT INTO fine (c) VALUES (1)", "UPDATE fine SET b = 'set'", "UPDATE fine SET a = 4", "DELETE FROM fine"]
    run(source, "SET binlog_row_image = MINIMAL", *statements, *fine, database="untold")
    staged = pipeline.staged()
    reasons = {each.table: (each.state, each.reason) for each in staged.stopped}
    assert reasons.keys() == {create.split()[2] for create, _, _ in stops}
    for create, _, words in stops:
        state, reason = reasons[create.split()[2]]
        assert state == "IMAGE_NOT_FULL"
        assert words in reason
    (segment,) = changes(staged, "fine")
    assert not segment.partial
    logged = [
        (image["_sluice_operation"], image["a"], image["b"], image["c"])
        for image in read_rows(staged.path, segment).to_pylist()
    ]
    one, two, three = (3, None, 1), (3, "set", 1), (4, "set", 1)
    assert logged == [(1, *one), (2, *one), (3, *two), (2, *two), (3, *three), (4, *three)]
