"""Tests a comparison while the lake has a transaction whose rows the source does not show yet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.position import Position
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.equality.values import TableResult, Verdict
from tests.equality.shelf import Shelf
from tests.fidelity.pipeline import binlog_end
from tests.fix_ledgers import FileLedger
from tests.fix_servers import ServerFactory
from tests.snapshot.fix_semi_sync import waiting_commit

pytestmark = pytest.mark.servers

TABLES = ("keyed", "heap")


def compared(shelf: Shelf, cursor: Position) -> list[TableResult]:
    """Compares tables whose lake has the update already."""
    directory = shelf.config.destination_dir("shelf")
    FileLedger(directory).update(lambda _: Ledger(ledger_id="0123456789ab", cursor=cursor))
    shelf.lay("keyed", pa.table({"id": pa.array([1], pa.int32()), "n": pa.array([2], pa.int32())}))
    numbers = pa.array([1, 1, 2], pa.int32())
    operations = ["insert", "update_preimage", "update_postimage"]
    shelf.lay("heap", pa.table({"n": numbers, "_sluice_operation": operations}))
    return shelf.compare(*TABLES, settle_seconds=1.0)


def make(shelf: Shelf) -> str:
    """Creates the tables in the source. Returns the statement whose changes the lake has already and the source does not have yet."""
    shelf.make(
        "CREATE TABLE {db}.keyed (id INT PRIMARY KEY, n INT)",
        "CREATE TABLE {db}.heap (n INT)",
        "INSERT INTO {db}.keyed VALUES (1, 1)",
        "INSERT INTO {db}.heap VALUES (1)",
    )
    return f"UPDATE {shelf.database}.keyed, {shelf.database}.heap SET keyed.n = 2, heap.n = 2"


@pytest.fixture
def shelf(mysql80: DatabaseServer, tmp_path: Path) -> Iterator[Shelf]:
    made = Shelf(mysql80, tmp_path)
    yield made
    made.drop()


@pytest.mark.found
def test_equality_a_commit_that_waits_for_a_replica_is_no_difference(
    fresh_server: ServerFactory, tmp_path: Path
) -> None:
    """A defect like 4: a comparison reported a row as different while its commit waited for a replica (MariaDB, AFTER_SYNC)."""
    shelf = Shelf(fresh_server("mariadb-11.4.5"), tmp_path)
    with waiting_commit(shelf.server, make(shelf)) as (position, go_on):
        for found in compared(shelf, position):
            assert (found.verdict, found.difference_count) == (Verdict.UNDECIDED, 0), found
            assert (
                "still do not show all changes that the lake has, because commits wait for a semi-sync" in found.reason
            )
        go_on()
        assert [found.verdict for found in compared(shelf, position)] == [Verdict.EQUAL] * 2


@pytest.mark.found
def test_equality_a_transaction_that_mysql_has_not_executed_is_no_difference(shelf: Shelf) -> None:
    """A defect like 4, on MySQL: a row was reported as different, because MySQL adds a GTID to its executed set only after the commit."""
    statement = make(shelf)
    with closing(shelf.server.connect(autocommit=True)) as connection, connection.cursor() as cursor:
        end = binlog_end(connection)
        cursor.execute("SELECT @@server_uuid, @@GLOBAL.gtid_executed")
        uuid, executed = cursor.fetchone()
    interval = next(each for each in executed.replace("\n", "").split(",") if each.startswith(uuid))
    later = Position(
        epoch=1,
        file=end.file,
        offset=end.offset,
        gtid_set=f"{uuid}:1-{int(interval.rpartition('-')[2].rpartition(':')[2]) + 1}",
        server_uuid=uuid,
    )
    assert [found.verdict for found in compared(shelf, later)] == [Verdict.UNDECIDED] * 2
    shelf.run(statement)
    assert [found.verdict for found in compared(shelf, later)] == [Verdict.EQUAL] * 2
