"""Tests snapshots and searches by time that read a replica (`reader`). A snapshot waits until the replica has executed the stream's
position. This needs GTIDs, which show how far the replica is.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sluice.cdc_engine.errors import ConfigurationError, SourceConnectionError
from sluice.cdc_engine.instance.discovery import discover
from sluice.cdc_engine.instance.sources import reader_of, source_at, source_facts
from sluice.cdc_engine.instance.tables.table_snapshots import SnapshotCallbacks, snapshot_dependencies
from sluice.cdc_engine.parser.positions.binlog_files import BinlogFiles
from sluice.cdc_engine.parser.positions.decision import RequestedPosition
from sluice.cdc_engine.parser.positions.finding import exact_position
from sluice.cdc_engine.parser.start_position import StartChoice
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.snapshot.chunks import Chunk
from sluice.cdc_engine.snapshot.reader import open_reader
from sluice.cdc_engine.snapshot.table_reader import SourceTable
from sluice.cdc_engine.source import reader as replica
from sluice.console.reader_check import examine_reader
from sluice.console.toolchain.database.options import Options
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fix_servers import ServerFactory
from tests.instance.failover.fix_pair import DATABASE, TABLES, Pair, requested, run, start_when_waited_for
from tests.rotation import begin_file
from tests.snapshot.fix_reading import source_of
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.managed]

CALLBACKS = SnapshotCallbacks(run_lock=nullcontext, publish=lambda *_: -1, say=lambda _: None, progress=lambda _: None)
SECOND_US = 1_000_000


@pytest.fixture(scope="module", params=["mysql-8.0.31", "mariadb-11.4.5"])
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Starts two servers that all tests of this file share, because their start takes longest."""
    made: list[DatabaseServer] = []

    def make(version: str, options: Options | None = None) -> DatabaseServer:
        made.append(DatabaseServer(version, tmp_path_factory.mktemp("server"), options=options))
        return made[-1].start()

    yield Pair(request.param, make, tmp_path_factory.mktemp("pair"))
    for server in made:
        server.kill()


@pytest.fixture
def pair(servers: Pair) -> Pair:
    run(servers.second, "START SLAVE")
    run(servers.first, *(f"TRUNCATE {DATABASE}.{table}" for table in TABLES))
    begin_file(servers.first)
    begin_file(servers.second)
    servers.written.clear()
    servers.wait_until_replicated(servers.second)
    servers.describe(f"reader: {{user: root, port: {servers.second.port}}}")
    discover(servers.config, "shop")
    return servers


def position_of(pair: Pair) -> Position:
    facts = source_facts(pair.config.destinations["shop"])
    return Position(
        epoch=1, file=facts.file, offset=facts.offset, gtid_set=facts.executed, server_uuid=facts.server_uuid
    )


@contextlib.contextmanager
def table(pair: Pair, name: str = "numbers") -> Iterator[SourceTable]:
    dependencies = snapshot_dependencies(pair.config, "shop", CALLBACKS)
    found = dependencies.table(f"{DATABASE}.{name}")
    assert found is not None
    with closing(dependencies.reader(found, "")) as reader:
        assert isinstance(reader, SourceTable)
        yield reader


def numbers(reader: SourceTable, folder: Path) -> list[int]:
    path = folder / "rows.parquet"
    reader.read(Chunk(number=1), path)
    return sorted(int(n) for n in pq.read_table(path)["n"].to_numpy())


def test_a_snapshot_reads_a_replica_once_it_shows_the_position(pair: Pair, tmp_path: Path) -> None:
    pair.write(pair.first)
    pair.wait_until_replicated(pair.second)
    run(pair.second, "STOP SLAVE SQL_THREAD")
    pair.write(pair.first)
    # Only the replica has this row, so the row shows that the snapshot reads the replica.
    run(pair.second, "SET sql_log_bin = 0", f"INSERT INTO {DATABASE}.numbers VALUES (-1)")
    position = position_of(pair)
    with table(pair) as reader:
        assert not reader.shows(position)
        run(pair.second, "START SLAVE SQL_THREAD")
        wait_for("the replica shows the position", lambda: reader.shows(position))
        assert numbers(reader, tmp_path) == [-1, *pair.written]
        end = reader.end()
        assert (end.file, end.offset) == (position.file, position.offset), "the end is that of the source's binlog"


def test_a_table_without_a_key_is_read_from_the_source(pair: Pair, tmp_path: Path) -> None:
    pair.write(pair.first)
    run(pair.second, "STOP SLAVE SQL_THREAD")
    pair.write(pair.first)
    with table(pair, "notes") as reader:
        wait_for("the source shows the position", lambda: reader.shows(position_of(pair)))
        assert numbers(reader, tmp_path) == pair.written


def test_a_reader_that_became_the_source_is_read_as_the_source(pair: Pair, tmp_path: Path) -> None:
    pair.write(pair.first)
    pair.describe(f"reader: {{user: root, port: {pair.first.port}}}")
    with table(pair) as reader:
        wait_for("the source shows the position", lambda: reader.shows(position_of(pair)))
        assert numbers(reader, tmp_path) == pair.written


def test_each_connection_to_a_name_with_several_readers_waits(
    pair: Pair, fresh_server: ServerFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = fresh_server(pair.first.version, {"server_id": 3, "log_slave_updates": "ON"})
    run(late, "RESET MASTER")
    pair.replicate(pair.first, late)
    pair.write(pair.first)
    pair.wait_until_replicated(late)
    run(late, "STOP SLAVE SQL_THREAD")
    pair.write(pair.first)
    pair.wait_until_replicated(pair.second)
    (found,) = (each for each in discover(pair.config, "shop") if each.table == "numbers")
    servers = itertools.chain([pair.second], itertools.repeat(late))
    balanced = SourceTable(
        lambda: open_reader(source_of(next(servers))),
        found,
        chunk_rows=10,
        source=lambda: open_reader(source_of(pair.first)),
    )
    with closing(balanced) as reader:
        assert reader.shows(position_of(pair))
        monkeypatch.setattr(replica, "WAIT_SECONDS_MAX", 0.0)
        reader._own.reader.close()  # The next read connects again, to the other server.
        with pytest.raises(SourceConnectionError, match="the replica is behind"):
            numbers(reader, tmp_path)
        monkeypatch.setattr(replica, "WAIT_SECONDS_MAX", 60.0)
        run(late, "START SLAVE SQL_THREAD")
        assert numbers(reader, tmp_path) == pair.written


def test_a_replica_without_gtids_is_refused_by_name(fresh_server: ServerFactory, tmp_path: Path) -> None:
    pair = Pair("mysql-8.0.31", fresh_server, tmp_path, gtids=False)
    pair.describe(f"reader: {{user: root, port: {pair.second.port}}}")
    discover(pair.config, "shop")
    refused = pytest.raises(
        ConfigurationError, match=rf"127.0.0.1:{pair.second.port} \(`reader`\).*enable GTIDs on both"
    )
    with table(pair) as reader, refused:
        reader.shows(position_of(pair))
    found = examine_reader(pair.config.destinations["shop"])
    assert found is not None
    assert ["without GTIDs on the" in each for each in found.problems] == [True, True]


# The tests of times.


def searched(pair: Pair, moment: int, monkeypatch: pytest.MonkeyPatch | None = None) -> StartChoice:
    config = pair.config.destinations["shop"]
    reader = reader_of(config)
    if monkeypatch is not None:  # The source cannot be searched.
        monkeypatch.setattr(BinlogFiles, "__init__", only(pair.second, BinlogFiles.__init__))
    wanted = RequestedPosition(time_us=moment * SECOND_US)
    return exact_position(source_at(config, config.source), source_facts(config), wanted, reader=reader)


def only(server: DatabaseServer, original: object) -> object:
    def init(self: object, source: object, *more: object) -> None:
        assert source.port == server.port  # type: ignore[attr-defined]
        original(self, source, *more)  # type: ignore[operator]

    return init


# Each test uses other times, because the binlog of the servers still has the rows of the previous tests.
BASES = itertools.count(2_000_000_000, 1000)


def parts(gtid_set: str) -> list[str]:
    """Returns the sorted parts of a GTID set, because MariaDB lists them in any order."""
    return sorted(gtid_set.split(","))


def row(pair: Pair, number: int, moment: int) -> str:
    """Writes a row whose commit time is `moment`, in seconds. Returns the executed set of the source after the write."""
    times = [f"SET TIMESTAMP = {moment}"]
    times += [] if pair.mariadb else [f"SET original_commit_timestamp = {moment * SECOND_US + 1}"]
    run(pair.first, *times, f"INSERT INTO {DATABASE}.notes VALUES ({number})")
    return source_facts(pair.config.destinations["shop"]).executed


def test_a_time_is_searched_in_the_binlog_of_the_replica(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    base = next(BASES)
    before = source_facts(pair.config.destinations["shop"]).executed
    run(pair.second, "STOP SLAVE SQL_THREAD")
    first, second = row(pair, 1, base + 10), row(pair, 2, base + 20)
    waits = start_when_waited_for(pair.second, monkeypatch)
    assert parts(searched(pair, base + 15, monkeypatch).gtid_set) == parts(first)
    assert waits, "the replica was behind the source"
    assert parts(searched(pair, base + 20).gtid_set) == parts(first)
    assert parts(searched(pair, base + 21).gtid_set) == parts(second)
    assert parts(searched(pair, base).gtid_set) == parts(before)


def test_a_file_that_begins_later_by_the_clock_of_the_replica_hides_no_transaction(pair: Pair) -> None:
    base = next(BASES)
    before = source_facts(pair.config.destinations["shop"]).executed
    row(pair, 1, base + 10)
    wait_for("replicated", lambda: requested(pair.second, f"SELECT COUNT(*) FROM {DATABASE}.notes") == [(1,)])
    # The clock of the replica is behind. So the new file has an earlier creation time than the last transaction in the previous file.
    run(pair.second, f"SET TIMESTAMP = {base + 5}", "FLUSH BINARY LOGS")
    row(pair, 2, base + 20)
    assert parts(searched(pair, base + 8).gtid_set) == parts(before)


def test_a_replica_that_logs_nothing_leaves_the_search_to_the_source(
    fresh_server: ServerFactory, tmp_path: Path
) -> None:
    pair = Pair("mysql-8.0.31", fresh_server, tmp_path)
    silent = fresh_server("mysql-8.0.31", {"server_id": 3, "log_slave_updates": "OFF"})
    pair.replicate(pair.first, silent)
    base = next(BASES)
    pair.describe(f"reader: {{user: root, port: {silent.port}}}")
    first = row(pair, 1, base + 10)
    row(pair, 2, base + 20)
    found = searched(pair, base + 15)
    assert (found.gtid_set, parts(found.executed)) == ("", parts(first)), "a position in the source's own files"
    said = examine_reader(pair.config.destinations["shop"])
    assert said is not None
    assert said.problems == ()
    assert "so Sluice finds the position of a time in the binlog of the source" in said.what


def test_check_names_a_filter_and_a_reader_that_is_the_source(pair: Pair) -> None:
    config = pair.config.destinations["shop"]
    fine = examine_reader(config)
    assert fine is not None
    assert fine.problems == ()
    assert "Sluice finds the position of a time in this server's binlog" in fine.what
    filtered = (
        "SET GLOBAL replicate_do_db = 'pair'" if pair.mariadb else "CHANGE REPLICATION FILTER REPLICATE_DO_DB = (pair)"
    )
    run(pair.second, "STOP SLAVE", filtered)
    found = examine_reader(config)
    assert found is not None
    assert "does not replicate a part of the source (replicate_do_db = pair)" in found.problems[0]
    run(
        pair.second,
        "SET GLOBAL replicate_do_db = ''" if pair.mariadb else "CHANGE REPLICATION FILTER REPLICATE_DO_DB = ()",
    )
    pair.describe(f"reader: {{user: root, port: {pair.first.port}}}")
    same = examine_reader(pair.config.destinations["shop"])
    assert same is not None
    assert "is the source itself" in same.problems[0]
    pair.describe()
    assert examine_reader(pair.config.destinations["shop"]) is None
