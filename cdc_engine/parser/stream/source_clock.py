"""Reads the time of a source's clock, and then the end of the source's binlog. A stream that has reached this end has everything that was
committed before this time.

Groups of destinations use this module to order the transactions of their members by time.
"""

from __future__ import annotations

import dataclasses
import re

from sluice.cdc_engine.errors import SourceConnectionError
from sluice.cdc_engine.parser.connection import SourceConnection
from sluice.cdc_engine.parser.server_facts import ServerFacts
from sluice.cdc_engine.parser.stream.watch import StreamState, has_read

SECOND_US = 1_000_000
COMMIT_TIMES_SINCE = 8  # From this major version on, the binlog of MySQL has commit times in microseconds.
# Statements that return the end of the binlog: before and since MySQL 8.2 (RENAMED_SINCE). The one that the server probably knows is sent
# first, because the query is frequent and the server counts every unknown statement as an error.
END = ("SHOW MASTER STATUS", "SHOW BINARY LOG STATUS")
RENAMED_SINCE = "8.2"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClockAnswer:
    """The time of a source's clock, and the end of the source's binlog, which was read after the time. `now_us` is the time in µs since
    1970. `before_us` is `now_us`, rounded down to the precision of the commit times in the binlog.
    """

    now_us: int
    before_us: int
    end: ServerFacts

    def holds(self, stream_state: StreamState | None) -> bool:
        """Returns whether a stream has read everything that was committed before `before_us`."""
        if stream_state is None:
            return False
        ours = stream_state.position.server_uuid in ("", self.end.server_uuid)
        return ours and has_read(stream_state, self.end)


def use_utc(connection: SourceConnection) -> None:
    """Sets the session's time zone to UTC, because a local time is ambiguous in the hour that repeats when summer time ends. Call it once
    per connection, before `read_clock`. Raises SourceConnectionError.
    """
    connection.rows("SET time_zone = '+00:00'")


def read_clock(connection: SourceConnection) -> ClockAnswer:
    """Reads the source's clock, then the end of its binlog. Raises SourceConnectionError if the connection fails, or if the account may not
    read the end of the binlog.
    """
    uuid = "CONCAT('mariadb-', @@server_id)" if connection.mariadb else "@@server_uuid"
    answer = connection.rows(f"SELECT UNIX_TIMESTAMP(NOW(6)) AS now, {uuid} AS uuid")[0]
    renamed = not connection.mariadb and _number(connection.server_version) >= _number(RENAMED_SINCE)
    # The end of the binlog is read after the time. So everything that was committed before the time is before the end.
    status = connection.first_of(*(reversed(END) if renamed else END))
    if not status:
        raise SourceConnectionError(
            f"{connection.source.address} did not report the end of its binlog: grant REPLICATION CLIENT to "
            f"the user {connection.source.user}"
        )
    now_us, version = int(answer["now"] * SECOND_US), connection.server_version
    in_seconds = connection.mariadb or _number(version) < (COMMIT_TIMES_SINCE,)
    end = ServerFacts(
        version=version,
        mariadb=connection.mariadb,
        server_uuid=str(answer["uuid"]),
        gtid_enabled=False,
        file=str(status[0]["File"]),
        offset=int(status[0]["Position"]),
    )
    return ClockAnswer(now_us=now_us, before_us=now_us - now_us % SECOND_US if in_seconds else now_us, end=end)


def _number(version: str) -> tuple[int, ...]:
    """Returns the major and minor version, for example (8, 4) for "8.4.3-log"."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else ()
