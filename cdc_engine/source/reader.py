"""Decides by GTIDs which transactions a read on the replica `reader` shows, waits for those that it lacks, and refuses a replica that
cannot be read. Its callers query the server.

A replica adds a GTID to its set (gtid_executed of MySQL, gtid_slave_pos of MariaDB) after the storage engine's commit. So a read that
begins after the set was queried shows all transactions of the set. It shows nothing after the end that the source's binlog has at a later
time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.gtid import has_executed

WAIT_SECONDS_MAX = 60.0  # The longest wait for a replica that has not executed what is needed.
POLL_SECONDS = 0.2
pause = time.sleep  # A test replaces it.
# Whether the server is a MariaDB → the query.
EXECUTED = {True: "SELECT @@GLOBAL.gtid_slave_pos AS executed", False: "SELECT @@GLOBAL.gtid_executed AS executed"}
IDENTITY = {True: "SELECT @@GLOBAL.server_id AS identity", False: "SELECT @@GLOBAL.server_uuid AS identity"}
STATUS = ("SHOW REPLICA STATUS", "SHOW SLAVE STATUS")
FILTERS = "replicate_"  # Prefix of the status columns that contain replication filters.
NO_FILTERS = frozenset({"replicate_ignore_server_ids"})


def one_line(gtid_set: object) -> str:
    """Returns a GTID set as the server sent it, without line ends."""
    return str(gtid_set or "").replace("\n", "")


def shows(address: str, executed: str, wanted: str) -> bool:
    """Returns whether a replica that has executed the GTID set `executed` shows all transactions of `wanted`. Raises ConfigurationError if
    one of them is empty, because a server has no GTIDs.
    """
    if not executed or not wanted:
        raise ConfigurationError(
            f"{address} (`reader`) cannot be read: without GTIDs on the source and on the replica nothing shows how far the replica is; "
            "enable GTIDs on both, or remove `reader`"
        )
    return has_executed(executed, wanted)


def still_behind(address: str, executed: Callable[[], str], wanted: str) -> str:
    """Waits until a replica shows all transactions of `wanted`. Returns a sentence if it stays behind; empty if it does not. `executed`:
    queries the GTID set that the replica has executed. Raises what `shows` and `executed` raise.
    """
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not shows(address, there := executed(), wanted):
        if time.monotonic() >= deadline:
            return _behind(address, there, wanted)
        pause(POLL_SECONDS)
    return ""


def _behind(address: str, executed: str, wanted: str) -> str:
    return (
        f"{address} (`reader`) has executed {executed} after {WAIT_SECONDS_MAX:.0f} s, and {wanted} is needed: the replica is behind; find "
        "out what delays it, or remove `reader`"
    )


def filters_of(status: Mapping[str, object]) -> list[str]:
    """Returns the replication filters in one row of a replica's status. With filters it lacks rows, and its GTIDs do not show that."""
    named = {name.lower(): str(value or "") for name, value in status.items()}
    return [
        f"{name} = {value}"
        for name, value in named.items()
        if name.startswith(FILTERS) and value and name not in NO_FILTERS
    ]
