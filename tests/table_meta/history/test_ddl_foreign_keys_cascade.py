"""Tests foreign keys in the schema history: what an account with only SELECT sees of them, and what is reported if they are in doubt.

`test_ddl_corpus` tests with corpus/foreign_keys.sql that they are followed through DDL on every server.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from sluice.cdc_engine.position import Position
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot, read_snapshot
from sluice.cdc_engine.table_meta.schema import DdlServerFacts, ForeignKey, TableSchema
from sluice.console.toolchain.database.server import DatabaseServer

BEGIN = Position(epoch=1, file="binlog.000001", offset=100)
ACTIONS, PASSWORD = "ON DELETE SET NULL ON UPDATE CASCADE", "only for this test"
SERVER = DdlServerFacts(flavour="mysql", charset="utf8mb4")
MARIADB = DdlServerFacts(flavour="mariadb", charset="utf8mb4")


@pytest.mark.servers
@pytest.mark.parametrize("flavour", ["mysql57", "mysql80", "mariadb1011", "mariadb114"])
def test_an_account_that_may_only_read_sees_what_cascades(flavour: str, request: pytest.FixtureRequest) -> None:
    server: DatabaseServer = request.getfixturevalue(flavour)
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        for statement in (
            "DROP DATABASE IF EXISTS seen",
            "CREATE DATABASE seen",
            "CREATE TABLE seen.p (id int PRIMARY KEY)",
            f"CREATE TABLE seen.c (id int PRIMARY KEY, a int, CONSTRAINT k FOREIGN KEY (a) REFERENCES p (id) {ACTIONS})",
            "DROP USER IF EXISTS only_reads@'%'",
            f"CREATE USER only_reads@'%' IDENTIFIED BY '{PASSWORD}'",
            "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO only_reads@'%'",
        ):
            cursor.execute(statement)
    with server.connect(user="only_reads", password=PASSWORD) as connection:
        snapshot = read_snapshot(connection, lambda database, _: database == "seen")
    (key,) = (key for table in snapshot.tables for key in table.foreign_keys)
    expected = ForeignKey(
        name="k",
        columns=("a",),
        parent=("seen", "p"),
        referenced=("id",),
        on_delete="SET NULL",
        on_update="CASCADE",
    )
    assert key == expected


def history_after(folder: Path, *statements: str, facts: DdlServerFacts = SERVER) -> tuple[TableHistory, Position]:
    history = TableHistory(folder / "schema.jsonl", lambda *_: True)
    history.seed(SchemaSnapshot(facts, (("d", "utf8mb4"),), ()), BEGIN)
    position = BEGIN
    for number, statement in enumerate(statements):
        position = Position(epoch=1, file=BEGIN.file, offset=1000 + 1000 * number)
        history.apply(statement, "d", position)
    return history, position


@pytest.mark.found
def test_a_parent_is_known_by_the_lower_case_of_the_server_cascade(tmp_path: Path) -> None:
    """Defect 84: the parent's name was lowered by present Unicode rules, which give \u0130 two characters. The server lowers it
    differently, so the parent's cascades were missed.
    """
    lower = dataclasses.replace(SERVER, lower_case_names=True)
    history, position = history_after(
        tmp_path,
        "CREATE TABLE P\u0130 (id int PRIMARY KEY)",
        "CREATE TABLE c (id int PRIMARY KEY, a int, FOREIGN KEY (a) REFERENCES P\u0130 (id) ON DELETE CASCADE)",
        facts=lower,
    )
    child = history.state("d", "c", position)
    assert isinstance(child, TableSchema)
    (key,) = child.foreign_keys
    assert isinstance(history.state(*key.parent, position), TableSchema)


def test_a_foreign_key_that_goes_by_a_name_not_known_leaves_all_in_doubt_cascade(tmp_path: Path) -> None:
    history, position = history_after(
        tmp_path,
        "CREATE TABLE p (id int PRIMARY KEY)",
        "CREATE TABLE c (id int PRIMARY KEY, a int, FOREIGN KEY (a) REFERENCES p (id) ON DELETE CASCADE)",
        "ALTER TABLE c DROP FOREIGN KEY c_ibfk_9",
    )
    state = history.state("d", "c", position)
    assert isinstance(state, TableSchema)
    assert "c_ibfk_9" in state.foreign_keys[0].doubt
    again = TableHistory(tmp_path / "schema.jsonl", lambda *_: True)
    assert again.state("d", "c", position) == state


@pytest.mark.found
@pytest.mark.parametrize(
    ("actions", "left"),
    [
        ("DROP FOREIGN KEY k, ADD CONSTRAINT k FOREIGN KEY IF NOT EXISTS (a) REFERENCES p (id) ON DELETE CASCADE", []),
        ("ADD CONSTRAINT other FOREIGN KEY IF NOT EXISTS k (b) REFERENCES p (id) ON DELETE CASCADE", ["k"]),
        ("ADD CONSTRAINT other FOREIGN KEY IF NOT EXISTS (b) REFERENCES p (id) ON DELETE CASCADE", ["k", "other"]),
    ],
)
def test_a_foreign_key_of_if_not_exists_is_compared_with_the_table_before_the_statement_cascade(
    tmp_path: Path, actions: str, left: list[str]
) -> None:
    """Defect 1072: MariaDB adds no foreign key if the table has one of this name, even if the statement drops it. The schema history had
    the foreign key, so the lake deleted rows that the source keeps.
    """
    history, position = history_after(
        tmp_path,
        "CREATE TABLE p (id int PRIMARY KEY)",
        "CREATE TABLE c (id int PRIMARY KEY, a int, b int, CONSTRAINT k FOREIGN KEY (a) REFERENCES p (id))",
        f"ALTER TABLE c {actions}",
        facts=MARIADB,
    )
    state = history.state("d", "c", position)
    assert isinstance(state, TableSchema)
    assert [each.name for each in state.foreign_keys] == left


@pytest.mark.found
@pytest.mark.parametrize(
    ("facts", "actions", "doubted"),
    [
        (MARIADB, "MODIFY a bigint, RENAME TO d", True),
        (MARIADB, "ALGORITHM=COPY, RENAME TO d, ADD b int", True),
        (MARIADB, "RENAME TO d", False),
        (MARIADB, "MODIFY a bigint, RENAME TO c", False),
        (MARIADB, "MODIFY a bigint", False),
        (SERVER, "MODIFY a bigint, RENAME TO d", False),
    ],
)
def test_foreign_keys_of_a_table_that_mariadb_alters_and_renames_are_in_doubt_cascade(
    tmp_path: Path, facts: DdlServerFacts, actions: str, doubted: bool
) -> None:
    """Defect 1075: MariaDB loses the foreign keys if it copies the rows. The lake then deleted rows that the source keeps."""
    history, _ = history_after(
        tmp_path,
        "CREATE TABLE p (id int PRIMARY KEY)",
        "CREATE TABLE c (id int PRIMARY KEY, a int, FOREIGN KEY (a) REFERENCES p (id) ON DELETE CASCADE)",
        f"ALTER TABLE c {actions}",
        facts=facts,
    )
    (cascade,) = history.all_cascades()
    assert bool(cascade.doubt) is doubted
    assert not doubted or "MariaDB may have lost the foreign key" in cascade.doubt


@pytest.mark.found
@pytest.mark.parametrize("action", ["", "ON DELETE RESTRICT ON UPDATE NO ACTION"])
def test_a_foreign_key_that_changes_no_row_is_not_in_doubt_after_a_rename_cascade(tmp_path: Path, action: str) -> None:
    """Belongs to defect 1075: each change of the parent stopped the renamed table, although the foreign key changes no row in any case."""
    history, _ = history_after(
        tmp_path,
        "CREATE TABLE p (id int PRIMARY KEY)",
        f"CREATE TABLE c (id int PRIMARY KEY, a int, FOREIGN KEY (a) REFERENCES p (id) {action})",
        "ALTER TABLE c ADD b int, RENAME TO d",
        facts=MARIADB,
    )
    assert history.all_cascades() == ()


@pytest.mark.parametrize(
    ("labels", "doubted"), [("'a', 'b'", False), ("'a', 'b', 'c'", False), ("'b', 'a'", True), ("'a', 'c'", True)]
)
def test_labels_that_are_others_in_the_parent_leave_a_cascade_in_doubt(
    tmp_path: Path, labels: str, doubted: bool
) -> None:
    history, _ = history_after(
        tmp_path,
        "CREATE TABLE p (id enum('a', 'b') PRIMARY KEY)",
        f"CREATE TABLE c (id int PRIMARY KEY, A enum({labels}), FOREIGN KEY (a) REFERENCES p (ID) ON DELETE CASCADE)",
    )
    (cascade,) = history.all_cascades()
    assert bool(cascade.doubt) is doubted
    assert not doubted or "other labels than" in cascade.doubt
