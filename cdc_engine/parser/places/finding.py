"""From what is wanted of a place to the exact one: asks the server where `decision` says that it must be looked for."""

from __future__ import annotations

from cdc_engine.errors import PositionLostError
from cdc_engine.parser.places.binlog_files import BinlogFiles
from cdc_engine.parser.places.decision import BeginOf, OfTime, Wanted, decide, exact_choice
from cdc_engine.parser.places.time_search import choice_at, last_end_up_to
from cdc_engine.parser.server_facts import ServerFacts
from cdc_engine.parser.start_position import Lost, StartChoice
from cdc_engine.source.server import Source


def exact_place(source: Source, facts: ServerFacts, wanted: Wanted) -> StartChoice:
    """Between two transactions; empty for the latest place.

    Raises PositionLostError where the source does not have it, with what it offers; SourceConnectionError; what the scan raises.
    """
    decision = decide(None, wanted, facts)
    if isinstance(decision, Lost):
        raise PositionLostError(f"{source.address}: {decision}")
    if isinstance(decision, OfTime):
        return choice_at(BinlogFiles(source, facts), decision.time_us, file=decision.file)
    if isinstance(decision, BeginOf):
        return last_end_up_to(BinlogFiles(source, facts), decision.file, decision.offset)
    return exact_choice(wanted, facts)
