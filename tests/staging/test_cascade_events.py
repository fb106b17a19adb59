"""Tests what a batch reports about foreign keys that changed or deleted rows, from real servers through the engine to the staged files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from sluice.batch_manifest.values import ChangesSegment
from sluice.cdc_engine.staging import StagingResult
from sluice.cdc_engine.staging.reader import read_manifest
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fidelity.pipeline import Pipeline, run
from tests.staging.staged_rows import read_rows

pytestmark = pytest.mark.servers

DATABASE = "cascading"
TABLES = (
    "CREATE TABLE p (id int PRIMARY KEY, code varchar(10) NOT NULL, UNIQUE (code), note text)",
    "CREATE TABLE c (id int PRIMARY KEY, p_id int, FOREIGN KEY (p_id) REFERENCES p (id) ON DELETE CASCADE)",
    "CREATE TABLE d (id int PRIMARY KEY, code varchar(10), FOREIGN KEY (code) REFERENCES p (code) ON UPDATE CASCADE ON DELETE SET NULL)",
    "CREATE TABLE e (id int PRIMARY KEY, c_id int, FOREIGN KEY (c_id) REFERENCES c (id) ON DELETE CASCADE)",
    "CREATE TABLE f (id int PRIMARY KEY, p_id int, FOREIGN KEY (p_id) REFERENCES p (id))",
)


def begun(server: DatabaseServer, folder: Path) -> Pipeline:
    run(server, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    run(server, *TABLES, database=DATABASE)
    return Pipeline.of(server, DATABASE, folder)


def reported(staged: StagingResult) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    return {
        (events.parent[1], *events.referenced): pq.read_table(staged.path / events.file).to_pylist()
        for events in staged.manifest.cascades
    }


@pytest.mark.parametrize("server", ["mysql57", "mysql80", "mariadb1011", "mariadb114"])
def test_cascade_events_are_what_went_and_which_keys_changed(
    server: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source: DatabaseServer = request.getfixturevalue(server)
    pipeline = begun(source, tmp_path)
    run(
        source,
        "INSERT INTO p VALUES (1, 'a', ''), (2, 'b', ''), (3, 'c', ''), (4, 'd', '')",
        "INSERT INTO c VALUES (10, 1), (11, 2)",
        "UPDATE p SET note = 'changes no key'",
        "UPDATE p SET code = CONCAT(code, 'x') WHERE id > 2",
        "DELETE FROM p WHERE id IN (1, 3)",
        "SET foreign_key_checks = 0",
        "DELETE FROM p WHERE id = 2",
        database=DATABASE,
    )
    staged = pipeline.staged()
    assert not staged.stopped
    found = reported(staged)
    assert [row["id"] for row in found["p", "id"]] == [1, 3]
    assert [(row["_sluice_operation"], row["code"]) for row in found["p", "code"]] == [
        (2, "c"),
        (3, "cx"),
        (2, "d"),
        (3, "dx"),
        (4, "a"),
        (4, "cx"),
    ]
    assert {".".join(name) for events in staged.manifest.cascades for name in events.live} == {
        f"{DATABASE}.{table}" for table in "cde"
    }
    assert {"c", "d", "e"} <= {table.table for table in staged.manifest.tables}
    assert read_manifest(staged.path) == staged.manifest


def test_cascade_sequence_numbers_order_rows_of_all_tables_also_within_a_transaction(
    mysql80: DatabaseServer, tmp_path: Path
) -> None:
    pipeline = begun(mysql80, tmp_path)
    run(
        mysql80,
        "BEGIN",
        "INSERT INTO p VALUES (1, 'a', ''), (2, 'b', '')",
        "INSERT INTO c VALUES (10, 1)",
        "DELETE FROM p WHERE id = 1",
        "INSERT INTO c VALUES (11, 2), (12, 2)",
        "UPDATE c SET id = id + 100",
        "DELETE FROM p WHERE id = 2",
        "INSERT INTO c VALUES (13, NULL)",
        "COMMIT",
        database=DATABASE,
    )
    staged = pipeline.staged()
    (table,) = (each for each in staged.manifest.tables if each.table == "c")
    segments = [segment for segment in table.segments if isinstance(segment, ChangesSegment)]
    keys = [row for segment in segments for row in read_rows(staged.path, segment)["id"].to_pylist()]
    assert table.positions is not None
    numbers = np.fromfile(staged.path / table.positions, "<i8").tolist()
    deletes = reported(staged)["p", "id"]
    order = sorted(
        [*zip(numbers, keys, strict=True), *((row["_sluice_sequence_number"], -row["id"]) for row in deletes)]
    )
    assert [key for _, key in order] == [10, -1, 11, 12, 11, 111, 12, 112, -2, 13]


def test_a_cascade_reaches_through_a_table_that_is_not_captured_and_stops_what_is_below(
    mysql80: DatabaseServer, tmp_path: Path
) -> None:
    pipeline = begun(mysql80, tmp_path)
    run(
        mysql80, "INSERT INTO p VALUES (1, 'a', '')", "INSERT INTO c VALUES (10, 1)", "DELETE FROM p", database=DATABASE
    )
    staged = pipeline.staged(left_out={f"{DATABASE}.c": -1})
    assert {(each.table, each.state) for each in staged.stopped} == {("e", "CASCADE_UNSEEN")}


def test_cascade_policies_stop_a_table_at_the_first_event_or_leave_it(mysql80: DatabaseServer, tmp_path: Path) -> None:
    pipeline = begun(mysql80, tmp_path)
    run(mysql80, "INSERT INTO p VALUES (1, 'a', '')", "INSERT INTO c VALUES (10, 1), (11, 1)", database=DATABASE)
    assert not pipeline.staged(cascade_policy=lambda *_: "stop").stopped
    run(mysql80, "DELETE FROM p", database=DATABASE)
    words = {"c": "stop", "d": "ignore", "e": "apply"}
    staged = pipeline.staged(cascade_policy=lambda _, table: words.get(table, "apply"))
    assert {(each.table, each.state) for each in staged.stopped} == {("c", "CASCADE"), ("e", "CASCADE_UNSEEN")}
    assert not any(table.segments for table in staged.manifest.tables if table.table in {"c", "e"})


def test_a_resumed_table_stops_where_a_cascade_went_through_one_that_is_ahead(
    mysql80: DatabaseServer, tmp_path: Path
) -> None:
    pipeline = begun(mysql80, tmp_path)
    run(
        mysql80, "INSERT INTO p VALUES (1, 'a', '')", "INSERT INTO c VALUES (10, 1)", "DELETE FROM p", database=DATABASE
    )
    alone = pipeline.staged(has_up_to=lambda table: 1 if table.endswith(".e") else 2)
    assert {(each.table, each.state) for each in alone.stopped} == {("e", "CASCADE_UNSEEN")}
    together = pipeline.staged(has_up_to=lambda table: 1 if table.endswith((".e", ".c")) else 2)
    assert not together.stopped
