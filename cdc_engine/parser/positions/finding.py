"""Converts a requested position to the exact position between two transactions. Searches the source's binlog if `decision` requires it."""

from __future__ import annotations

from sluice.cdc_engine.errors import PositionLostError
from sluice.cdc_engine.parser.positions.binlog_files import BinlogFiles
from sluice.cdc_engine.parser.positions.decision import BeginOf, OfTime, RequestedPosition, decide, exact_choice
from sluice.cdc_engine.parser.positions.on_reader import position_on_reader
from sluice.cdc_engine.parser.positions.time_search import choice_at, last_end_up_to, reach_back
from sluice.cdc_engine.parser.renumbering import comes_before
from sluice.cdc_engine.parser.server_facts import ServerFacts
from sluice.cdc_engine.parser.start_position import Lost, StartChoice
from sluice.cdc_engine.source.archive import Archive
from sluice.cdc_engine.source.server import Source


def exact_position(
    source: Source,
    facts: ServerFacts,
    wanted: RequestedPosition,
    archive: Archive | None = None,
    *,
    reader: Source | None = None,
) -> StartChoice:
    """Returns the requested position as a position between two transactions. For the latest position, returns a `StartChoice` without
    values.

    `archive` is searched if the server has purged the position. `reader` is a replica. If a time is requested without a file, and the
    replica's binlog has this time, the replica's binlog is searched instead of the source's binlog. If neither server nor archive has the
    requested position, raises PositionLostError with the available positions. Raises ConfigurationError if the replica has no GTIDs,
    SourceConnectionError if a server does not answer or the replica does not catch up in time, and BinlogFormatError if the binlog cannot
    be parsed.
    """
    if reader is not None and wanted.time_us is not None and not wanted.file:
        found = position_on_reader(reader, facts, wanted.time_us)
        if found is not None:
            return found
    try:
        return _start_in(BinlogFiles(source, facts), wanted)
    except PositionLostError:
        files = BinlogFiles(source, facts, archive)
        _reach(files, wanted)
        if files.reachable == facts:
            raise
        return _start_in(files, wanted)


def _reach(files: BinlogFiles, wanted: RequestedPosition) -> None:
    """Fetches older files into the archive, back to the requested file or time, if conf/ has a command that fetches files."""
    if wanted.file and comes_before(wanted.file, files.facts.file):
        files.reach(lambda oldest: not comes_before(wanted.file, oldest))
    elif wanted.time_us is not None and not wanted.file:
        reach_back(files, wanted.time_us)


def _start_in(files: BinlogFiles, wanted: RequestedPosition) -> StartChoice:
    decision = decide(None, wanted, files.reachable)
    if isinstance(decision, Lost):
        raise PositionLostError(f"{files.origin}: {decision}")
    if isinstance(decision, OfTime):
        return choice_at(files, decision.time_us, file=decision.file)
    if isinstance(decision, BeginOf):
        size = files.archived_bytes(decision.file) if files.is_archived(decision.file) else decision.offset
        if size < decision.offset:
            raise PositionLostError(
                f"{decision.file}:{decision.offset} is after the end of the archived file ({size} bytes): put a "
                "complete copy of the file into the archive, or correct the offset"
            )
        return last_end_up_to(files, decision.file, decision.offset)
    choice = exact_choice(wanted, files.reachable)
    if files.is_archived(choice.file):
        # Called only for its check: raises PositionLostError if another server wrote the file.
        files.created(choice.file)
    return choice
