"""Who of this process shares the stream of a server, and when a parser goes over to it. The parser calls `Sharing` from its thread.

A parser connects by itself, which proves that its stream goes on there, and reads up to where the server's binlog ended when it connected.
From there on it wants every event that follows in the file, whatever set of GTIDs it began with: so it may take up a dump by file and
offset at its place. The first of two that are so far begins that dump. Whatever ends a line, its parser goes on by itself, as after a
lost connection: so nothing of this decides about a place in the stream, and nothing of it is kept.
"""

from __future__ import annotations

import dataclasses
import threading
import time

import structlog

from cdc_engine.parser.server_facts import ServerFacts
from cdc_engine.parser.shared.stream import SharedStream
from cdc_engine.parser.shared.window import DumpLine
from cdc_engine.position import Position, file_number
from cdc_engine.source.server import Source

ASK_SECONDS = 1.0  # from one question for a line to the next
QUIET_SECONDS = 60.0  # after a dump that could not begin, or a line that could not be read
SHARERS_MIN = 2  # one alone has a connection of its own

log = structlog.get_logger()


@dataclasses.dataclass(frozen=True, eq=False)
class Line:
    """A place in a shared stream after `position`. `contiguous`, `checksum`: of the dump, as the scanner wants them."""

    line: DumpLine
    position: Position
    contiguous: bool
    checksum: bool


@dataclasses.dataclass
class _Place:
    """Of one server. `quiet_until`: of the monotonic clock."""

    sharers: set[Sharing] = dataclasses.field(default_factory=set)
    stream: SharedStream | None = None
    quiet_until: float = 0.0


class SharedStreams:
    """Of all servers that the parsers of a process read."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, ...], _Place] = {}
        self._lock = threading.Lock()

    def of(self, source: Source) -> Sharing:
        """The part of one parser."""
        return Sharing(self, source)

    def enter(self, sharing: Sharing) -> None:
        with self._lock:
            self._places.setdefault(sharing.key, _Place()).sharers.add(sharing)

    def leave(self, sharing: Sharing) -> None:
        """The last one ends the dump. Without effect for one that has left."""
        with self._lock:
            place = self._places.get(sharing.key, _Place())
            place.sharers.discard(sharing)
            last = self._places.pop(sharing.key, None) if not place.sharers else None
        if last is not None and last.stream is not None:
            last.stream.close()

    def line(self, sharing: Sharing, position: Position) -> Line | None:
        """After a position, where it is at hand; else a stream begins there for which others wait, if none is running."""
        with self._lock:
            place = self._places.get(sharing.key)
            if place is None or time.monotonic() < place.quiet_until:
                return None
            if place.stream is not None and not place.stream.running:
                place.quiet_until = time.monotonic() + QUIET_SECONDS if place.stream.failed else 0.0
                place.stream = None
            elif place.stream is not None:
                found = place.stream.join(position)
                return _line(place.stream, found, position) if found is not None else None
            elif len(place.sharers) >= SHARERS_MIN:
                place.stream = SharedStream(sharing.source, position)
                place.stream.start()
            return None


OF_PROCESS = SharedStreams()


class Sharing:
    """One parser among those that share. `quiet`: asks for no line before that time, of the monotonic clock."""

    def __init__(self, streams: SharedStreams, source: Source) -> None:
        self._streams, self.source = streams, source
        self.key = key_of(source)
        self._ask_at = 0.0

    def enter(self) -> None:
        """The parser reads from now on."""
        self._streams.enter(self)

    def leave(self) -> None:
        self._streams.leave(self)

    def line(self, position: Position | None, facts: ServerFacts) -> Line | None:
        """For a parser whose last transaction ends at `position`, and that was told `facts` as it connected."""
        now = time.monotonic()
        if now < self._ask_at or position is None or not has_caught_up(position, facts):
            return None
        self._ask_at = now + ASK_SECONDS
        return self._streams.line(self, position)

    def refused(self, error: Exception) -> None:
        """A line could not be read: the parser's own connection shows whether the stream itself cannot."""
        self._ask_at = time.monotonic() + QUIET_SECONDS
        log.warning("shared_stream_left", destination=self.source.destination, reason=str(error))


def key_of(source: Source) -> tuple[str, ...]:
    """Sources with one key may share a stream."""
    return (source.address, source.user, source.tls_mode)


def has_caught_up(position: Position, facts: ServerFacts) -> bool:
    """Whether a transaction ended where the server's binlog did when it was asked, or later: what a dump by GTID left out lies before."""
    if not position.file or not facts.file:
        return False
    return (file_number(position.file), position.offset) >= (file_number(facts.file), facts.offset)


def _line(stream: SharedStream, line: DumpLine, position: Position) -> Line:
    return Line(line, position, contiguous=not stream.mariadb, checksum=stream.checksum)
