"""Decides by GTIDs which transactions a read on a replica (setting `reader`) shows, waits until the replica has executed missing
transactions, and refuses a replica that cannot be used. The callers query the servers.

A replica adds a GTID to its executed set (gtid_executed of MySQL, gtid_slave_pos of MariaDB) after the storage engine has committed the
transaction. So a read shows all transactions of a set that was queried before the read began. The read shows no transaction after the end
of the source's binlog, if this end was queried after the read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.gtid import has_executed

WAIT_SECONDS_MAX = 60.0  # A read fails if the replica has not executed the needed transactions within this time.
POLL_SECONDS = 0.2
pause = time.sleep  # The function that waits between two queries. Tests replace it.
# Whether the server is MariaDB → the query for a replica's executed set, and the query for a server's identity.
EXECUTED = {True: "SELECT @@GLOBAL.gtid_slave_pos AS executed", False: "SELECT @@GLOBAL.gtid_executed AS executed"}
IDENTITY = {True: "SELECT @@GLOBAL.server_id AS identity", False: "SELECT @@GLOBAL.server_uuid AS identity"}
STATUS = ("SHOW REPLICA STATUS", "SHOW SLAVE STATUS")
FILTERS = "replicate_"  # The prefix of the status columns that show replication filters.
NO_FILTERS = frozenset({"replicate_ignore_server_ids"})


def one_line(gtid_set: object) -> str:
    """Returns a GTID set without the line breaks with which servers send it."""
    return str(gtid_set or "").replace("\n", "")


def shows(address: str, executed: str, wanted: str) -> bool:
    """Returns whether a replica that has executed the GTID set `executed` has all transactions of `wanted`. Raises ConfigurationError if
    one of the sets is empty, which means that the server has no GTIDs.
    """
    if not executed or not wanted:
        raise ConfigurationError(
            f"{address} (`reader`) cannot be read: without GTIDs on the source and on the replica Sluice "
            "cannot find out how far the replica is; enable GTIDs on both servers, or remove `reader`"
        )
    return has_executed(executed, wanted)


def still_behind(address: str, executed: Callable[[], str], wanted: str) -> str:
    """Waits until a replica has executed all transactions of the GTID set `wanted`, and returns "". After WAIT_SECONDS_MAX, returns a
    message that says what is missing. `executed` queries the replica's executed set. Raises ConfigurationError if one of the two sets is
    empty, and the errors of `executed`.
    """
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not shows(address, there := executed(), wanted):
        if time.monotonic() >= deadline:
            return _behind(address, there, wanted)
        pause(POLL_SECONDS)
    return ""


def _behind(address: str, executed: str, wanted: str) -> str:
    return (
        f"{address} (`reader`) has executed {executed} after {WAIT_SECONDS_MAX:.0f} s, and the read needs "
        f"{wanted}: the replica is behind; find out what delays the replica, or remove `reader`"
    )


def filters_of(status: Mapping[str, object]) -> list[str]:
    """Returns the replication filters in a row of a replica's status. A replica with filters may lack rows, although its executed set has
    all transactions.
    """
    named = {name.lower(): str(value or "") for name, value in status.items()}
    return [
        f"{name} = {value}"
        for name, value in named.items()
        if name.startswith(FILTERS) and value and name not in NO_FILTERS
    ]
