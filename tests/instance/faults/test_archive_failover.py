"""Tests an engine that needs binlog files that the source has purged. The engine reads them from an archive, and then continues with the
source. No change is missing or delivered twice.
"""

from __future__ import annotations

import datetime as dt
import gzip
import shutil
import struct
import tarfile
import time
from pathlib import Path

import pytest

from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.errors import PositionLostError
from sluice.cdc_engine.instance.rows.plan import make_plan
from sluice.cdc_engine.instance.rows.reading import binlog_files
from sluice.cdc_engine.instance.rows.rules import RequestedInterval
from sluice.cdc_engine.parser.positions.binlog_files import archived_before
from sluice.cdc_engine.parser.positions.time_search import earliest_on_offer
from sluice.cdc_engine.parser.server_facts import BinaryLog, ServerFacts
from sluice.cdc_engine.parser.start_position import Lost
from sluice.cdc_engine.parser.stream.archived import files_between
from sluice.cdc_engine.parser.stream.archived_file import Header, foreign, is_closed, rotate_to
from sluice.cdc_engine.position import Position
from sluice.console.acts.position import move as move_to
from sluice.console.acts.position import request
from sluice.console.toolchain.ports import free_port
from tests.fix_servers import ServerFactory
from tests.instance.consumers.fix_services import taken
from tests.instance.failover.fix_pair import requested
from tests.instance.fix_destination import Captured, running
from tests.waiting import wait_for

FACTS = ServerFacts(
    version="8.0.31",
    mariadb=False,
    server_uuid="one",
    gtid_enabled=False,
    file="binlog.000006",
    logs=tuple(BinaryLog(file=f"binlog.00000{number}", size_bytes=900) for number in (5, 6)),
    variables={"server_id": "7"},
)
CONSUMER = 1001
CURSOR = Position(epoch=1, file="binlog.000003", offset=700, server_uuid="one", file_created=1000)


class Archived(Captured):
    """Provides a destination whose source's binlog files are archived in a folder: plain, with gzip, and in tar files."""

    def keep(self, folder: Path) -> list[str]:
        """Copies all binlog files except the last one into the folder, purges them from the source, and returns the names of all files."""
        base = Path(str(requested(self.server, "SELECT @@log_bin_basename")[0][0]))
        names = [str(row[0]) for row in requested(self.server, "SHOW BINARY LOGS")]
        folder.mkdir()
        for number, name in enumerate(names[:-1]):
            _packed(base.parent / name, folder, number % 3)
        wait_for("all but the last are purged", lambda: self._purged(names[-1]))
        return names

    def _purged(self, file: str) -> bool:
        """Purges the files before `file`, and returns whether `file` is the first one now. The server keeps a file as long as a dump thread
        has it open.
        """
        self.run(f"PURGE BINARY LOGS TO '{file}'")
        return str(requested(self.server, "SHOW BINARY LOGS")[0][0]) == file

    def refused(self, words: str) -> None:
        with running(self) as engine:
            wait_for("it is refused", lambda: engine.status().state == "POSITION_LOST")
            assert words in engine.status().reason


def _packed(file: Path, folder: Path, way: int) -> None:
    if way == 0:
        shutil.copy(file, folder / file.name)
    elif way == 1:
        with gzip.open(folder / f"{file.name}.gz", "wb") as packed:
            packed.write(file.read_bytes())
    else:
        with tarfile.open(folder / f"{file.name}.tar", "w") as packed:
            packed.add(file, arcname=f"backup/{file.name}")


@pytest.mark.servers
@pytest.mark.parametrize(
    ("version", "options"),
    [
        ("mysql-8.0.31", {}),
        ("mysql-8.0.31", {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}),
        ("mariadb-11.4.5", {}),
    ],
    ids=["mysql", "mysql-without-gtids", "mariadb"],
)
def test_failover_what_is_purged_comes_from_the_archive_and_then_from_the_server(
    version: str, options: dict[str, str], fresh_server: ServerFactory, tmp_path: Path
) -> None:
    captured = Archived(tmp_path, fresh_server(version, options))
    consumers = f"canal_server: {{port: {free_port()}}}"
    captured.describe(consumers)
    with running(captured) as engine:
        engine.consumers.subscribe(CONSUMER)
        captured.insert(range(3))
        assert captured.take(engine, 3) == [0, 1, 2]
    written_us = time.time_ns() // 1000
    begun_us = wait_for("the time is one on offer", lambda: _now_on_offer(captured, written_us))
    for number in range(3, 7):
        captured.insert([number])
        captured.run("FLUSH BINARY LOGS")
    captured.insert([7])
    names = captured.keep(tmp_path / "archive")
    captured.refused("purged")
    captured.describe("archive: archive", consumers)
    begin = read_ledger(captured.directory).cursor
    assert begin is not None
    needed = names[names.index(begin.file) + 1]
    (kept,) = (tmp_path / "archive").glob(f"{needed}*")
    hidden = kept.rename(tmp_path / kept.name)
    captured.refused(f"lacks the file with number {int(needed.rpartition('.')[2])}")
    foreign_file = tmp_path / "archive" / needed
    foreign_file.write_bytes(b"\xfebin" + bytes(200))
    captured.refused("is not a binlog file")
    foreign_file.unlink()
    hidden.rename(kept)
    with running(captured) as engine:
        assert captured.take(engine, 5) == [3, 4, 5, 6, 7]
        assert taken(engine.consumers.service(CONSUMER), 8) == [*range(8)], "it is behind the lake, and reads alone"
        captured.insert([8])
        assert captured.take(engine, 1) == [8]
        assert engine.status().state == "RUNNING"
        assert not engine.status().stopped_tables
    assert captured.saved_epoch() == 1, "it is one stream"
    _set_to_the_archive(captured, begin, begun_us)
    _backfilled_from_the_archive(captured, names, begun_us)


def _set_to_the_archive(captured: Archived, begin: Position, begun_us: int) -> None:
    """Checks that `sluice position set` finds positions that only the archive has: an offset in a file, a file, a time. The command refuses
    positions that no file has.
    """

    def move(location: str = "", moment: str = "") -> Position:
        wanted = request(location, "", latest=False, moment=moment)
        return move_to(captured.config, "shop", wanted, confirm=lambda _: True, say=lambda _: None)

    with pytest.raises(PositionLostError, match="is after the end of the archived file"):
        move(f"{begin.file}:{10**9}")
    assert move(begin.file).file == begin.file
    moment = dt.datetime.fromtimestamp(begun_us / 1e6, dt.UTC).isoformat()
    assert move(moment=moment).order_key <= begin.order_key
    set_to = move(f"{begin.file}:{begin.offset}")
    assert (set_to.file, set_to.offset, set_to.epoch) == (begin.file, begin.offset, 1)
    with running(captured) as engine:
        assert captured.take(engine, 6) == [3, 4, 5, 6, 7, 8]
        assert engine.status().state == "RUNNING"
    assert captured.saved_epoch() == 1
    with pytest.raises(PositionLostError, match=r"binlog\.000099"):
        move("binlog.000099:4")


def _now_on_offer(captured: Archived, written_us: int) -> int:
    """Returns the current time in µs if a backfill may begin at it, and otherwise 0. The time must be at least a second after the start of
    the server's first file. It must be in a later second than `written_us`, because MariaDB logs whole seconds.
    """
    now_us = time.time_ns() // 1000
    earliest_us, _ = earliest_on_offer(binlog_files(captured.config.destinations["shop"]))
    return now_us if earliest_us + 10**6 <= now_us and now_us // 10**6 > written_us // 10**6 else 0


def _backfilled_from_the_archive(captured: Archived, names: list[str], from_us: int) -> None:
    """Checks that a backfill can begin at the oldest file of the archive, and that a file of another server is refused."""
    config, directory = captured.config.destinations["shop"], captured.directory
    earliest_us, file = earliest_on_offer(binlog_files(config))
    assert file == names[0]
    now_us = earliest_us + 10**12
    made = make_plan(config, directory, RequestedInterval(from_us=from_us), now_us)
    (numbers,) = [each for each in made.tables if each.name.endswith(".numbers")]
    assert (numbers.refused, made.earliest_file, made.counted) == ("", file, True)
    assert made.files[0] in names[:-1]
    assert 6 <= numbers.changes <= 9, "MariaDB tells whole seconds, which the three before may share"
    (first,) = (captured.conf.parent / "archive").glob(f"{file}*")
    first.unlink()
    other = b"\xfebin" + struct.pack("<IBIIIH", 1, 15, 999, 19, 23, 0)
    (captured.conf.parent / "archive" / file).write_bytes(other)
    with pytest.raises(PositionLostError, match="the server id 999, and the source has the server id"):
        make_plan(config, directory, RequestedInterval(from_us=earliest_us), now_us)


@pytest.mark.parametrize(
    ("archived", "words"),
    [
        (("binlog.000003", "binlog.000004"), ""),
        (("binlog.000003", "binlog.000004", "binlog.000005", "other.000001"), ""),
        (("binlog.000003",), "lacks the file with number 4 of binlog"),
        (("binlog.000004",), "lacks the file with number 3 of binlog"),
        ((), "lacks the file with number 3 of binlog"),
    ],
    ids=["all", "more", "gap-after", "gap-before", "none"],
)
def test_failover_an_archive_has_no_gap_up_to_the_servers_first_file(archived: tuple[str, ...], words: str) -> None:
    found = files_between(CURSOR, archived, FACTS, "/archive")
    if words:
        assert isinstance(found, Lost)
        assert words in found.reason
    else:
        assert found == ("binlog.000003", "binlog.000004")


@pytest.mark.parametrize(
    ("archived", "first", "found"),
    [
        ((3, 4), "binlog.000005", (3, 4)),
        ((1, 3, 4, 5), "binlog.000005", (3, 4)),
        ((3,), "binlog.000005", ()),
        ((3, 4), "other.000005", ()),
        ((3, 4), "", ()),
    ],
    ids=["all", "gap", "gap-at-the-end", "another-name", "no-file"],
)
def test_failover_an_archive_reaches_back_to_its_first_gap_backfill(
    archived: tuple[int, ...], first: str, found: tuple[int, ...]
) -> None:
    logs = [BinaryLog(file=f"binlog.00000{number}", size_bytes=9) for number in archived]
    assert [int(each.file[-1]) for each in archived_before(logs, first)] == list(found)


def test_failover_a_foreign_file_is_refused_by_name() -> None:
    header = Header(description=b"", created=1000, server_id=7)
    assert foreign(header, "binlog.000003", 1000, FACTS) == ""
    assert foreign(header, "binlog.000003", 0, FACTS) == ""
    assert "created at 1000, and the file that the engine read was created at 900" in foreign(
        header, "binlog.000003", 900, FACTS
    )
    other = Header(description=b"", created=1000, server_id=8)
    assert "the server id 8, and the source has the server id 7" in foreign(other, "binlog.000003", 1000, FACTS)


@pytest.mark.parametrize("checksum", [True, False], ids=["crc32", "none"])
def test_failover_a_copy_that_was_made_too_early_is_not_whole(checksum: bool) -> None:
    rotate = rotate_to("binlog.000004", checksum=checksum)
    assert len(rotate) == len(rotate_to("binlog.000004", checksum=False)) + 4 * checksum
    assert is_closed(b"events" * 9 + rotate, "binlog.000004")
    assert not is_closed(b"events" * 9 + rotate, "binlog.000005")
    assert not is_closed(b"events" * 9 + rotate[:-1], "binlog.000004")
    assert not is_closed(rotate + b"events" * 9, "binlog.000004")
    assert not is_closed(b"", "binlog.000004")
    size = 19 + 4 * checksum
    stop = struct.pack("<IBIIIH", 0, 3, 7, size, 900, 0) + bytes(4 * checksum)
    assert is_closed(b"events" * 9 + stop, "binlog.000004")
