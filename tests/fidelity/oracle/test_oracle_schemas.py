"""Tests that the staged images of generated schemas and changes give the rows that SELECT returns in the end, on every server."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import deltalake
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.cdc_engine.binlog.rows.decoder import OPERATION
from sluice.cdc_engine.contracts import Operation
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.spark_jobs.batch.run_batch import merge_batch
from sluice.spark_jobs.session import SparkSettings
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.targets.report import TableTarget
from tests.binlog.oracle.test_values_oracle import CASES, Case
from tests.fidelity.comparison import expected, printed
from tests.fidelity.pipeline import SERVERS, Pipeline, images, run

DATABASE = "oracle_schemas"
TABLES, COLUMNS_MAX, ROWS_MAX = 8, 25, 25
MERGED = 2  # The number of tables that are merged.
Row = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Table:
    """A generated table: rows by id, then changes of the rows in order. A change without values deletes."""

    cases: tuple[Case, ...]
    keyed: bool
    rows: tuple[Row, ...]
    changes: tuple[tuple[int, Row | None], ...]

    def create(self, name: str) -> str:
        columns = ", ".join(f"c{index} {case.declared}" for index, case in enumerate(self.cases))
        return f"CREATE TABLE {name} (id int {'PRIMARY KEY' if self.keyed else 'NOT NULL'}, {columns}) CHARACTER SET utf8mb4"


@st.composite
def generated_tables(draw: st.DrawFn) -> Table:
    cases = tuple(draw(st.lists(st.sampled_from(CASES), min_size=2, max_size=COLUMNS_MAX)))
    row = st.tuples(*(case.values | st.none() for case in cases))
    rows = tuple(draw(st.lists(row, min_size=1, max_size=ROWS_MAX)))
    changes = draw(st.lists(st.tuples(st.integers(0, len(rows) - 1), row | st.none()), max_size=ROWS_MAX))
    return Table(cases, draw(st.booleans()), rows, tuple(changes))


def tables() -> list[Table]:
    """Returns the tables, which are the same in every run."""
    found: list[Table] = []

    @settings(
        max_examples=TABLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(generated_tables())
    def collect(table: Table) -> None:
        found.append(table)

    collect()
    return found


def write(server: DatabaseServer, made: dict[str, Table]) -> None:
    with server.connect(database=DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = '', time_zone = '+00:00'")
        for name, table in made.items():
            marks = ", ".join(["%s"] * (len(table.cases) + 1))
            cursor.executemany(
                f"INSERT INTO {name} VALUES ({marks})", [(number, *row) for number, row in enumerate(table.rows)]
            )
            pairs = ", ".join(f"c{index} = %s" for index in range(len(table.cases)))
            for number, row in table.changes:
                if row is None:
                    cursor.execute(f"DELETE FROM {name} WHERE id = %s", (number,))
                else:
                    cursor.execute(f"UPDATE {name} SET {pairs} WHERE id = %s", (*row, number))


def selected(server: DatabaseServer, name: str, table: Table) -> dict[int, list[Any]]:
    with server.connect(conv={}, use_unicode=False, database=DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        columns = ", ".join(case.select.replace("v", f"c{index}") for index, case in enumerate(table.cases))
        cursor.execute(f"SELECT id, {columns} FROM {name}")
        return {
            int(row[0]): [expected(raw, case.declared) for raw, case in zip(row[1:], table.cases, strict=True)]
            for row in cursor.fetchall()
        }


def left_by_images(found: Any, table: Table) -> dict[int, list[Any]]:
    rows: dict[int, list[Any]] = {}
    for row in found.to_pylist():
        if row[OPERATION] in {Operation.INSERT, Operation.UPDATE_AFTER}:
            values = [printed(row[f"c{index}"], case.declared) for index, case in enumerate(table.cases)]
            rows[row["id"]] = values
        elif row[OPERATION] == Operation.DELETE:
            del rows[row["id"]]
    return rows


@pytest.mark.servers
@pytest.mark.parametrize("name", SERVERS)
def test_generated_tables_are_what_select_returns_oracle(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server: DatabaseServer = request.getfixturevalue(name)
    made = {f"t{index}": table for index, table in enumerate(tables())}
    assert sum(len(table.rows) + len(table.changes) for table in made.values()) > TABLES
    run(server, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    run(server, *(table.create(name) for name, table in made.items()), database=DATABASE)
    pipeline = Pipeline.of(server, DATABASE, tmp_path)
    write(server, made)
    staged = pipeline.staged()
    for table_name, table in made.items():
        ours, theirs = left_by_images(images(staged, table_name), table), selected(server, table_name, table)
        if name == "mysql57":  # MySQL 5.7 prints a whole double in a document without its `.0`.
            ours, theirs = _parsed(ours, table), _parsed(theirs, table)
        assert ours == theirs, [case.declared for case in table.cases]


@pytest.mark.servers
@pytest.mark.spark
@pytest.mark.parametrize("name", ["mysql80", "mariadb114"])
def test_merged_tables_are_what_select_returns_oracle(
    name: str, tmp_path: Path, spark_server: SparkConnectServer, request: pytest.FixtureRequest
) -> None:
    """Only tables with a key are merged. Other tables only get appended rows."""
    server: DatabaseServer = request.getfixturevalue(name)
    made = {f"t{index}": dataclasses.replace(table, keyed=True) for index, table in enumerate(tables()[-MERGED:])}
    run(server, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    run(server, *(table.create(name) for name, table in made.items()), database=DATABASE)
    pipeline = Pipeline.of(server, DATABASE, tmp_path)
    write(server, made)
    targets = {
        f"{DATABASE}.{table}": TableTarget(path=str(tmp_path / "lake" / table), deletion_vectors=False)
        for table in made
    }
    spark = SparkSettings(remote=spark_server.url, sessions_file=tmp_path / "lanes.json")
    staged = pipeline.staged()
    merge_batch(
        read_staged_batch(staged.path), {table.name: targets[table.name] for table in staged.manifest.tables}, spark
    )
    for table_name, table in made.items():
        merged = deltalake.DeltaTable(targets[f"{DATABASE}.{table_name}"].path).to_pyarrow_table().to_pylist()
        ours = {
            row["id"]: [printed(row[f"c{index}"], case.declared) for index, case in enumerate(table.cases)]
            for row in merged
        }
        assert ours == selected(server, table_name, table), [case.declared for case in table.cases]


def _parsed(rows: dict[int, list[Any]], table: Table) -> dict[int, list[Any]]:
    documents = [case.declared == "json" for case in table.cases]
    return {
        number: [
            json.loads(value) if is_json and value else value for value, is_json in zip(values, documents, strict=True)
        ]
        for number, values in rows.items()
    }
