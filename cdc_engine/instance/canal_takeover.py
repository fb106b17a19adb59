"""Finds where a destination that replaces Canal starts: at the cursor that Canal left in ZooKeeper. `begin` calls this module once, at the
first start.

Canal's cursor is within the transaction that Canal's client acked last. If the cursor has a GTID set and the source has GTIDs, the stream
begins after this set. Otherwise the stream begins at the start of the second in which the transaction was committed, because the lake needs
the whole transaction. If the cursor has no time, the stream begins at the start of the cursor's file. In these two cases, the stream may
repeat transactions that Canal's client got before. The lake does not have them yet, because it is empty.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import structlog

from sluice.cdc_engine.contracts import ClientIdentity
from sluice.cdc_engine.errors import ConfigurationError, MetaError
from sluice.cdc_engine.meta import canal_cursor
from sluice.cdc_engine.parser.start_position import StartChoice
from sluice.cdc_engine.records.location import as_location
from sluice.extras import Extra, require

log = structlog.get_logger()


def cursor_of_canal(directory: Path) -> str | None:
    """Returns the cursor that Canal left in ZooKeeper, as text. Returns None if Canal left no cursor, or if the destination has no
    ZooKeeper. Raises MetaError if ZooKeeper does not answer.
    """
    location = as_location(directory)
    if location.kind != "zookeeper":
        return None
    require(Extra.ZOOKEEPER, ConfigurationError)
    from sluice.cdc_engine.records.zookeeper import ZooKeeperRecordStore  # noqa: PLC0415  most destinations do without kazoo

    client_id = ClientIdentity(destination=location.destination).client_id
    store = ZooKeeperRecordStore(location.zookeeper, location.destination, location.session_seconds)
    return store.canal(f"{client_id}/cursor") or None


def choice_after(text: str, *, by_gtid: bool, at_time: Callable[[int], StartChoice]) -> StartChoice:
    """Converts the text of Canal's cursor to the position where the stream starts. If the cursor has a GTID set and `by_gtid` is True (the
    source has GTIDs), uses the GTID set. In all other cases, calls `at_time` with the cursor's time in µs since 1970, or, if the cursor has
    no time, returns the beginning of the cursor's file.

    Raises MetaError if the text cannot be parsed. `at_time` raises PositionLostError if the binlog of that time is purged.
    """
    try:
        cursor = canal_cursor.from_text(text)
    except ValueError as error:
        raise MetaError(
            f"Canal's cursor in ZooKeeper cannot be read: {error}. To begin at the start position in conf/ instead, remove the node "
            "`/otter/canal/destinations/<destination>/1001/cursor`"
        ) from error
    log.info("taken_over_from_canal", file=cursor.file, offset=cursor.offset, gtid_set=cursor.gtid_set)
    if cursor.gtid_set and by_gtid:
        return StartChoice(gtid_set=cursor.gtid_set)
    if cursor.time_ms:
        return at_time(cursor.time_ms * 1000)
    return StartChoice(file=cursor.file)
