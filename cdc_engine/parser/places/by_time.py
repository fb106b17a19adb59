"""Where a stream goes on by the clock, on another server in which no GTID finds its place: a minute before what was read last.

What lies in that minute is read once more. So it is for who allows it (`failover: by_time`), and tables that cannot take a change twice
stop then by name (`instance.failover.by_time`). A server that holds nothing as late as what was read is one that lacks some of it, and is
waited for. Where the minute holds what nothing can take twice, there is no way on by the clock:

- a statement that changes a captured table: its rows from before would be read with the columns from after, and names change twice;
- the commit of an XA transaction that was prepared before the minute: its rows are in none of what is read once more;
- rows without all their columns (binlog_row_image): where a key moved, they would get the values that another row has now.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from cdc_engine.contracts import LoggedStatement
from cdc_engine.errors import PositionLostError
from cdc_engine.limits import FAILOVER_BACK_SECONDS
from cdc_engine.parser.file_creation import creation_of
from cdc_engine.parser.places.binlog_files import BinlogFiles
from cdc_engine.parser.places.time_search import Stretch, choice_at, read_again
from cdc_engine.parser.server_facts import ServerFacts
from cdc_engine.parser.start_position import RESNAPSHOT, DumpStart, Epochs, Lost, StartChoice, in_new_epoch
from cdc_engine.position import Position
from cdc_engine.source.server import Source
from cdc_engine.time_words import SECOND_US, time_text

Changed = Callable[[LoggedStatement, bool], str]
MASTER_BACK = "bring the server back that was read"


def start_by_time(
    source: Source, changed: Changed, cursor: Position, facts: ServerFacts, epochs: Epochs
) -> DumpStart | Lost:
    """The start on the server that `facts` is of, in a new epoch. `changed`: the captured table that a statement may have
    changed, or empty; by it and whether the server is a MariaDB.

    Raises SourceConnectionError, and what the scan raises.
    """
    if not cursor.time_us:
        return Lost(
            reason=f"the cursor {cursor} has no commit time, so no place in {source.address} can be found by it"
        )
    image = facts.variables.get("binlog_row_image", "FULL").upper()
    if image != "FULL":
        return not_twice(
            source.address,
            f"its binlog_row_image is {image}, and in rows without all their columns a key that moved would take the values of another row",
        )
    try:
        files = BinlogFiles(source, facts)
        place = choice_at(files, cursor.time_us - FAILOVER_BACK_SECONDS * SECOND_US)
        stretch = read_again(files, place, cursor.time_us)
    except PositionLostError as error:
        return Lost(reason=str(error))
    if not stretch.reached:
        return behind(source.address, cursor, facts)
    if why := held_twice(stretch, lambda each: changed(each, facts.mariadb)):
        return not_twice(source.address, why)
    created = creation_of(source, place.file)
    return in_new_epoch(started(place, cursor, facts, created), cursor, epochs)


def behind(address: str, cursor: Position, facts: ServerFacts) -> Lost:
    """What a standby lacks, as far as clocks tell."""
    return Lost(
        reason=f"{address} lacks what was read: its binlog, which ends at {facts.file}:{facts.offset}, holds nothing that was committed at "
        f"{time_text(cursor.time_us)} or later, up to which {cursor} was read: a replica that is behind, or they went with the master",
        options=("wait until the replica has caught up", MASTER_BACK, RESNAPSHOT),
        not_yet=True,
    )


def not_twice(address: str, why: str) -> Lost:
    return Lost(
        reason=f"without GTIDs {address} could be read on from by the clock alone, and then the last {FAILOVER_BACK_SECONDS} s come once "
        f"more; that cannot be: {why}",
        options=(MASTER_BACK, RESNAPSHOT),
    )


def held_twice(stretch: Stretch, changed: Callable[[LoggedStatement], str]) -> str:
    """What of it nothing can take twice, a sentence; empty where there is none."""
    table = next((name for each in stretch.statements if (name := changed(each))), "")
    if table:
        return f"in them a statement changed {table}, and rows from before it would be read with the columns and names from after it"
    if stretch.commits:
        return f"in them the XA transaction {stretch.commits[0]} was committed, which was prepared before"
    return ""


def started(place: StartChoice, cursor: Position, facts: ServerFacts, created: int) -> DumpStart:
    """Of the cursor's epoch still."""
    position = dataclasses.replace(
        cursor,
        file=place.file,
        offset=place.offset,
        gtid_set=place.executed,
        server_uuid=facts.server_uuid,
        file_created=created,
    )
    return DumpStart(position=position, by_gtid=False, executed_known=bool(place.executed), by_time=True)
