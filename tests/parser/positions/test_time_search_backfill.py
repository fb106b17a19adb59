"""Tests the search for the binlog position of a time on real servers: across files, within one file, after the end, and in purged files."""

from __future__ import annotations

import contextlib
import dataclasses
import time

import pytest

from sluice.cdc_engine.errors import PositionLostError
from sluice.cdc_engine.parser.connection import SourceConnection
from sluice.cdc_engine.parser.positions.binlog_files import BinlogFiles
from sluice.cdc_engine.parser.positions.time_search import choice_at
from sluice.cdc_engine.parser.server_facts import ServerFacts, read_facts
from sluice.cdc_engine.parser.start_position import StartChoice
from sluice.cdc_engine.time_text import time_us
from sluice.console.toolchain.database.server import DatabaseServer
from tests.parser.recording import capturing, source_of
from tests.rotation import begin_file

pytestmark = pytest.mark.servers

SECOND_US = 1_000_000


@dataclasses.dataclass(frozen=True)
class Committed:
    """A row's transaction: when it committed, and the position and executed set at its end."""

    seconds: int
    file: str
    offset: int
    executed: str


class Clocked:
    """Writes rows and begins binlog files at given times. The times are in seconds after `base`."""

    def __init__(self, server: DatabaseServer) -> None:
        self.server, self.mariadb = server, "mariadb" in server.version
        self.base = int(time.time()) + 100_000  # The times are later than everything that other tests wrote.

    def facts(self) -> ServerFacts:
        with contextlib.closing(SourceConnection(source_of(self.server))) as connection:
            return read_facts(connection)

    def files(self) -> BinlogFiles:
        return BinlogFiles(source_of(self.server), self.facts())

    def file(self, seconds: int) -> None:
        begin_file(self.server, *self._clock(seconds))

    def row(self, number: int, seconds: int) -> Committed:
        self._at(seconds, f"INSERT INTO shop.orders VALUES ({number}, '')")
        facts = self.facts()
        return Committed(self.base + seconds, facts.file, facts.offset, facts.executed)

    def position(self, seconds: float) -> StartChoice:
        return choice_at(self.files(), int((self.base + seconds) * SECOND_US))

    def _at(self, seconds: int, statement: str) -> None:
        with self.server.connect() as connection, connection.cursor() as cursor:
            for each in (*self._clock(seconds), statement):
                cursor.execute(each)

    def _clock(self, seconds: int) -> list[str]:
        moment = self.base + seconds
        times = [f"SET TIMESTAMP = {moment}"]
        if not self.mariadb:  # MariaDB writes its own commit times, but not the time of the first commit.
            times.append(f"SET original_commit_timestamp = {moment * SECOND_US + 1}")
        return times


def test_the_position_of_a_time_is_before_the_first_transaction_of_then_or_later_backfill(shop: DatabaseServer) -> None:
    clock = Clocked(shop)
    clock.file(0)
    zero, one = clock.row(0, 10), clock.row(1, 20)
    clock.file(100)
    two, three, four = clock.row(2, 110), clock.row(3, 120), clock.row(4, 115)
    cases = [
        (5, None, zero),
        (10, None, zero),
        (12, zero, one),
        (20, zero, one),
        (50, one, two),
        (100, one, two),
        (105, one, two),
        (115, two, three),
        (121, four, None),
        (90_000, four, None),
    ]
    for seconds, before, after in cases:
        position = clock.position(seconds)
        assert after is None or (position.file, position.offset) < (after.file, after.offset), seconds
        # The end of the file is not compared, because MariaDB adds checkpoints to it at any time.
        assert before is None or position.executed == before.executed, seconds


def test_a_stream_from_the_position_of_a_time_has_what_committed_then_or_later_backfill(shop: DatabaseServer) -> None:
    clock = Clocked(shop)
    clock.file(0)
    for number, seconds in enumerate((10, 20, 30)):
        clock.row(number, seconds)
    with capturing(source_of(shop), choice=clock.position(20)) as capture:
        capture.sink.wait_for_rows(2)
        assert len(capture.sink.events) == 2
        assert capture.parser.position is not None
        assert capture.parser.position.gtid_set == clock.facts().executed


def test_a_time_that_is_gone_is_refused_with_the_earliest_that_is_taken_backfill(shop: DatabaseServer) -> None:
    clock = Clocked(shop)
    facts = clock.facts()
    with pytest.raises(PositionLostError, match="the earliest time that can be read is") as gone:
        choice_at(clock.files(), 1)
    said = str(gone.value)
    assert facts.logs[0].file in said
    earliest = said.split("the earliest time that can be read is ")[1].split(",", maxsplit=1)[0]
    assert choice_at(clock.files(), time_us(earliest, 0)).file


def test_the_search_ends_no_stream_that_runs_backfill(shop: DatabaseServer) -> None:
    clock = Clocked(shop)
    clock.file(0)
    with capturing(source_of(shop)) as capture:
        clock.row(0, 10)
        capture.sink.wait_for_rows(1)
        clock.position(5)
        clock.row(1, 20)
        capture.sink.wait_for_rows(2)
        assert capture.parser.counters.connections == 1
