"""Tests renames of tables from real servers to the lake: each lake table must have the rows that SELECT returns for its name."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.batch_manifest.values import ChangesSegment, TruncateSegment
from sluice.cdc_engine.table_meta.change.policy import PLANS, SchemaDecisions
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.spark_jobs.batch.context import BatchContext
from sluice.spark_jobs.batch.run_batch import merge_batch
from sluice.spark_jobs.session import SparkSettings
from sluice.spark_jobs.staged_batch import StagedBatch
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.targets.report import TableTarget
from tests.fidelity.pipeline import Pipeline, run
from tests.spark.staged import Records

DATABASE = "renaming"
# The policies that conf/ has by default.
DEFAULT = SchemaDecisions(policy=lambda *_: dict.fromkeys(PLANS, "apply") | {"drop": "keep", "drop_table": "ignore"})
TABLES = (
    "CREATE TABLE a (id int PRIMARY KEY, v varchar(20))",
    "CREATE TABLE b (code varchar(10) PRIMARY KEY, n int)",
    "CREATE TABLE l (word varchar(10))",
)
NAMES = ("x", "a", "y", "b", "l")
Rows = Counter[tuple[Any, ...]]


def begun(server: DatabaseServer, folder: Path, *more: str) -> Pipeline:
    run(server, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    run(server, *TABLES, *more, database=DATABASE)
    pipeline = Pipeline.of(server, DATABASE, folder)
    pipeline.review = DEFAULT
    return pipeline


class Play:
    """Generates random statements, and records which table has which name now."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311  a play, no secret
        self.names = {name: name for name in ("a", "b", "l")}  # name now → its name at the beginning
        self.columns = 0

    def statements(self, count: int) -> Iterator[str]:
        for _ in range(count):
            kind = self.chance.choices(("rows", "rename", "alter"), (6, 3, 1))[0]
            yield from {"rows": self._rows, "rename": self._rename, "alter": self._alter}[kind]()

    def _rows(self) -> Iterator[str]:
        name = self.chance.choice(list(self.names))
        number, other = self.chance.randrange(8), self.chance.randrange(100)
        if self.names[name] == "a":
            yield f"REPLACE INTO {name} (id, v) VALUES ({number}, 'v{other}')"
            yield f"DELETE FROM {name} WHERE id = {other % 8}"
        elif self.names[name] == "b":
            yield f"INSERT INTO {name} (code, n) VALUES ('k{number}', {other}) ON DUPLICATE KEY UPDATE n = n + 1"
            yield f"UPDATE IGNORE {name} SET code = 'k{other}' WHERE code = 'k{number}'"
        else:
            yield f"INSERT INTO {name} (word) VALUES ('w{number}'), ('w{number}')"
            yield f"DELETE FROM {name} WHERE word = 'w{other % 8}' LIMIT 1"

    def _alter(self) -> Iterator[str]:
        self.columns += 1
        yield f"ALTER TABLE {self.chance.choice(list(self.names))} ADD c{self.columns} int DEFAULT {self.columns}"

    def _rename(self) -> Iterator[str]:
        names = self.chance.sample(list(self.names), self.chance.choice((1, 2, 3)))
        free = next(name for name in NAMES if name not in self.names)
        if len(names) == 1 and self.chance.random() < 0.5:
            self.columns += 1
            also = self.chance.choice(("", f"ADD c{self.columns} int DEFAULT {self.columns}, "))
            yield f"ALTER TABLE {names[0]} {also}RENAME TO {free}"
            self.names[free] = self.names.pop(names[0])
            return
        # Rename several tables in a circle, or the first one to a free name and each other one to the previous table's name.
        last = self.chance.choice(("t", free)) if len(names) > 1 else free
        pairs = [(names[0], "t"), *((name, before) for before, name in itertools.pairwise(names))]
        pairs.append(("t", names[-1] if last == "t" else last))
        tables = [self.names.pop(name) for name in names]
        self.names |= dict(zip([pairs[-1][1], *names[:-1]], tables, strict=True))
        yield "RENAME TABLE " + ", ".join(f"{old} TO {new}" for old, new in pairs)


def selected(server: DatabaseServer, table: str) -> tuple[list[str], Rows]:
    """Names of the columns, and the rows."""
    with server.connect(database=DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table}")
        names = [each[0] for each in cursor.description]
        return names, Counter(plain(dict(zip(names, row, strict=True))) for row in cursor.fetchall())


def plain(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted((name, value) for name, value in row.items() if not name.startswith("_sluice")))


class Replayed:
    """Computes the rows of a lake from staged batches, as docs/architecture.md describes it. Tables with a key have one row per key. Other
    tables have each row with the number of its copies.
    """

    def __init__(self) -> None:
        self.tables: dict[str, dict[Any, tuple[dict[str, Any], int]]] = {}

    def take(self, batch: StagedBatch) -> None:
        before = {name: dict(rows) for name, rows in self.tables.items()}
        for table in batch.tables:
            for segment in table.segments:
                rows = self.tables.setdefault(table.table, {})
                if isinstance(segment, ChangesSegment):
                    self._change(rows, segment)
                elif isinstance(segment, TruncateSegment):
                    rows.clear()
                else:
                    if segment.renamed_from:
                        rows = self.tables[table.table] = dict(before.get(segment.renamed_from.split(".")[1], {}))
                    filled = {name: int(value) for name, value in segment.fills}
                    moved = [({**row, **filled}, count) for row, count in rows.values()]
                    rows.clear()
                    for row, count in moved:
                        rows[tuple(row[name] for name in segment.key) if segment.key else plain(row)] = (row, count)

    @staticmethod
    def _change(rows: dict[Any, tuple[dict[str, Any], int]], segment: ChangesSegment) -> None:
        for image in pq.read_table(segment.file).to_pylist():
            there = image["_sluice_operation"] in {1, 3}
            row = {column.name: image[column.name] for column in segment.columns}
            if segment.key:
                key = tuple(row[name] for name in segment.key)
                rows.pop(key, None)
                if there:
                    rows[key] = (row, 1)
            else:
                count = rows.get(plain(row), (row, 0))[1] + (1 if there else -1)
                rows[plain(row)] = (row, count)

    def rows(self, table: str) -> Rows:
        return +Counter({plain(row): count for row, count in self.tables.get(table, {}).values()})


@pytest.mark.servers
@pytest.mark.parametrize("server", ["mysql57", "mysql80", "mariadb1011", "mariadb114"])
def test_ddl_random_renames_are_in_the_staged_batches(
    server: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The test computes the lake in Python without Spark, so that it can execute many statements in a short time."""
    source: DatabaseServer = request.getfixturevalue(server)
    alone = 0
    for seed in range(8):
        play, lake = Play(seed), Replayed()
        pipeline = begun(source, tmp_path / str(seed))
        run(source, *play.statements(50), database=DATABASE)
        for staged in pipeline.batches():
            assert not staged.stopped, (seed, staged.stopped)
            batch = read_staged_batch(staged.path)
            lake.take(batch)
            alone += any(getattr(each, "renamed_from", "") for table in batch.tables for each in table.segments)
        for name in play.names:
            assert lake.rows(name) == selected(source, name)[1], (seed, name)
    assert alone > 40


def lake_rows(path: Path, columns: list[str], *, log: bool) -> Rows:
    """Returns the rows of a Delta table, with the columns that the source has now, because the lake also keeps dropped columns. If `log` is
    set, the table is a change log.
    """
    delta = deltalake.DeltaTable(str(path))
    found = deltalake.QueryBuilder().register("t", delta).execute("SELECT * FROM t").read_all()
    rows: Rows = Counter()
    for row in pa.table(found).to_pylist():
        gone = log and row["_sluice_operation"] not in {"insert", "update_postimage"}
        rows[plain({name: row[name] for name in columns})] += -1 if gone else 1
    return +rows


FIRST = (
    "INSERT INTO a VALUES (1, 'x'), (2, 'y')",
    "INSERT INTO b VALUES ('k', 1), ('l', 2)",
    "INSERT INTO l VALUES ('one'), ('one')",
    "INSERT INTO p VALUES (1), (2)",
    "INSERT INTO c VALUES (10, 1), (11, 2)",
    "RENAME TABLE a TO t, b TO a, t TO b",
    "UPDATE a SET n = n + 10 WHERE code = 'k'",
    "DELETE FROM b WHERE id = 1",
    "RENAME TABLE a TO t, l TO a, c TO l, t TO c",
    "INSERT INTO a VALUES ('two')",
    "DELETE FROM a WHERE word = 'one' LIMIT 1",
    "INSERT INTO c VALUES ('m', 3)",
    "DELETE FROM p WHERE id = 1",  # This deletes a row of the child, whose name is now l.
)
SECOND = (
    "ALTER TABLE b ADD more int NOT NULL DEFAULT 7, RENAME TO x",
    "INSERT INTO x VALUES (3, 'z', 8)",
    "CREATE TABLE b (other int PRIMARY KEY)",
    "INSERT INTO b VALUES (5)",
    "RENAME TABLE b TO a2, a TO b, a2 TO a",
    "INSERT INTO b VALUES ('three')",
)


@pytest.mark.servers
@pytest.mark.spark
@pytest.mark.parametrize(("server", "way"), [("mysql80", "spark"), ("mariadb114", "small")])
def test_ddl_identity_renamed_tables_are_in_the_lake(
    server: str,
    way: Literal["spark", "small"],
    request: pytest.FixtureRequest,
    spark_server: SparkConnectServer,
    tmp_path: Path,
) -> None:
    """The test merges each batch twice. Finally it reads the binlog again from the beginning, and merges everything into the existing
    tables. The lake must stay the same.
    """
    source: DatabaseServer = request.getfixturevalue(server)
    parent = "CREATE TABLE p (id int PRIMARY KEY)"
    child = "CREATE TABLE c (id int PRIMARY KEY, p_id int, FOREIGN KEY (p_id) REFERENCES p (id) ON DELETE CASCADE)"
    pipeline = begun(source, tmp_path, parent, child)
    first, records, settings = pipeline.begin, Records(), SparkSettings(remote=spark_server.url)

    def target(name: str) -> TableTarget:
        return TableTarget(path=str(tmp_path / "lake" / name.split(".")[1]), merge=way)

    def merge(times: int) -> None:
        for staged in pipeline.batches():
            assert not staged.stopped, staged.stopped
            targets = {table.name: target(table.name) for table in staged.manifest.tables}
            for _ in range(times):
                merge_batch(
                    read_staged_batch(staged.path), targets, settings, BatchContext(records=records, target_of=target)
                )
            pipeline.begin = type(first).from_json(dict(staged.manifest.end))

    def check(names: str, logs: str) -> None:
        for name in names:
            columns, rows = selected(source, name)
            assert lake_rows(tmp_path / "lake" / name, columns, log=name in logs) == rows, name

    run(source, *FIRST, database=DATABASE)
    merge(times=2)
    check("abclp", logs="a")
    run(source, *SECOND, database=DATABASE)
    merge(times=2)
    check("abclpx", logs="b")
    pipeline.begin = first
    merge(times=1)
    check("abclpx", logs="b")
