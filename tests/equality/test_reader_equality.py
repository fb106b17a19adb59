"""Tests comparisons and a repair that read a real replica. They never use a state that is older than the lake, so they need GTIDs, which
show how far the replica is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.instance.rows import source_rows
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.snapshot.work import TableReader, wait_until_shown
from sluice.cdc_engine.source import reader
from sluice.cdc_engine.source.server import Source
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.equality.destination import ComparedDestination, compare_destination
from sluice.equality.reader_side import ReaderSide
from sluice.equality.source_side import SourceSide
from sluice.equality.values import Extent, TableResult, Verdict
from sluice.orchestration.base.testing import FakePorts
from sluice.orchestration.run.rows import repair
from sluice.orchestration.run.rows.operation import RowsRun
from sluice.orchestration.run.rows.request import RepairRequest, RowsListener
from tests.fix_servers import ServerFactory
from tests.instance.failover.fix_pair import DATABASE, Pair, run, start_when_waited_for
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.managed]


@pytest.fixture(params=["mysql-8.0.31", "mariadb-11.4.5"])
def pair(request: pytest.FixtureRequest, fresh_server: ServerFactory, tmp_path: Path) -> Iterator[Pair]:
    made = Pair(request.param, fresh_server, tmp_path)

    def runs() -> bool:
        engine = made.engine()
        return engine is not None and str(engine.status().state) == "RUNNING"

    wait_for("the engine runs", runs)
    yield made
    made.slot.stop()


def at(server: DatabaseServer) -> Source:
    return Source(destination="shop", host="127.0.0.1", port=server.port, user="root")


def merged(pair: Pair, left_out: int = 0) -> None:
    """Acks everything that was written, and writes the rows into the lake, except the first `left_out` rows."""
    pair.settle()
    numbers = pair.written[left_out:]
    rows = pa.table({"n": pa.array(numbers, pa.int32()), "_sluice_order_key": pa.array([1] * len(numbers), pa.int64())})
    write_deltalake(pair.config.table_path("shop", DATABASE, "numbers"), rows, mode="overwrite")


def compared(pair: Pair, table: str = "numbers") -> TableResult:
    requested = ComparedDestination(pair.config, "shop", at(pair.first), reader=at(pair.second))
    (found,) = compare_destination(requested, [f"{DATABASE}.{table}"], Extent(mode="full", settle_seconds=5))
    return found


def test_a_replica_is_compared_at_its_own_position(pair: Pair) -> None:
    pair.write(pair.first)
    pair.wait_until_replicated(pair.second)
    merged(pair)
    found = compared(pair)
    assert (found.verdict, found.rows) == (Verdict.EQUAL, 5)
    assert found.server_uuid == pair.uuid(pair.first), (
        "the position is the source's, which logs a commit before a replica shows it"
    )
    merged(pair, left_out=1)
    assert compared(pair).verdict is Verdict.DIFFERENT
    notes = compared(pair, "notes")
    assert (notes.verdict, notes.server_uuid) == (Verdict.DIFFERENT, found.server_uuid), "the source has its rows"

    merged(pair)
    run(pair.second, "SET sql_log_bin = 0", f"DELETE FROM {DATABASE}.numbers WHERE n = {pair.written[0]}")
    assert compared(pair).verdict is Verdict.DIFFERENT, "only the replica lacks a row"
    requested = ComparedDestination(pair.config, "shop", at(pair.first), reader=at(pair.first))
    (found,) = compare_destination(requested, [f"{DATABASE}.numbers"], Extent(mode="full", settle_seconds=5))
    assert found.verdict is Verdict.EQUAL, (
        "a reader that is the source itself, as after its promotion, is read as the source"
    )


def test_a_replica_that_is_behind_the_lake_is_waited_for(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.write(pair.first)
    pair.wait_until_replicated(pair.second)
    run(pair.second, "STOP SLAVE SQL_THREAD")
    pair.write(pair.first)
    merged(pair)
    monkeypatch.setattr(reader, "WAIT_SECONDS_MAX", 0.0)
    late = compared(pair)
    assert late.verdict is Verdict.REFUSED
    assert "the replica is behind" in late.reason
    monkeypatch.setattr(reader, "WAIT_SECONDS_MAX", 60.0)
    waits = start_when_waited_for(pair.second, monkeypatch)
    assert compared(pair).verdict is Verdict.EQUAL
    assert waits


def test_a_repair_reads_the_replica_once_it_shows_what_the_lake_has(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repair reads the keys that differ, and their rows, from the replica. Its positions are those of the source."""
    pair.describe(f"reader: {{user: root, port: {pair.second.port}}}")
    pair.write(pair.first)
    pair.wait_until_replicated(pair.second)
    merged(pair, left_out=1)
    # Only the replica has this row, so the row shows which of the two is read.
    run(pair.second, "SET sql_log_bin = 0", f"INSERT INTO {DATABASE}.numbers VALUES (-1)")
    request = RepairRequest(destination="shop", tables=(f"{DATABASE}.numbers",), settle_seconds=5)
    (planned,) = repair.plan_repair(pair.config, request)
    assert planned.scope is not None
    assert len(planned.scope.keys) == 2

    run(pair.second, "STOP SLAVE SQL_THREAD")
    pair.write(pair.first)
    pair.settle()
    behind: list[bool] = []

    def waited(reader: TableReader, low: Position, pause: Callable[[float], object]) -> None:
        behind.append(not reader.shows(low))
        run(pair.second, "START SLAVE SQL_THREAD")
        wait_until_shown(reader, low, pause)

    monkeypatch.setattr(source_rows, "wait_until_shown", waited)
    listener = RowsListener(say=lambda _: None)
    rows_run = RowsRun(ports=FakePorts(tmp_path).ports(), config=pair.config, destination="shop", listener=listener)
    reading = repair._Repair(rows_run, request, {planned.name: planned.scope})
    found = reading.read(tmp_path / "repair")
    assert behind == [True], "the replica lacked changes that the lake had"
    assert found is not None
    rows = reading.rows(found)[planned.name]
    assert rows is not None
    read: list[Any] = pq.read_table(list(rows.files))["n"].to_pylist()
    assert sorted(read) == [-1, pair.written[0]]
    assert reading.refused == {}


def test_a_replica_without_gtids_is_refused_by_name(fresh_mysql80: ServerFactory) -> None:
    off = {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}
    server, other = fresh_mysql80(off), fresh_mysql80(off)
    cursor = Position(epoch=1, file="binlog.000001", offset=4, gtid_set="")
    with (
        SourceSide(at(server)) as source,
        pytest.raises(ConfigurationError, match=r"127.0.0.1:\d+ \(`reader`\).*enable GTIDs"),
    ):
        ReaderSide(at(other), source, lambda: cursor)
