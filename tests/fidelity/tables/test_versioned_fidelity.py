"""MariaDB's system-versioned tables: what is staged of them are their rows of now, however the tables and the changes came about."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from console.toolchain.database.server import DatabaseServer
from tests.fidelity.pipeline import Pipeline, images, row_metadata, run

DATABASE = "versioned"
EXPLICIT = (
    "v varchar(9), s timestamp(6) GENERATED ALWAYS AS ROW START, e timestamp(6) GENERATED ALWAYS AS ROW END INVISIBLE, w blob, "
    "PERIOD FOR SYSTEM_TIME (s, e)"
)
TABLES = {
    "hidden": "CREATE TABLE {} (id int PRIMARY KEY, v varchar(9), w blob) WITH SYSTEM VERSIONING",
    "named": f"CREATE TABLE {{}} (id int PRIMARY KEY, {EXPLICIT}) WITH SYSTEM VERSIONING",
    "keyless": "CREATE TABLE {} (id int, v varchar(9), w blob) WITH SYSTEM VERSIONING",
    "of_columns": "CREATE TABLE {} (id int PRIMARY KEY, v varchar(9) WITH SYSTEM VERSIONING, w blob)",
    "plain": "CREATE TABLE {} (id int PRIMARY KEY, v varchar(9), w blob)",
}
CHANGES = (
    "INSERT INTO {} (id, v, w) VALUES (1, 'a', 'x'), (2, 'b', NULL), (3, 'c', 'z'), (4, 'd', 'q')",
    "UPDATE {} SET v = 'new' WHERE id IN (1, 3)",
    "UPDATE {} SET w = 'blob' WHERE id = 4",
    "DELETE FROM {} WHERE id = 2",
    "UPDATE {} SET id = 7 WHERE id = 3",
    "INSERT INTO {} (id, v) VALUES (2, 'again')",
    "DELETE HISTORY FROM {}",
    "BEGIN",
    "UPDATE {} SET v = 'x' WHERE id = 1",
    "UPDATE {} SET v = 'y' WHERE id = 1",
    "DELETE FROM {} WHERE id = 4",
    "COMMIT",
)
REPLACES = (
    "REPLACE INTO {} (id, v) VALUES (7, 'put')",
    "INSERT INTO {} (id, v) VALUES (7, 'd') ON DUPLICATE KEY UPDATE v = 'dup'",
)


def there(staged: Any, table: str) -> Counter[tuple[Any, ...]]:
    """The rows that the images leave, of nothing before."""
    rows: dict[Any, tuple[Any, ...]] = {}
    log: Counter[tuple[Any, ...]] = Counter()
    for image in images(staged, table).to_pylist():
        values = (image["id"], image["v"], image["w"])
        stays = image["_sluice_operation"] in {1, 3}
        log[values] += 1 if stays else -1
        rows.pop(image["id"], None)
        if stays:
            rows[image["id"]] = values
    return +log if table.startswith("keyless") else Counter(rows.values())


def selected(server: DatabaseServer, table: str) -> Counter[tuple[Any, ...]]:
    with server.connect(database=DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT id, v, w FROM {table}")
        return Counter(cursor.fetchall())


@pytest.mark.parametrize("metadata", ["MINIMAL", "FULL"])
@pytest.mark.parametrize("image", ["FULL", "NOBLOB"])
@pytest.mark.parametrize("name", ["mariadb1011", "mariadb114"])
def test_rows_that_the_server_keeps_as_history_are_left_out_fidelity(
    name: str, image: str, metadata: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server: DatabaseServer = request.getfixturevalue(name)
    run(server, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    run(server, *(text.format(f"{table}_before") for table, text in TABLES.items()), database=DATABASE)
    with row_metadata(server, metadata):
        pipeline = Pipeline.of(server, DATABASE, tmp_path)
        run(server, *(text.format(f"{table}_since") for table, text in TABLES.items()), database=DATABASE)
        tables = [f"{table}_{when}" for table in TABLES for when in ("before", "since")]
        changes = [f"SET SESSION binlog_row_image = {image}"]
        for table in tables:
            later = () if image != "FULL" else REPLACES  # an update that leaves out columns may be a REPLACE on MariaDB
            own = [each for each in (*CHANGES, *later) if "HISTORY" not in each or "plain" not in table]
            changes += [each.format(table) for each in own]
        changes += [
            "ALTER TABLE plain_since ADD SYSTEM VERSIONING",
            "UPDATE plain_since SET v = 'versed' WHERE id = 1",
            "DELETE FROM plain_since WHERE id = 2",
            "SET system_versioning_alter_history = KEEP",
            "ALTER TABLE hidden_since ADD COLUMN n int, ADD COLUMN m int FIRST",
            "INSERT INTO hidden_since (id, v, n, m) VALUES (9, 'nine', 9, 99)",
            "ALTER TABLE hidden_since MODIFY n int AFTER id",
            "UPDATE hidden_since SET n = 8 WHERE id = 9",
            "CREATE TABLE hidden_like LIKE hidden_since",
            "INSERT INTO hidden_like (id, v, n) VALUES (1, 'a', 3)",
            "DELETE FROM hidden_like",
            "ALTER TABLE hidden_before DROP SYSTEM VERSIONING",
            "UPDATE hidden_before SET v = 'bare' WHERE id = 1",
            "DELETE FROM hidden_before WHERE id = 2",
        ]
        run(server, *changes, database=DATABASE)
        staged = pipeline.staged()
    assert not staged.stopped, [f"{each.table} {each.state}: {each.reason}" for each in staged.stopped]
    for table in (*tables, "hidden_like"):
        if image == "NOBLOB" and not table.startswith("keyless"):
            continue  # the lake tells what they leave out; that they are staged is all that can be seen here
        assert there(staged, table) == selected(server, table), table
    names = images(staged, "hidden_since").column_names
    assert not {"row_start", "row_end"} & set(names)
    assert {"s", "e"} <= set(images(staged, "named_since").column_names)


def test_a_versioned_table_of_which_nothing_is_known_is_not_taken_for_a_plain_one_fidelity(
    mariadb114: DatabaseServer, tmp_path: Path
) -> None:
    """Full metadata names the columns, and not which of them are the times of rows: without a schema the table stops."""
    run(mariadb114, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    run(mariadb114, *(text.format(table) for table, text in TABLES.items()), database=DATABASE)
    with row_metadata(mariadb114, "FULL"):
        pipeline = Pipeline.of(mariadb114, "nowhere", tmp_path)
        pipeline = dataclasses.replace(pipeline, database=DATABASE)
        run(mariadb114, *(CHANGES[0].format(table) for table in TABLES), database=DATABASE)
        staged = pipeline.staged()
    stops = {each.table: each.state for each in staged.stopped}
    assert stops == dict.fromkeys(("hidden", "named", "keyless", "of_columns"), "SCHEMA_UNKNOWN")
