"""Checks once per minute, over a separate connection, whether the stream still matches the source's binlog. `engine` starts this watch.

`parser.watch` interprets the source's answers. If the stream does not match the binlog, or does not move, this module reconnects it. The
parser then decides, as at every start, whether to continue, to begin an epoch, or to stop in the state POSITION_LOST.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable
from typing import Protocol

import structlog

from sluice.cdc_engine import limits
from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.errors import SourceConnectionError
from sluice.cdc_engine.instance.parts import EngineParts
from sluice.cdc_engine.instance.tables.resume import facts_of
from sluice.cdc_engine.parser.positions.oldest_file import OldestFile, purges_early
from sluice.cdc_engine.parser.positions.retention_left import (
    is_gone,
    kept_until,
    next_file,
    purged_sentence,
    short_retention,
)
from sluice.cdc_engine.parser.providers.decision import DAY_HOURS
from sluice.cdc_engine.parser.server_facts import ServerFacts
from sluice.cdc_engine.parser.source_check import short_retention_sentence
from sluice.cdc_engine.parser.stream.watch import Look, StreamState, Watch
from sluice.cdc_engine.position import Position

UNASKED_LOOKS_MAX = 5  # `trouble` reports a source that has not answered for more than this many check intervals.

log = structlog.get_logger()


class Watched(Protocol):
    """The methods of the parser that the source watch calls."""

    def stream_state(self) -> StreamState | None:
        """Returns the position up to which the stream has read, or None if there is no stream."""

    def unfollowed(self, facts: ServerFacts) -> str:
        """Returns why the stream must not continue with the source's current settings, or an empty text if it may."""

    def reconnect(self, reason: str) -> None:
        """Ends the connection. The parser opens another one, and decides where to continue. `reason` becomes the reason of the parser's
        state while it connects.
        """


def _nothing_saved() -> None:
    """Returns None: no position is saved. The default of the parameter `saved` of `SourceWatch`."""


def watch_of(config: DestinationConfig, parts: EngineParts, seconds: float) -> SourceWatch:
    """Returns the watch for the source that an engine reads."""
    return SourceWatch(
        parts.parser,
        functools.partial(facts_of, parts.source),
        seconds,
        saved=lambda: parts.meta.ledger.resume_position,
        retention_left_hours_min=config.retention_left_hours_min,
        retention_hours_min=config.retention_hours_min,
        archived=bool(config.archive),
    )


class SourceWatch:
    """Checks at intervals whether the stream still matches the source's binlog. `query_facts` returns the source's facts about its settings
    and binlog files. `saved` returns the position where reading would continue after a restart. `archived` says whether an archive has
    binlog files that the source purged.

    `retention_trouble` warns if the source purges the needed binlog in fewer than `retention_left_hours_min` hours, or keeps its binlog for
    fewer than `retention_hours_min`. All methods except `run` may be called from any thread.
    """

    def __init__(
        self,
        parser: Watched,
        query_facts: Callable[..., ServerFacts],
        seconds: float = limits.SOURCE_WATCH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        *,
        saved: Callable[[], Position | None] = _nothing_saved,
        retention_left_hours_min: float = 0.0,
        retention_hours_min: float = DAY_HOURS,
        archived: bool = False,
    ) -> None:
        self._saved, self._retention_left_hours_min, self._archived = saved, retention_left_hours_min, archived
        self._retention_hours_min = retention_hours_min
        self._facts: ServerFacts | None = None
        self._oldest = OldestFile()
        self._parser, self._query_facts, self._seconds, self._clock = parser, query_facts, seconds, clock
        self._watch = Watch()
        self._answered_at, self._unanswered = clock(), ""

    def run(self, stopping: threading.Event) -> None:
        """Checks the stream at intervals until `stopping` is set. After a check that found a mismatch, the next check comes after
        WATCH_AGAIN_SECONDS at the latest.
        """
        while not stopping.wait(
            self._seconds if not self._watch.misfit else min(self._seconds, limits.WATCH_AGAIN_SECONDS)
        ):
            try:
                self.look(stopping)
            # Catches all errors, because an error that ended this thread would silently end the checks.
            except Exception as error:
                self._unanswered = str(error) or type(error).__name__
                log.warning("source_query_failed", reason=str(error))

    def look(self, stopping: threading.Event | None = None) -> None:
        """Checks the stream once. If the stream does not match the source's binlog or settings, reconnects it. Does not reconnect it if
        `stopping` was set during the check. Raises SluiceError if the source does not answer.
        """
        stream_state = self._parser.stream_state()
        if stream_state is None:
            # Checks nothing, because there is no stream. The parser's state says why.
            self._watch, self._answered_at = Watch(), self._clock()
            return
        facts = self._query_facts(stream_state.position.file, *self._end_of_saved(), *self._unknown_oldest())
        # Without the name of the source's current binlog file, it cannot be decided whether the stream matches the binlog.
        if not facts.file:
            raise SourceConnectionError(
                "the source did not report the end of its binlog: enable its binlog, and grant REPLICATION CLIENT"
            )
        self._answered_at, self._unanswered, self._facts = self._clock(), "", facts
        self._oldest = self._oldest.seen(facts)
        self._watch, misfit = self._watch.looked(Look(at=self._clock(), stream_state=stream_state, facts=facts))
        reason = misfit or self._parser.unfollowed(facts)
        if reason and not (stopping is not None and stopping.is_set()):
            log.warning("stream_does_not_match_source", reason=reason)
            self._parser.reconnect(reason)

    def _end_of_saved(self) -> tuple[str, ...]:
        """Returns the name of the binlog file that follows the file of the saved position, or an empty tuple if this name is unknown.
        `look` queries the creation time of the following file, which is the time when the saved position's file ended.
        """
        after = next_file(self._saved_file(), self._facts) if self._facts else ""
        return (after,) if after else ()

    def _unknown_oldest(self) -> tuple[str, ...]:
        """Returns the name of the source's oldest binlog file if its creation time is not known yet, otherwise an empty tuple. Reading the
        creation time needs one more connection, but only once after each purge, because only a purge changes the oldest file.
        """
        return self._oldest.unknown(self._facts) if self._facts else ()

    def _saved_file(self) -> str:
        saved = self._saved_here()
        return saved.file if saved else ""

    def _saved_here(self) -> Position | None:
        """Returns the saved position. Returns None if no position is saved, if the source has not answered yet, or if the position belongs
        to another server than the one that answered.
        """
        saved, facts = self._saved(), self._facts
        return saved if saved and facts and saved.server_uuid in ("", facts.server_uuid) else None

    def _is_gone(self) -> bool:
        saved = self._saved_here()
        return bool(saved and self._facts and is_gone(saved, self._facts, archived=self._archived))

    def retention_left_hours(self) -> float | None:
        """Returns for how many more hours the source will keep the binlog that a restart would read, as of the last check. 0 means that
        this binlog is purged, or is older than the source promises to keep. None means that the retention is unlimited, or unknown because
        the source promises nothing.
        """
        if self._is_gone():
            return 0.0
        now = time.time()
        kept_seconds = self._oldest.kept_seconds(self._facts, now) if self._facts else math.inf
        until = kept_until(self._saved_file(), self._facts, now, kept_seconds) if self._facts else None
        return None if until is None else round(max(0.0, until - now) / 3600, 2)

    def oldest_binlog_hours(self) -> float | None:
        """Returns the age of the source's oldest binlog file in hours, or None if the age is unknown. The age shows for how long the source
        really keeps its binlog.
        """
        age = self._oldest.age_seconds(time.time())
        return None if age is None else round(age / 3600, 2)

    def retention_trouble(self) -> str:
        """Returns a warning about the retention, or an empty text. There is a warning if the binlog that a restart would read is purged or
        may soon be purged, or if the source keeps its binlog for fewer hours than conf/ accepts. If `retention_left_hours_min` is 0, there
        is a warning only after a purge.
        """
        facts = self._facts
        if facts is None:
            return ""
        if self._is_gone():
            return purged_sentence(facts)
        hours, observed_seconds = self.retention_left_hours(), self._oldest.kept_seconds(facts, time.time())
        left = (
            short_retention(hours, facts, self._retention_left_hours_min, observed_seconds) if hours is not None else ""
        )
        if left or not self._retention_left_hours_min:
            return left
        kept = short_retention_sentence(facts, self._retention_hours_min)
        return kept or purges_early(self._oldest, facts, time.time(), self._retention_hours_min)

    def behind_seconds(self) -> float:
        """Returns how long the binlog has had changes that the stream has not read, in seconds. The real time may be longer, because the
        binlog is checked only at intervals. Returns 0 if the stream has read everything.
        """
        stream_state = self._parser.stream_state()
        return 0.0 if stream_state is None else self._watch.behind_seconds(stream_state, self._clock())

    def trouble(self) -> str:
        """Returns a warning if the stream has a problem, or if the source has not answered for more than UNASKED_LOOKS_MAX check intervals.
        Otherwise returns an empty text.
        """
        stream_state = self._parser.stream_state()
        if stream_state is None:
            return ""
        if why := self._watch.trouble(stream_state, self._clock()):
            return f"{why}; check the server and the network. The engine connects again by itself"
        unasked = self._clock() - self._answered_at
        if unasked <= UNASKED_LOOKS_MAX * self._seconds:
            return ""
        return (
            f"the end of the source's binlog could not be read for {unasked:.0f} s ({self._unanswered}), so Sluice does not "
            "know whether the engine has read the whole binlog: check that the server answers, and that the user may open a "
            "second connection (max_user_connections) and has REPLICATION CLIENT"
        )
