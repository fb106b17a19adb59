"""Finds by commit time where the stream continues on another server after a failover, if one of the two servers has no GTIDs. The stream
continues some seconds before the last event that was read (the setting `failover_back_seconds`).

The changes of these seconds are read twice. So only destinations with `failover: by_time` continue in this way, and tables to which a
change cannot be applied twice are stopped (`instance.failover.by_time`). If the binlog of the new source has no commit at the time of the
last event that was read or later, the new source lacks changes, and the parser waits for these changes.

The stream cannot continue by time in the following cases:

- These seconds contain a statement that changes a captured table: rows from before the statement would be decoded with the columns that the
  table has after the statement, and a rename would happen twice.
- These seconds contain the commit of an XA transaction whose XA PREPARE, which has the rows, is before these seconds.
- The new source writes row images without all columns (binlog_row_image is not FULL): if two rows had the same key one after the other, the
  values of both rows would be mixed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from sluice.cdc_engine.contracts import LoggedStatement
from sluice.cdc_engine.errors import PositionLostError
from sluice.cdc_engine.parser.file_creation import creation_of
from sluice.cdc_engine.parser.positions.binlog_files import BinlogFiles
from sluice.cdc_engine.parser.positions.time_search import SearchedInterval, choice_at, read_again
from sluice.cdc_engine.parser.server_facts import ServerFacts
from sluice.cdc_engine.parser.start_position import RESNAPSHOT, DumpStart, Epochs, Lost, StartChoice, in_new_epoch
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.time_text import SECOND_US, time_text

Changed = Callable[[LoggedStatement], str]
MASTER_BACK = "restore the server from which the engine read"


def start_by_time(
    source: Source, changed: Changed, cursor: Position, facts: ServerFacts, epochs: Epochs, *, back_seconds: int
) -> DumpStart | Lost:
    """Returns where the stream starts on the server that `facts` describes, in a new epoch: `back_seconds` before the cursor's commit time.
    Returns `Lost` with the reason if the stream cannot start there.

    `changed` returns the captured table that a statement may have changed, or "". Raises SourceConnectionError if the server does not
    answer, and BinlogFormatError if the binlog cannot be parsed.
    """
    if not cursor.time_us:
        return Lost(
            reason=(
                f"the cursor {cursor} has no commit time, so no position in {source.address} can be found by "
                "commit time"
            )
        )
    image = facts.variables.get("binlog_row_image", "FULL").upper()
    if image != "FULL":
        return not_twice(
            source.address,
            back_seconds,
            f"binlog_row_image of {source.address} is {image}. Row images without all columns could mix the "
            "values of two rows if a key has changed",
        )
    try:
        files = BinlogFiles(source, facts)
        position = choice_at(files, cursor.time_us - back_seconds * SECOND_US)
        interval = read_again(files, position, cursor.time_us)
    except PositionLostError as error:
        return Lost(reason=str(error))
    if not interval.reached:
        return behind(source.address, cursor, facts)
    if why := not_repeatable(interval, changed):
        return not_twice(source.address, back_seconds, why)
    created = creation_of(source, position.file)
    return in_new_epoch(started(position, cursor, facts, created, back_seconds), cursor, epochs)


def behind(address: str, cursor: Position, facts: ServerFacts) -> Lost:
    """Returns `Lost` for a standby source whose binlog has no commit at the cursor's commit time or later."""
    return Lost(
        reason=f"{address} lacks changes that the engine has read: its binlog ends at {facts.file}:{facts.offset} "
        f"and has no commit of {time_text(cursor.time_us)} or later, but the engine has read commits up to this time "
        f"({cursor}). The server is a replica that is behind, or these changes were lost with the old primary "
        "server",
        options=("wait until the replica has caught up", MASTER_BACK, RESNAPSHOT),
        not_yet=True,
    )


def not_twice(address: str, back_seconds: int, why: str) -> Lost:
    return Lost(
        reason=f"without GTIDs, the stream could continue on {address} only by commit time, and would read the changes of the "
        f"last {back_seconds} s twice. These changes cannot be applied twice: {why}",
        options=(MASTER_BACK, RESNAPSHOT),
    )


def not_repeatable(interval: SearchedInterval, changed: Changed) -> str:
    """Returns a sentence about the first change in the interval that cannot be applied twice, or "" if there is none."""
    table = next((name for each in interval.statements if (name := changed(each))), "")
    if table:
        return (
            f"a statement in the interval that would be read again changed {table}, and earlier rows would be "
            "decoded with the columns and names after that statement"
        )
    if interval.commits:
        return (
            f"the XA transaction {interval.commits[0]} was committed in the interval that would be read again, "
            "and its rows are before that interval"
        )
    return ""


def started(found: StartChoice, cursor: Position, facts: ServerFacts, created: int, back_seconds: int) -> DumpStart:
    """Returns the start of the stream at the position that a search found. The position gets the cursor's epoch, which the caller then
    replaces by a new epoch.
    """
    position = dataclasses.replace(
        cursor,
        file=found.file,
        offset=found.offset,
        gtid_set=found.executed,
        server_uuid=facts.server_uuid,
        file_created=created,
    )
    return DumpStart(
        position=position, by_gtid=False, executed_known=bool(found.executed), read_twice_seconds=back_seconds
    )
