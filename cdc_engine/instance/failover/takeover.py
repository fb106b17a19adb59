"""Decides which other source can continue the stream from a position, and in which order sources are tried. Used by `failover` and `sluice
source switch`.

A source can take over if its GTIDs prove two things: it has executed every transaction that was read, and it has purged no later
transaction. Without GTIDs, a source can take over only with `failover: by_time` in conf/, at a position that is found by commit time. The
failover does not switch to a source that lacks a transaction that was read, because the lake would then have changes that the source does
not have. The engine's status reports such a source.
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
    """The answer of a source that the failover queried before a switch. If the source did not answer, `facts` is None, and `trouble` says
    why.
    """

    address: str
    facts: ServerFacts | None
    trouble: str = ""


@dataclasses.dataclass(frozen=True)
class Beats:
    """Counts failed heartbeats in a row: their number, and why the last one failed."""

    missed: int = 0
    failure: str = ""

    def after(self, failure: str) -> Beats:
        """Returns the count after another heartbeat. `failure` is empty if the source answered; the count is then 0."""
        return Beats(self.missed + 1, failure) if failure else Beats()


def refusal(position: Position | None, answer: TakeoverAnswer, epochs: Epochs, by_time: ByTime | None = None) -> str:
    """Returns why a source cannot continue the stream at `position`, or an empty text if it can. `position` is None if nothing was read
    yet. `epochs` are those of the ledger. `by_time` finds a start position by commit time, and is None if conf/ does not allow a failover
    by commit time.
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
    """Returns the addresses of the other sources in the order in which they are tried: first the sources after the current source in conf/,
    then the sources before the current source.
    """
    at = addresses.index(reading) if reading in addresses else -1
    return tuple(each for each in (*addresses[at + 1 :], *addresses[: max(at, 0)]) if each != reading)
