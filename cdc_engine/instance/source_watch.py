"""Asks the source once a minute, on a connection of its own, whether the stream is still that of its binlog. Started by `engine`.

What an answer means is decided in `parser.watch`. A stream that cannot be right, or stands still, is made to connect anew: there the parser
decides as at any start, to go on, to begin an epoch or to stop as POSITION_LOST.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

import structlog

from cdc_engine import limits
from cdc_engine.errors import SourceConnectionError
from cdc_engine.parser.server_facts import ServerFacts
from cdc_engine.parser.watch import Look, StreamPlace, Watch

UNASKED_LOOKS_MAX = 5  # so many times the interval without an answer is worth an operator's look

log = structlog.get_logger()


class Watched(Protocol):
    """The parser, as far as it is watched."""

    def place(self) -> StreamPlace | None:
        """Where the stream is; None while there is none."""

    def reconnect(self, reason: str) -> None:
        """Ends the connection; the next one decides where to go on."""


class SourceWatch:
    """`ask`: what the source says of itself, and of a file. All but `run` may be called from any thread."""

    def __init__(
        self,
        parser: Watched,
        ask: Callable[..., ServerFacts],
        seconds: float = limits.SOURCE_WATCH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parser, self._ask, self._seconds, self._clock = parser, ask, seconds, clock
        self._watch = Watch()
        self._answered_at, self._unanswered = clock(), ""

    def run(self, stopping: threading.Event) -> None:
        """Looks until it is stopped. A suspicion is looked at again soon."""
        while not stopping.wait(
            self._seconds if not self._watch.misfit else min(self._seconds, limits.WATCH_AGAIN_SECONDS)
        ):
            try:
                self.look(stopping)
            except Exception as error:  # of whatever kind: a watch that ended silently would look no more
                self._unanswered = str(error) or type(error).__name__
                log.warning("source_not_asked", reason=str(error))

    def look(self, stopping: threading.Event | None = None) -> None:
        """Raises SluiceError when the source does not answer."""
        place = self._parser.place()
        if place is None:
            # Whatever the parser does now has a state of its own.
            self._watch, self._answered_at = Watch(), self._clock()
            return
        facts = self._ask(place.position.file)
        if not facts.file:  # it answers, and may or will not say: what is empty would fit every stream, or none
            raise SourceConnectionError("it does not say where its binlog ends")
        self._answered_at, self._unanswered = self._clock(), ""
        self._watch, reason = self._watch.looked(Look(at=self._clock(), place=place, facts=facts))
        if reason and not (stopping is not None and stopping.is_set()):
            log.warning("stream_is_not_the_source", reason=reason)
            self._parser.reconnect(reason)

    def behind_seconds(self) -> float:
        """For how long at least the source's binlog has had what is not read yet; 0 where nothing is known to be unread."""
        place = self._parser.place()
        return 0.0 if place is None else self._watch.behind_seconds(place, self._clock())

    def trouble(self) -> str:
        """What is wrong with the stream, or with asking, a sentence; empty when nothing is."""
        place = self._parser.place()
        if place is None:
            return ""
        if why := self._watch.trouble(place, self._clock()):
            return f"{why}; look at the server and the network between, the stream is connected anew each time"
        unasked = self._clock() - self._answered_at
        if unasked <= UNASKED_LOOKS_MAX * self._seconds:
            return ""
        return (
            f"the source's end could not be asked for {unasked:.0f} s, so nobody knows whether all of it is read: {self._unanswered}; "
            "the user needs a second connection (max_user_connections) and REPLICATION CLIENT"
        )
