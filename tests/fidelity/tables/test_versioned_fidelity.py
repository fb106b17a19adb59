"""Tests system-versioned tables of MariaDB: their current rows are staged, however tables and changes were made."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sluice.batch_manifest.values import ChangesSegment
from sluice.cdc_engine.binlog.rows.refused_values import ValuePolicy
from sluice.cdc_engine.staging import StagingResult
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fidelity.pipeline import Pipeline, images, row_metadata, run
from tests.staging.staged_rows import read_rows

pytestmark = pytest.mark.servers

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
NAMES = ("id", "v", "w")
REPLACES = (
    "REPLACE INTO {} (id, v) VALUES (7, 'put')",
    "INSERT INTO {} (id, v) VALUES (7, 'd') ON DUPLICATE KEY UPDATE v = 'dup'",
)


def there(staged: StagingResult, table: str) -> Counter[tuple[Any, ...]]:
    """Returns the rows that an empty table has after all images are applied to it."""
    rows: dict[Any, dict[str, Any]] = {}
    log: Counter[tuple[Any, ...]] = Counter()
    moving: dict[str, Any] = {}
    for image, reported in reported_by(staged, table):
        stays = image["_sluice_operation"] in {1, 3}
        log[tuple(reported.values())] += 1 if stays else -1
        before = rows.pop(image["id"], {})
        if stays:
            rows[image["id"]] = {**(moving if image.get("_sluice_moved") else before), **reported}
        moving = before
    return +log if table.startswith("keyless") else Counter(tuple(row[name] for name in NAMES) for row in rows.values())


def reported_by(staged: StagingResult, table: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Returns the images of a table, each with the columns that it has."""
    assert not staged.stopped, [f"{each.table} {each.state}: {each.reason}" for each in staged.stopped]
    segments = [segment for each in staged.manifest.tables if each.table == table for segment in each.segments]
    for segment in segments:
        if isinstance(segment, ChangesSegment):
            names = [column.name for column in segment.columns]
            for image in read_rows(staged.path, segment).to_pylist():
                present = image.get("_sluice_present_0", -1)
                yield image, {name: image[name] for name in NAMES if present >> names.index(name) & 1}


def selected(server: DatabaseServer, table: str) -> Counter[tuple[Any, ...]]:
    with server.connect(database=DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT id, v, w FROM {table}")
        return Counter(cursor.fetchall())


@pytest.mark.parametrize("metadata", ["MINIMAL", "FULL"])
@pytest.mark.parametrize("image", ["FULL", "NOBLOB", "MINIMAL"])
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
            # MariaDB may log a REPLACE as an update. With images other than FULL, this update leaves out columns that REPLACE set to their
            # defaults.
            later = () if image != "FULL" else REPLACES
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
        assert there(staged, table) == selected(server, table), table
    names = images(staged, "hidden_since").column_names
    assert not {"row_start", "row_end"} & set(names)
    assert {"s", "e"} <= set(images(staged, "named_since").column_names)


def test_a_versioned_table_of_which_nothing_is_known_is_not_taken_for_a_plain_one_fidelity(
    mariadb114: DatabaseServer, tmp_path: Path
) -> None:
    """Full metadata names the columns, but not which of them are the times of rows. So without a schema, the table stops."""
    run(mariadb114, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    run(mariadb114, *(text.format(table) for table, text in TABLES.items()), database=DATABASE)
    with row_metadata(mariadb114, "FULL"):
        pipeline = Pipeline.of(mariadb114, "nowhere", tmp_path)
        pipeline = dataclasses.replace(pipeline, database=DATABASE)
        run(mariadb114, *(CHANGES[0].format(table) for table in TABLES), database=DATABASE)
        staged = pipeline.staged()
    stops = {each.table: each.state for each in staged.stopped}
    assert stops == dict.fromkeys(("hidden", "named", "keyless", "of_columns"), "SCHEMA_UNKNOWN")


@pytest.mark.parametrize("image", ["FULL", "MINIMAL"])
def test_values_of_rows_that_are_history_are_neither_quarantined_nor_stop_a_table_fidelity(
    image: str, mariadb114: DatabaseServer, tmp_path: Path
) -> None:
    """The value that cannot be decoded existed before the stream. A statement corrects it, so the former value is now history."""
    run(mariadb114, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    columns = "id int PRIMARY KEY, v varchar(9) CHARACTER SET latin1, w int"
    wrong = "VALUES (1, x'FFFE', 1), (2, x'FFFE', 1)"
    tables = [f"CREATE TABLE {name} ({columns}) WITH SYSTEM VERSIONING" for name in ("mended", "bad")]
    run(mariadb114, *tables, f"INSERT INTO mended {wrong}", database=DATABASE)
    pipeline = Pipeline.of(mariadb114, DATABASE, tmp_path)
    changes = (f"SET binlog_row_image = {image}", "UPDATE mended SET v = 'ok'", "DELETE FROM mended WHERE id = 2")
    run(mariadb114, *changes, database=DATABASE)
    by_utf8 = {"charsets": {"v": "utf8mb4"}}
    stops = {f"{DATABASE}.{name}": ValuePolicy(**by_utf8) for name in ("mended", "bad")}  # type: ignore[arg-type]
    assert not pipeline.staged(policies=stops).stopped
    later = (
        f"SET binlog_row_image = {image}",
        f"INSERT INTO bad {wrong}",
        "UPDATE bad SET w = 2 WHERE id = 1",
        "DELETE FROM bad WHERE id = 2",
    )
    run(mariadb114, *later, "UPDATE bad SET v = 'ok' WHERE id = 1", database=DATABASE)
    kept = {name: ValuePolicy(**by_utf8, undecodable="quarantine") for name in stops}  # type: ignore[arg-type]
    staged = pipeline.staged(policies=kept)
    assert not staged.stopped
    assert staged.manifest.quarantine is not None
    rows = pq.read_table(staged.path / staged.manifest.quarantine.file).to_pylist()
    assert {row["table"] for row in rows} == {"bad"}
    of_images = {(json.loads(row["key"])["id"], row["operation"]) for row in rows}
    known = [(1, "insert"), (2, "insert"), (1, "update_after"), (2, "delete")]
    assert of_images == set(known), "an image of a row of now, each with the operation that it has in the lake"
    assert len(rows) == len(known)
    keyed = {image["id"]: image["v"] for image in images(staged, "bad").to_pylist() if image["_sluice_operation"] != 4}
    assert keyed == {1: "ok", 2: None}
