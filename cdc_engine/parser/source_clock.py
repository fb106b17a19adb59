"""What time it is at a source, and where its binlog ended right after that: who has read up to there has all until then. For groups."""

from __future__ import annotations

import dataclasses
import re

from cdc_engine.errors import SourceConnectionError
from cdc_engine.parser.connection import SourceConnection
from cdc_engine.parser.server_facts import ServerFacts
from cdc_engine.parser.watch import StreamPlace, has_read

SECOND_US = 1_000_000
COMMIT_TIMES_SINCE = 8  # MySQL's version whose binlog says commit times in microseconds
# MySQL from `RENAMED_SINCE` on is asked the second first: it is asked again and again, and what it does not understand counts as an error.
END = ("SHOW MASTER STATUS", "SHOW BINARY LOG STATUS")
RENAMED_SINCE = "8.2"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClockAnswer:
    """`now_us`: the source's clock, in µs since 1970. `before_us`: the same, cut to the precision of the times in its binlog. `end`: of its
    binlog after that.
    """

    now_us: int
    before_us: int
    end: ServerFacts

    def holds(self, place: StreamPlace | None) -> bool:
        """Whether a stream that is at a place has read all that was committed before `before_us`."""
        if place is None:
            return False
        ours = place.position.server_uuid in ("", self.end.server_uuid)
        return ours and has_read(place, self.end)


def begin_asking(connection: SourceConnection) -> None:
    """Once a connection, before `ask_clock`: an hour that the clock shows twice has no time of its own. Raises SourceConnectionError."""
    connection.rows("SET time_zone = '+00:00'")


def ask_clock(connection: SourceConnection) -> ClockAnswer:
    """Raises SourceConnectionError, also where the account may not ask where the binlog ends."""
    uuid = "CONCAT('mariadb-', @@server_id)" if connection.mariadb else "@@server_uuid"
    told = connection.rows(f"SELECT UNIX_TIMESTAMP(NOW(6)) AS now, {uuid} AS uuid")[0]
    renamed = not connection.mariadb and _number(connection.server_version) >= _number(RENAMED_SINCE)
    # After the time: what was committed before that is before this end.
    status = connection.first_of(*(reversed(END) if renamed else END))
    if not status:
        raise SourceConnectionError(
            f"{connection.source.address} does not say where its binlog ends: the user {connection.source.user} needs REPLICATION CLIENT"
        )
    now_us, version = int(told["now"] * SECOND_US), connection.server_version
    in_seconds = connection.mariadb or _number(version) < (COMMIT_TIMES_SINCE,)
    end = ServerFacts(
        version=version,
        mariadb=connection.mariadb,
        server_uuid=str(told["uuid"]),
        gtid_enabled=False,
        file=str(status[0]["File"]),
        offset=int(status[0]["Position"]),
    )
    return ClockAnswer(now_us=now_us, before_us=now_us - now_us % SECOND_US if in_seconds else now_us, end=end)


def _number(version: str) -> tuple[int, ...]:
    """Of "8.4.3-log" (8, 4)."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else ()
