"""Finds the position before the first commit at a given time or later, by reading a replica's binlog (`reader` in conf/). The result is a
GTID set that is valid on the source.

A replica's binlog has the commit times of the source, but the creation time of each file is from the replica's own clock. So the file that
is selected by creation time may begin after the requested commit. If the search ends at the beginning of a file, the previous file is
searched too.
"""

from __future__ import annotations

import contextlib
import functools

from sluice.cdc_engine.errors import SourceConnectionError
from sluice.cdc_engine.parser.connection import SourceConnection
from sluice.cdc_engine.parser.positions.binlog_files import BinlogFiles
from sluice.cdc_engine.parser.positions.time_position import Gone
from sluice.cdc_engine.parser.positions.time_search import choice_at, find_file
from sluice.cdc_engine.parser.server_facts import ServerFacts, read_facts
from sluice.cdc_engine.parser.start_position import FIRST_OFFSET, Lost, StartChoice, decide_start
from sluice.cdc_engine.source import reader as replica
from sluice.cdc_engine.source.server import Source


def logs_replicated(facts: ServerFacts) -> bool:
    """Returns whether a replica's own binlog has the transactions that the replica replicates. Returns False for a reader instance of
    Aurora, which writes no binlog.
    """
    own = facts.variables.get("log_slave_updates") or facts.variables.get("log_replica_updates") or "OFF"
    return bool(facts.logs) and own.upper() in {"ON", "1"}


def position_on_reader(reader: Source, source: ServerFacts, time_us: int) -> StartChoice | None:
    """Searches the binlog of the replica `reader` for the first transaction that committed at `time_us` or later. Returns the GTID set of
    all transactions before it, as a position on the source.

    Returns None if the source's own binlog must be searched instead: the replica writes no binlog, or has purged the binlog of that time,
    or the found GTID set is empty, or the source cannot begin a stream after this set.

    Raises ConfigurationError if the replica has no GTIDs, SourceConnectionError if a connection fails or the replica does not catch up with
    the source in time, and BinlogFormatError if the binlog cannot be parsed.
    """
    with contextlib.closing(SourceConnection(reader)) as connection:
        facts = read_facts(connection)
        if not logs_replicated(facts):
            return None
        _wait(connection, source.executed)
        facts = read_facts(connection)
    files = BinlogFiles(reader, facts)
    found = find_file(files, time_us)
    if isinstance(found, Gone):
        return None
    names = [log.file for log in files.logs]
    begin = choice_at(files, time_us)
    while begin.offset == FIRST_OFFSET and names.index(begin.file):
        begin = choice_at(files, time_us, names[names.index(begin.file) - 1])
    if not begin.executed or (begin.offset == FIRST_OFFSET and not files.nothing_purged):
        return None
    choice = StartChoice(gtid_set=begin.executed)
    return None if isinstance(decide_start(None, choice, source), Lost) else choice


def _executed(connection: SourceConnection) -> str:
    return replica.one_line(connection.rows(replica.EXECUTED[connection.mariadb])[0]["executed"])


def _wait(connection: SourceConnection, needed: str) -> None:
    """Waits until the replica has executed the source's executed set `needed`. Raises SourceConnectionError if the replica has not executed
    the set after `source.reader.WAIT_SECONDS_MAX`.
    """
    if why := replica.still_behind(connection.source.address, functools.partial(_executed, connection), needed):
        raise SourceConnectionError(why)
