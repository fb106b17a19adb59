"""Tests tables whose rows come as files, on a real MySQL 8.0: no event shows the rows of IMPORT TABLESPACE and IMPORT TABLE."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sluice.console.toolchain.database.server import DatabaseServer
from tests.fidelity.pipeline import Pipeline, run
from tests.fix_servers import ServerFactory

pytestmark = pytest.mark.servers

DATABASE = "imported"


def begun(server: DatabaseServer, folder: Path, *tables: str) -> Pipeline:
    run(server, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    run(server, *tables, database=DATABASE)
    return Pipeline.of(server, DATABASE, folder)


def stops(pipeline: Pipeline) -> dict[str, str]:
    return {each.table: each.state for each in pipeline.staged().stopped}


def test_ddl_a_tablespace_that_is_imported_stops_its_table(mysql80: DatabaseServer, tmp_path: Path) -> None:
    columns = "(id int PRIMARY KEY, v varchar(9))"
    pipeline = begun(mysql80, tmp_path, *(f"CREATE TABLE {name} {columns}" for name in ("t", "other")))
    folder = mysql80.data_folder / DATABASE
    run(mysql80, "INSERT INTO t VALUES (1, 'a'), (2, 'b')", "INSERT INTO other VALUES (1, 'o')", database=DATABASE)
    with mysql80.connect(database=DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute("FLUSH TABLES t FOR EXPORT")
        for name in ("t.ibd", "t.cfg"):
            shutil.copy(folder / name, tmp_path / name)
    assert not stops(pipeline)
    run(mysql80, "DELETE FROM t", "ALTER TABLE t DISCARD TABLESPACE", database=DATABASE)
    for name in ("t.ibd", "t.cfg"):
        shutil.copy(tmp_path / name, folder / name)
    run(mysql80, "ALTER TABLE t IMPORT TABLESPACE", "UPDATE other SET v = 'p'", database=DATABASE)
    assert stops(pipeline) == {"t": "DDL_UNSUPPORTED"}


def test_ddl_a_table_that_is_imported_stops_at_its_first_row_event(
    fresh_mysql80: ServerFactory, tmp_path: Path
) -> None:
    server = fresh_mysql80({"secure_file_priv": ""})
    pipeline = begun(server, tmp_path, "CREATE TABLE other (id int PRIMARY KEY)")
    folder, kept = server.data_folder / DATABASE, tmp_path / "kept"
    kept.mkdir()
    made = ("CREATE TABLE m (id int PRIMARY KEY, v int) ENGINE=MyISAM", "INSERT INTO m VALUES (1, 1)", "FLUSH TABLES")
    run(server, "SET sql_log_bin = 0", *made, database=DATABASE)
    for each in folder.glob("m*"):
        shutil.copy(each, kept / each.name)
    run(server, "SET sql_log_bin = 0", "DROP TABLE m", database=DATABASE)
    for each in kept.iterdir():
        shutil.copy(each, folder / each.name)
    (described,) = folder.glob("m*.sdi")
    run(server, f"IMPORT TABLE FROM '{described}'", "INSERT INTO other VALUES (1)", database=DATABASE)
    assert not stops(pipeline)
    run(server, "INSERT INTO m VALUES (3, 3)", database=DATABASE)
    assert stops(pipeline) == {"m": "SCHEMA_UNKNOWN"}
