"""Checks whether the replica that conf/ names as `reader` can be read instead of the source. `sluice check` calls this module."""

from __future__ import annotations

import contextlib
import dataclasses

from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.errors import SluiceError
from sluice.cdc_engine.instance.sources import reader_of, source_facts
from sluice.cdc_engine.parser.connection import SourceConnection
from sluice.cdc_engine.parser.positions.on_reader import logs_replicated
from sluice.cdc_engine.parser.server_facts import ServerFacts, read_facts
from sluice.cdc_engine.parser.source_check import advice_of, missing_privileges
from sluice.cdc_engine.source import reader as replica


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckedReader:
    """The result of checking a reader: a line that describes the reader, and the problems that prevent its use."""

    what: str
    problems: tuple[str, ...] = ()


def examine_reader(destination: DestinationConfig) -> CheckedReader | None:
    """Queries the reader and the source, and finds the problems of the reader. Returns None if conf/ names no reader."""
    reader = reader_of(destination)
    if reader is None:
        return None
    what = f"reader of {destination.name}: {reader.user}@{reader.address}"
    try:
        source = source_facts(destination)
        with contextlib.closing(SourceConnection(reader)) as connection:
            facts = read_facts(connection)
            status = connection.first_of(*replica.STATUS)
    except SluiceError as error:
        return CheckedReader(what=what, problems=(str(error),))
    return CheckedReader(
        what=f"{what}, {facts.version}; {search_sentence(facts)}",
        problems=tuple(reader_problems(source, facts, [each for row in status for each in replica.filters_of(row)])),
    )


def search_sentence(facts: ServerFacts) -> str:
    """Returns a sentence that says which server's binlog Sluice reads to find the position of a time, and which server's binlog backfills
    read. `facts` are those of the reader.
    """
    if logs_replicated(facts):
        return "Sluice finds the position of a time in this server's binlog; backfills read the binlog of the source"
    return (
        "this server writes no binlog of replicated changes, so Sluice finds the position of a time in the binlog of "
        "the source; backfills read that binlog too"
    )


def reader_problems(source: ServerFacts, reader: ServerFacts, filters: list[str]) -> list[str]:
    """Returns the problems because of which the replica `reader` cannot be read instead of the source. `filters` are the replica's
    replication filters.
    """
    problems = [
        (
            f"without GTIDs on the {which}, Sluice cannot find out which of the source's transactions the reader has: "
            f"{advice_of(facts).gtids}; or remove `reader`"
        )
        for which, facts in (("source", source), ("reader", reader))
        if not facts.gtid_enabled
    ]
    if source.server_uuid == reader.server_uuid:
        problems.append("the reader is the source itself: name a replica, or remove `reader`")
    if "SELECT" in missing_privileges(reader):
        problems.append(
            f"the account lacks SELECT on the reader: execute GRANT SELECT ON *.* TO this account, as {advice_of(reader).administrator}"
        )
    if filters:
        named = ", ".join(filters)
        problems.append(
            f"the reader does not replicate a part of the source ({named}), so rows would be missing: name another "
            "replica, or remove `reader`"
        )
    return problems
