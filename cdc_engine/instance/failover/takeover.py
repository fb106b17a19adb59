"""Decides which of several sources can continue the stream from a position, and when another one takes over. Used by `failover`.

A source can take over if its GTIDs prove that it has all that was read and that nothing after it was purged, as at any start. A source
that lacks what was read is waited for, by name: reading from it would put changes into the lake that no source has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sluice.cdc_engine.parser.server_facts import ServerFacts
from sluice.cdc_engine.parser.start_position import Epochs, Lost, StartChoice, decide_start
from sluice.cdc_engine.parser.stream.event_parser import ByTime
from sluice.cdc_engine.position import Position


@dataclasses.dataclass(frozen=True, kw_only=True)
class TakeoverAnswer:
    """The answer of a source; `facts` is None if it did not answer, and `trouble` states why."""

    address: str
    facts: ServerFacts | None
    trouble: str = ""


@dataclasses.dataclass(frozen=True)
class Beats:
    """The number of heartbeats that failed in a row, and why the last one did."""

    missed: int = 0
    failure: str = ""

    def after(self, failure: str) -> Beats:
        """Returns the count after another answer. An empty `failure` resets it."""
        return Beats(self.missed + 1, failure) if failure else Beats()


def refusal(position: Position | None, answer: TakeoverAnswer, epochs: Epochs, by_time: ByTime | None = None) -> str:
    """Returns a sentence why a source cannot take over where the stream continues at `position`; empty if it can. `position` is None if
    nothing was read yet.

    `by_time`: finds a start by the clock, if that is allowed.
    """
    if answer.facts is None:
        return answer.trouble or "the server does not answer"
    if position is None:
        return ""
    start = decide_start(position, StartChoice(), answer.facts, epochs)
    if isinstance(start, Lost) and start.only_time and by_time is not None:
        start = by_time(position, answer.facts, epochs)
    return start.reason if isinstance(start, Lost) else ""


def in_order(addresses: Sequence[str], reading: str) -> tuple[str, ...]:
    """Returns the addresses of the other sources in the order in which they are tried: those after the current source first, then those
    before it.
    """
    at = addresses.index(reading) if reading in addresses else -1
    return tuple(each for each in (*addresses[at + 1 :], *addresses[: max(at, 0)]) if each != reading)
