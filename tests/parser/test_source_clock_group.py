"""Tests how Sluice reads the clock of a source and then the end of its binlog: how it queries each server, and when a stream has read
everything up to this end.
"""

from __future__ import annotations

import dataclasses
import time
from decimal import Decimal
from typing import Any

import pytest

from sluice.cdc_engine.errors import SourceConnectionError
from sluice.cdc_engine.parser.connection import SourceConnection
from sluice.cdc_engine.parser.server_facts import read_facts
from sluice.cdc_engine.parser.stream.source_clock import read_clock, use_utc
from sluice.cdc_engine.parser.stream.watch import StreamState
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.source.server import Source
from tests.parser.recording import source_of

EAST = Source(destination="east", host="h", port=3306, user="u")
NOW_US = 1_700_000_000_123_456


@dataclasses.dataclass
class Connection:
    """Answers queries like a server. `queries` has the queries in their order."""

    server_version: str
    may_read_end: bool = True
    queries: list[str] = dataclasses.field(default_factory=list)
    source: Source = EAST

    @property
    def mariadb(self) -> bool:
        return "MariaDB" in self.server_version

    def rows(self, sql: str) -> list[dict[str, Any]]:
        self.queries.append(sql)
        return [{"now": Decimal(NOW_US) / 1_000_000, "uuid": "mariadb-1" if self.mariadb else "a"}]

    def first_of(self, *statements: str) -> list[dict[str, Any]]:
        self.queries.append(statements[0])
        return [{"File": "bin.000004", "Position": 400}] if self.may_read_end else []


@pytest.mark.parametrize(
    ("version", "end", "before_us"),
    [
        ("8.0.31", "SHOW MASTER STATUS", NOW_US),
        ("8.4.3-log", "SHOW BINARY LOG STATUS", NOW_US),
        ("5.7.22-log", "SHOW MASTER STATUS", NOW_US - NOW_US % 1_000_000),
        ("11.4.5-MariaDB-log", "SHOW MASTER STATUS", NOW_US - NOW_US % 1_000_000),
    ],
)
def test_group_the_time_is_read_before_the_end_and_truncated_to_the_seconds_of_the_binlog(
    version: str, end: str, before_us: int
) -> None:
    connection = Connection(version)
    answer = read_clock(connection)  # type: ignore[arg-type]
    assert connection.queries[0].startswith("SELECT UNIX_TIMESTAMP(NOW(6))")
    assert connection.queries[1] == end
    assert (answer.now_us, answer.before_us) == (NOW_US, before_us)


def test_group_an_account_that_may_not_read_the_end_gets_the_missing_privilege() -> None:
    with pytest.raises(SourceConnectionError, match="grant REPLICATION CLIENT"):
        read_clock(Connection("8.0.31", may_read_end=False))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("uuid", "file", "offset", "holds"),
    [
        ("a", "bin.000004", 400, True),
        ("a", "bin.000005", 157, True),
        ("a", "bin.000004", 399, False),
        ("b", "bin.000004", 400, False),
    ],
)
def test_group_a_stream_has_all_until_then_once_it_has_come_to_that_end_of_that_server(
    uuid: str, file: str, offset: int, holds: bool
) -> None:
    answer = read_clock(Connection("8.0.31"))  # type: ignore[arg-type]
    position = Position(epoch=1, file="bin.000003", offset=4, server_uuid=uuid)
    stream_state = StreamState(position=position, file=file, offset=offset, bytes=0)
    assert answer.holds(stream_state) is holds
    assert not answer.holds(None)


@pytest.mark.servers
@pytest.mark.parametrize("name", ["mysql57", "mysql80", "mariadb114"])
def test_group_the_clock_of_a_real_server_is_its_time_and_the_end_that_its_stream_comes_to(
    name: str, request: pytest.FixtureRequest
) -> None:
    connection = SourceConnection(source_of(request.getfixturevalue(name)))
    try:
        use_utc(connection)
        begun = time.time()
        answer = read_clock(connection)
        facts = read_facts(connection)
    finally:
        connection.close()
    assert begun - 2 < answer.now_us / 1e6 < time.time() + 2
    assert 0 <= answer.now_us - answer.before_us < 1_000_000
    assert (answer.end.server_uuid, answer.end.file) == (facts.server_uuid, facts.file)
    assert answer.end.offset <= facts.offset
    stream_state = StreamState(
        position=Position(epoch=1, file=facts.file, offset=4, server_uuid=facts.server_uuid),
        file=facts.file,
        offset=facts.offset,
        bytes=0,
    )
    assert answer.holds(stream_state)
