"""Tests the lock under which Sluice reads a child table without a key. On every MySQL, the lock blocks changes of the child by foreign
keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pymysql
import pytest

from sluice.cdc_engine.contracts import Column, TableVersion
from sluice.cdc_engine.errors import SourceConnectionError
from sluice.cdc_engine.snapshot import exact_position
from sluice.cdc_engine.snapshot.exact_position import rows_at_a_position
from sluice.cdc_engine.snapshot.reader import RowReader, open_reader
from sluice.cdc_engine.snapshot.visible import writers_have_committed
from sluice.cdc_engine.source.server import Source
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fidelity.pipeline import run

pytestmark = pytest.mark.servers

DATABASE = "cascades_and_locks"
CHILD = TableVersion(database=DATABASE, table="child", columns=(Column(name="up", type_code=3),), key=())
LOCK_WAIT_TIMEOUT = 1205


@pytest.fixture(params=["mysql57", "mysql80"])
def server(request: pytest.FixtureRequest) -> Iterator[DatabaseServer]:
    found: DatabaseServer = request.getfixturevalue(request.param)
    run(
        found,
        f"DROP DATABASE IF EXISTS {DATABASE}",
        f"CREATE DATABASE {DATABASE}",
        f"CREATE TABLE {DATABASE}.parent (id INT PRIMARY KEY)",
        f"CREATE TABLE {DATABASE}.child (up INT, FOREIGN KEY (up) REFERENCES parent (id) ON DELETE CASCADE)",
        f"INSERT INTO {DATABASE}.parent VALUES (1), (2)",
        f"INSERT INTO {DATABASE}.child VALUES (1), (2)",
    )
    yield found
    run(found, f"DROP DATABASE {DATABASE}")


def _reader(server: DatabaseServer) -> RowReader:
    return open_reader(Source(destination=DATABASE, host="127.0.0.1", port=server.port, user="root"))


@pytest.mark.found
def test_no_cascade_is_committed_while_the_child_is_locked(server: DatabaseServer) -> None:
    """Defect 15: on MySQL 5.7, a foreign key could change a table without a key between the moment of its position and the reading of its
    rows.
    """
    with closing(_reader(server)) as locking, server.connect(autocommit=True) as other, other.cursor() as cursor:
        exact_position._locked(locking, CHILD)
        cursor.execute("SET lock_wait_timeout = 1, innodb_lock_wait_timeout = 1")
        with pytest.raises(pymysql.err.OperationalError) as refused:
            cursor.execute(f"DELETE FROM {DATABASE}.parent WHERE id = 1")
        assert refused.value.args[0] == LOCK_WAIT_TIMEOUT
    with server.connect(autocommit=True) as after, after.cursor() as cursor:
        cursor.execute(f"DELETE FROM {DATABASE}.parent WHERE id = 1")  # The closed connection holds no lock.


@pytest.mark.found
def test_a_child_is_not_read_before_a_cascade_in_it_is_committed(
    server: DatabaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 15: on MySQL 5.7, a snapshot could read the child table after a cascade was in the binlog but before it was committed. So the
    rows lacked the changes of the cascade.
    """
    monkeypatch.setattr(exact_position, "LOCK_SECONDS_MAX", 1)
    with server.connect(autocommit=False) as other, other.cursor() as cursor:
        cursor.execute(f"DELETE FROM {DATABASE}.parent WHERE id = 1")
        with pytest.raises(SourceConnectionError), rows_at_a_position(lambda: _reader(server), CHILD):
            pass
        with closing(_reader(server)) as view:
            assert not writers_have_committed(view, CHILD)
        other.commit()
    with rows_at_a_position(lambda: _reader(server), CHILD) as (reader, _):
        assert reader.texts(f"SELECT up FROM {DATABASE}.child") == [("2",)]
        with server.connect(autocommit=True) as other, other.cursor() as cursor:
            cursor.execute(f"DELETE FROM {DATABASE}.parent WHERE id = 2")  # No lock is left while rows are read.
        assert len(reader.texts(f"SELECT up FROM {DATABASE}.child")) == 1
    with closing(_reader(server)) as view:
        assert writers_have_committed(view, CHILD)
