"""Tests an archive of a real server's binlog files that is read without the server: it gives the same rows as the server, and refuses
unsuitable files by name.

A stream and a backfill get purged files with the command of conf/.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import shutil
import struct
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.errors import ActRefusedError, PositionLostError, SourceConnectionError
from sluice.cdc_engine.gtid import GtidSet, is_mariadb
from sluice.cdc_engine.instance.rows.interval import locate_interval, records_of, schemas_of
from sluice.cdc_engine.instance.rows.plan import Plan, make_plan
from sluice.cdc_engine.instance.rows.reading import IntervalReader, binlog_files
from sluice.cdc_engine.instance.rows.rules import RequestedInterval
from sluice.cdc_engine.instance.rows.work import BackfillReading, folder_of
from sluice.cdc_engine.parser.positions.archive_alone import archive_alone
from sluice.cdc_engine.parser.positions.gtid_search import FoundTransactions
from sluice.cdc_engine.parser.positions.time_search import earliest_on_offer, last_end_up_to
from sluice.cdc_engine.source.archive import Archive
from sluice.console.acts.position import move, request
from sluice.console.toolchain.cache import open_cache
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.debian import unpacked
from sluice.console.toolchain.ports import free_port
from tests.fix_servers import ServerFactory
from tests.instance.failover.fix_pair import requested
from tests.instance.fix_destination import Captured, running
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.seeds]

COLUMNS = (
    "id INT PRIMARY KEY, price DECIMAL(10, 2) UNSIGNED, name VARCHAR(20), kind ENUM('a', 'b'), at TIMESTAMP(3) NULL"
)
VALUES = "{0}, 7.25, REPEAT('n', 20), 'b', '2026-01-01 10:00:00.125'"


class Recorded(Captured):
    """A source with several binlog files, whose lake has everything. Its tables `numbers` and `prices` changed after `began_us`."""

    began_us = 0
    gtids = ""  # Two transactions that are not neighbours: the inserts of 2 into `prices`, and of 4 into `numbers`.

    def record(self) -> None:
        self.run(f"CREATE TABLE {self.database}.prices ({COLUMNS})", "FLUSH BINARY LOGS")
        with running(self) as engine:
            self.insert([0])
            self.take(engine, 1)
            self.began_us = wait_for("the second of the first file is over", self._now_on_offer)
            for number in range(1, 5):
                numbers = self._gtid(lambda number=number: self.insert([number], filler_bytes=200))  # type: ignore[misc]
                insert = f"INSERT INTO {self.database}.prices VALUES ({VALUES.format(number)})"
                prices = self._gtid(lambda insert=insert: self.run(insert))  # type: ignore[misc]
                self.gtids += {2: f"{prices},", 4: numbers}.get(number, "")
                self.run("FLUSH BINARY LOGS")
            self.run(f"DELETE FROM {self.database}.prices WHERE id = 2")
            self.insert([5])
            assert self.take(engine, 5) == [1, 2, 3, 4, 5]

    def _now_on_offer(self) -> int:
        """Returns the current time in µs once the first second of the newest file is over, and 0 before."""
        now_us = time.time_ns() // 1000
        files = binlog_files(self.config.destinations["shop"])
        return now_us if (files.created(files.facts.file) + 1) * 10**6 <= now_us else 0

    def _gtid(self, write: Callable[[], None]) -> str:
        """Writes a transaction and returns its GTID."""
        before = self._executed()
        write()
        after = self._executed()
        return after if is_mariadb(after) else str(GtidSet.parse(after).subtract(GtidSet.parse(before)))

    def _executed(self) -> str:
        return binlog_files(self.config.destinations["shop"]).facts.executed

    @property
    def log_folder(self) -> Path:
        return Path(str(requested(self.server, "SELECT @@log_bin_basename")[0][0])).parent

    def keep(self, folder: Path) -> list[str]:
        """Copies the server's binlog files as they are."""
        names = [str(row[0]) for row in requested(self.server, "SHOW BINARY LOGS")]
        folder.mkdir()
        for name in names:
            shutil.copy(self.log_folder / name, folder)
        return names

    def rows(self, archive: str = "", schemas: Path | None = None, gtids: str = "") -> dict[str, pa.Table]:
        """Returns what a backfill reads, by table."""
        requested_files = RequestedInterval(from_us=self.began_us, archive=archive, schemas=schemas, gtids=gtids)
        config, directory = self.config.destinations["shop"], self.directory
        with folder_of(directory) as folder:
            reading = BackfillReading(config, directory, requested_files, folder, now_us=time.time_ns() // 1000)
            reading.read()
            reading.catch_up()
            assert reading.refused == {}
            return {
                name.partition(".")[2]: pa.concat_tables(
                    pq.read_table(batch.path / segment.file)
                    for batch in reading.staged
                    for table in batch.manifest.tables
                    if table.name == name
                    for segment in table.changes
                )
                for name in reading.tables
            }

    def transactions(self, archive: str = "") -> FoundTransactions:
        """Returns what a backfill of `gtids` chooses."""
        wanted = RequestedInterval(from_us=self.began_us, archive=archive, gtids=self.gtids)
        found = locate_interval(self.config.destinations["shop"], read_ledger(self.directory), wanted).transactions
        assert found is not None
        return found

    def plan(self, *, archive: str = "", from_us: int = 0, past: bool = False) -> Plan:
        wanted = RequestedInterval(from_us=from_us or self.began_us, archive=archive, past=past)
        return make_plan(self.config.destinations["shop"], self.directory, wanted, time.time_ns() // 1000)


def dumped(server: DatabaseServer, database: str, to: Path) -> Path:
    """Writes the definitions of the tables to the file `to`, as Debian's mariadb-dump dumps them without rows. Returns the file."""
    # The plug-ins of Debian's client are in another package, so the account of MySQL uses mysql_native_password, not MySQL's default.
    plugin = "BY " if "mariadb" in server.version else "WITH mysql_native_password BY "
    program = unpacked(open_cache(), "mariadb-client", ["mariadb-client"]) / "usr" / "bin" / "mariadb-dump"
    account = ("SET sql_log_bin = 0", f"CREATE USER dumper IDENTIFIED {plugin}''", "GRANT ALL ON *.* TO dumper")
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in account:
            cursor.execute(statement)
    address = [f"--port={server.port}", "--host=127.0.0.1", "--user=dumper", "--skip-ssl"]
    text = subprocess.run([program, *address, "--no-data", database], capture_output=True, check=True).stdout
    to.write_bytes(text)
    return to


@pytest.mark.parametrize(
    ("version", "options"),
    [
        ("mysql-8.0.31", {"binlog_checksum": "NONE", "binlog_transaction_compression": "ON"}),
        ("mariadb-11.4.5", {"log_bin_compress": "ON", "log_bin_compress_min_len": "10"}),
    ],
    ids=["mysql-none-compressed", "mariadb-compressed"],
)
def test_an_archive_alone_has_the_same_rows_and_names_what_it_lacks(
    version: str, options: dict[str, str], fresh_server: ServerFactory, tmp_path: Path
) -> None:
    server = fresh_server(version, options)
    captured = Recorded(tmp_path, server)
    captured.record()
    over_network = captured.rows()
    assert over_network["prices"].num_rows == 5
    of_gtids = captured.rows(gtids=captured.gtids)
    assert of_gtids["prices"]["id"].to_pylist() == [2, 3, 4, 2], "from the first of them on"
    chosen = captured.transactions()
    assert len(chosen.order_keys) == 2
    archive, backup = tmp_path / "archive", tmp_path / "backup"
    names = captured.keep(archive)
    shutil.copytree(archive, backup)
    dump = dumped(server, captured.database, tmp_path / "dump.sql")
    captured.describe(source=f"{{user: root, port: {free_port()}}}")
    with pytest.raises(SourceConnectionError):
        captured.rows()
    assert captured.rows(str(archive)) == over_network
    assert captured.rows(str(archive), gtids=captured.gtids) == of_gtids
    assert captured.transactions(str(archive)) == chosen
    saved = Path(shutil.copy(captured.directory / "schema.jsonl", tmp_path / "schema.jsonl"))
    assert captured.rows(str(archive), schemas=dump) == over_network
    assert captured.rows(str(archive), schemas=saved) == over_network
    _older_dump(captured, archive, dump)
    _refused(captured, archive, names, over_network)
    _proven_by_gtids(captured, archive)
    _grows(captured, archive / names[-1])
    _begins_another_file(captured, archive, of_gtids)
    captured.describe()
    _fetched_by_command(captured, backup, names, over_network)


def _refused(captured: Recorded, archive: Path, names: list[str], over_network: dict[str, pa.Table]) -> None:
    """Checks that the error names each unsuitable file. Each check restores the file that it changed."""
    newest, middle = archive / names[-1], archive / names[-3]

    def spoilt(file: Path, spoil: Callable[[], object], sentence: str, error: type[Exception]) -> None:
        content = file.read_bytes()
        spoil()
        with pytest.raises(error, match=sentence):
            captured.rows(str(archive))
        file.write_bytes(content)

    spoilt(middle, middle.unlink, rf"which lacks {middle.name}\): the binlog of", PositionLostError)
    spoilt(
        newest, lambda: newest.write_bytes(b"\xfdbin" + bytes(600)), f"{newest.name} is encrypted", PositionLostError
    )
    spoilt(
        middle, lambda: middle.write_bytes(b"\xfdbin" + bytes(600)), f"{middle.name} is encrypted", PositionLostError
    )
    truncated = middle.read_bytes()[:-5]
    spoilt(middle, lambda: middle.write_bytes(truncated), "ends within an event", Exception)
    other = b"\xfebin" + struct.pack("<IBIIIH", 1, 15, 999, 119, 123, 0) + bytes(100)
    spoilt(
        middle,
        lambda: middle.write_bytes(other),
        "the server id 999, and the source has the server id",
        PositionLostError,
    )
    short = newest.read_bytes()
    cursor = read_ledger(captured.directory).cursor
    assert cursor is not None
    assert cursor.file == newest.name
    _refused_without_the_cursor_s_file(captured, archive, names)
    # The file ends within an event, like a copy of a file that is being written.
    newest.write_bytes(short[: cursor.offset - 7])
    with pytest.raises(
        ActRefusedError,
        match=f"the archive {archive} ends at {newest.name}:.* put the later binlog files into the archive",
    ):
        captured.rows(str(archive))
    shown = captured.plan(archive=str(archive), past=True)
    assert shown.read_to.startswith(f"{newest.name}:")
    assert 0 < shown.changes < sum(each.num_rows for each in over_network.values())
    newest.write_bytes(short)
    (archive.parent / "empty").mkdir()
    with pytest.raises(PositionLostError, match="has no file"):
        captured.rows(str(archive.parent / "empty"))


def _refused_without_the_cursor_s_file(captured: Recorded, archive: Path, names: list[str]) -> None:
    """Checks an archive that lacks the cursor's file. A past state needs only older files, but an older file must not be created after the
    cursor's file.
    """
    newest, before = archive / names[-1], archive / names[-2]
    content, older = newest.read_bytes(), before.read_bytes()
    newest.unlink()
    assert captured.plan(archive=str(archive), past=True).read_to.startswith(f"{before.name}:")
    later = struct.pack("<I", int(time.time()) + 1000)
    before.write_bytes(older[:4] + later + older[8:])
    with pytest.raises(PositionLostError, match=f"{before.name} was created after {newest.name}, in which the lake's"):
        captured.plan(archive=str(archive), past=True)
    before.write_bytes(older)
    newest.write_bytes(content)


def _older_dump(captured: Recorded, archive: Path, dump: Path) -> None:
    """Checks that a backfill refuses a table whose column has another name in the dump, even if the types fit the row events. The plan of a
    past state has no such problem.
    """
    older = dump.with_name("older.sql")
    older.write_text(dump.read_text().replace("`name`", "`title`"))
    assert older.read_text() != dump.read_text()
    wanted = RequestedInterval(from_us=captured.began_us, archive=str(archive), schemas=older)
    shop = captured.config.destinations["shop"]
    found = make_plan(shop, captured.directory, wanted, time.time_ns() // 1000)
    (problem,) = found.problems
    assert (
        f"{captured.database}.prices: the columns of the table in {older} differ from its columns at the lake's position"
        in problem
    )
    with folder_of(captured.directory) as folder:
        reading = BackfillReading(shop, captured.directory, wanted, folder, now_us=time.time_ns() // 1000)
        reading.read()
        assert list(reading.refused) == [f"{captured.database}.prices"]
    past = make_plan(shop, captured.directory, dataclasses.replace(wanted, past=True), time.time_ns() // 1000)
    assert past.problems == ()


def _proven_by_gtids(captured: Recorded, archive: Path) -> None:
    """Checks a cursor without the creation time of its file. File names alone do not prove that the archive is from the same server, so the
    GTIDs must match.
    """
    cursor = read_ledger(captured.directory).cursor
    assert cursor is not None
    own = dataclasses.replace(cursor, file_created=0)
    assert archive_alone(Archive(str(archive)), own).facts.file == cursor.file
    for gtid_set, why in ((f"{uuid.uuid4()}:1-5", "contradict the lake's position"), ("", "Sluice cannot verify that")):
        with pytest.raises(PositionLostError, match=why):
            archive_alone(Archive(str(archive)), dataclasses.replace(own, gtid_set=gtid_set))


def _grows(captured: Recorded, newest: Path) -> None:
    """Checks that a backfill ends where its interval ends, even if the server continues to write the newest file. Later changes do not
    count as read.
    """
    config, ledger, content = captured.config.destinations["shop"], read_ledger(captured.directory), newest.read_bytes()
    wanted = RequestedInterval(from_us=captured.began_us, archive=str(newest.parent), past=True)
    whole = locate_interval(config, ledger, wanted)
    before_last = last_end_up_to(whole.files, newest.name, whole.read_to.offset - 1).offset
    newest.write_bytes(content[:before_last])
    interval = locate_interval(config, ledger, wanted)
    assert interval.read_to.offset == before_last
    newest.write_bytes(content)
    schemas = schemas_of(config, records_of(config, captured.directory, interval, None), interval)
    tables = frozenset({f"{captured.database}.numbers"})
    reader = IntervalReader(config, interval.begin, schemas, tables, files=lambda: interval.files)
    staged = reader.staged(captured.directory / "grows", {})
    (table,) = staged.manifest.tables
    numbers = pq.read_table(staged.path / table.changes[0].file)["n"].to_pylist()
    assert (numbers[-1], reader.end.offset) == (4, before_last), "the insert of 5 came later"


def _begins_another_file(captured: Recorded, archive: Path, of_gtids: dict[str, pa.Table]) -> None:
    """Checks that a backfill finds transactions by GTID even if the archive's newest file has no transaction yet."""
    captured.run("FLUSH BINARY LOGS")
    closed, begun = (str(row[0]) for row in requested(captured.server, "SHOW BINARY LOGS")[-2:])
    for name in (closed, begun):
        shutil.copy(captured.log_folder / name, archive)
    assert captured.rows(str(archive), gtids=captured.gtids) == of_gtids
    (archive / begun).unlink()


def _fetched_by_command(captured: Recorded, backup: Path, names: list[str], over_network: dict[str, pa.Table]) -> None:
    """Checks that the stream, a backfill and a requested position get purged files with the command of conf/, and store them in the
    archive.
    """
    with running(captured) as engine:
        captured.insert([6])
        captured.take(engine, 1)
    for number in (7, 8):
        captured.insert([number])
        captured.run("FLUSH BINARY LOGS")
    captured.insert([9])
    current = [str(row[0]) for row in requested(captured.server, "SHOW BINARY LOGS")]
    for name in current[:-1]:
        shutil.copy(captured.log_folder / name, backup)
    wait_for("all but the last are purged", lambda: _purged(captured, current[-1]))
    fetched = captured.conf.parent / "fetched"
    describe = f"archive: {fetched}", "archive_fetch: {{command: [cp, '{}/{{file}}', '{{path}}']}}"
    captured.describe(describe[0], describe[1].format(captured.conf))
    with running(captured) as engine:
        wait_for("the failure is shown", lambda: "the command cp for" in engine.status().reason)
        assert engine.status().state == "RECONNECTING"
        assert list(fetched.glob("*bin.*")) == []
    captured.describe(describe[0], describe[1].format(backup))
    with running(captured) as engine:
        assert captured.take(engine, 3) == [7, 8, 9]
        wait_for("the server's own file is read", lambda: engine.status().state == "RUNNING")
    there = {each.name for each in fetched.iterdir()}
    assert names[0] not in there, "only what is needed"
    assert earliest_on_offer(binlog_files(captured.config.destinations["shop"]))[1] not in names[:-1]
    found = captured.rows()
    assert {name: rows.slice(0, over_network[name].num_rows) for name, rows in found.items()} == over_network
    moment = dt.datetime.fromtimestamp(captured.began_us / 1e6, dt.UTC).isoformat()
    for wanted in (request(names[1], "", latest=False, moment=""), request("", "", latest=False, moment=moment)):
        shutil.rmtree(fetched)
        position = move(captured.config, "shop", wanted, confirm=lambda _: True, say=lambda _: None)
        assert position.file in names
        assert (fetched / position.file).exists()
    with running(captured) as engine:
        taken = captured.take(engine, 9)
        # Times in the binlog of MariaDB are whole seconds, so the insert of 0 may have the requested second, and is read too.
        while taken[-1] != 9:
            taken += captured.take(engine, 1)
        assert taken[-9:] == [*range(1, 10)]


def _purged(captured: Recorded, file: str) -> bool:
    """Purges the binlog files before `file`, and returns whether they are gone. The server keeps a file as long as a dump thread has it
    open.
    """
    captured.run(f"PURGE BINARY LOGS TO '{file}'")
    return str(requested(captured.server, "SHOW BINARY LOGS")[0][0]) == file
