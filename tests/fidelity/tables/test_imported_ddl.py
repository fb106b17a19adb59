"""Tables whose rows come as files, on a real MySQL 8.0: IMPORT TABLESPACE."""

from __future__ import annotations

import shutil
from pathlib import Path

from console.toolchain.database.server import DatabaseServer
from tests.fidelity.pipeline import Pipeline, run

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
