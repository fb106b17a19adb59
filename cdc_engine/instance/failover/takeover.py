"""Which of several sources can be read on from a position, and when another takes over. `failover` asks and acts.

A source can take over where its GTIDs prove that all that was read is in it and that nothing after it was purged: as at any start.
One that lacks what was read is waited for, by name: read from there, changes would be in the lake that no source has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from cdc_engine.parser.event_parser import ByTime
from cdc_engine.parser.server_facts import ServerFacts
from cdc_engine.parser.start_position import Epochs, Lost, StartChoice, decide_start
from cdc_engine.position import Position


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """What a source said of itself; `facts` None where it did not answer, `trouble` then says why."""

    address: str
    facts: ServerFacts | None
    trouble: str = ""


@dataclasses.dataclass(frozen=True)
class Beats:
    """How many questions in a row failed, and why the last one did."""

    missed: int = 0
    failure: str = ""

    def after(self, failure: str) -> Beats:
        """With one more answer; an empty one is well."""
        return Beats(self.missed + 1, failure) if failure else Beats()


def refusal(position: Position | None, answer: Answer, epochs: Epochs, by_time: ByTime | None = None) -> str:
    """Why a source cannot take over where the stream goes on at `position`, a sentence; empty when it can. None: nothing was read yet.

    `by_time`: asks it for a place by the clock, where that is allowed.
    """
    if answer.facts is None:
        return answer.trouble or "it does not answer"
    if position is None:
        return ""
    start = decide_start(position, StartChoice(), answer.facts, epochs)
    if isinstance(start, Lost) and start.only_time and by_time is not None:
        start = by_time(position, answer.facts, epochs)
    return start.reason if isinstance(start, Lost) else ""


def in_turn(addresses: Sequence[str], reading: str) -> tuple[str, ...]:
    """The others, from the one after that which is read, around to the one before it."""
    at = addresses.index(reading) if reading in addresses else -1
    return tuple(each for each in (*addresses[at + 1 :], *addresses[: max(at, 0)]) if each != reading)
