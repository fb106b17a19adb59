"""Decides which parsers of this process share the stream of a server, and when a parser changes to the shared stream. The parser calls
`Sharing` from its thread. A parser reads a shared stream through a line (`DumpLine`), which stores how far it has read.

A parser first connects by itself, which proves that its stream continues on the server. It reads up to the end that the binlog had when it
connected. After this end it needs every event, whatever GTID set it began with, so it can join a dump by file and offset at its position.
The first of two parsers that reach this end begins that dump. When a line ends for any reason, its parser connects by itself again, as
after a lost connection. So sharing never decides about a position in the stream and stores no state.
"""

from __future__ import annotations

import dataclasses
import threading
import time

import structlog

from sluice.cdc_engine.parser.server_facts import ServerFacts
from sluice.cdc_engine.parser.shared.stream import SharedStream
from sluice.cdc_engine.parser.shared.window import DumpLine
from sluice.cdc_engine.position import Position, file_number
from sluice.cdc_engine.source.server import Source

ASK_SECONDS = 1.0  # The minimum time between two requests for a line.
# How long a parser requests no line after a dump could not begin, or after its line could not be read.
QUIET_SECONDS = 60.0
# How many parsers must share a server before they get a shared stream. A parser that is alone uses its own connection.
SHARERS_MIN = 2

log = structlog.get_logger()


@dataclasses.dataclass(frozen=True, eq=False)
class SharedPosition:
    """A line and the position after which it continues. `contiguous`, `checksum`: properties of the dump that the scanner needs."""

    line: DumpLine
    position: Position
    contiguous: bool
    checksum: bool


@dataclasses.dataclass
class _SharedSource:
    """The sharing parsers and the stream of one server. `quiet_until`: no stream begins before this time of the monotonic clock."""

    sharers: set[Sharing] = dataclasses.field(default_factory=set)
    stream: SharedStream | None = None
    quiet_until: float = 0.0


class SharedStreams:
    """The shared streams of all servers that this process reads."""

    def __init__(self) -> None:
        self._shared: dict[tuple[str, ...], _SharedSource] = {}
        self._lock = threading.Lock()

    def of(self, source: Source) -> Sharing:
        """Returns a parser's `Sharing`, through which it takes part."""
        return Sharing(self, source)

    def enter(self, sharing: Sharing) -> None:
        with self._lock:
            self._shared.setdefault(sharing.key, _SharedSource()).sharers.add(sharing)

    def leave(self, sharing: Sharing) -> None:
        """Removes a parser; the last one ends the dump. A second call has no effect."""
        with self._lock:
            shared = self._shared.get(sharing.key, _SharedSource())
            shared.sharers.discard(sharing)
            last = self._shared.pop(sharing.key, None) if not shared.sharers else None
        if last is not None and last.stream is not None:
            last.stream.close()

    def line(self, sharing: Sharing, position: Position) -> SharedPosition | None:
        """Returns a line after a position, if the shared stream has it. Begins a stream at the position if none runs and enough parsers
        share the server.
        """
        with self._lock:
            shared = self._shared.get(sharing.key)
            if shared is None or time.monotonic() < shared.quiet_until:
                return None
            if shared.stream is not None and not shared.stream.running:
                shared.quiet_until = time.monotonic() + QUIET_SECONDS if shared.stream.failed else 0.0
                shared.stream = None
            elif shared.stream is not None:
                found = shared.stream.join(position)
                return _line(shared.stream, found, position) if found is not None else None
            elif len(shared.sharers) >= SHARERS_MIN:
                shared.stream = SharedStream(sharing.source, position)
                shared.stream.start()
            return None


OF_PROCESS = SharedStreams()


class Sharing:
    """One of the parsers that share a server. After a refusal or a failed attempt, it requests no line for a while."""

    def __init__(self, streams: SharedStreams, source: Source) -> None:
        self._streams, self.source = streams, source
        self.key = key_of(source)
        self._ask_at = 0.0

    def enter(self) -> None:
        """Adds the parser to those that share the server."""
        self._streams.enter(self)

    def leave(self) -> None:
        self._streams.leave(self)

    def line(self, position: Position | None, facts: ServerFacts) -> SharedPosition | None:
        """Returns a line for a parser, or None. `position`: the end of the parser's last transaction. `facts`: read when it connected."""
        now = time.monotonic()
        if now < self._ask_at or position is None or not has_caught_up(position, facts):
            return None
        self._ask_at = now + ASK_SECONDS
        return self._streams.line(self, position)

    def refused(self, error: Exception) -> None:
        """Records that a line could not be read. The parser then connects by itself, which shows whether the stream itself is
        unreadable.
        """
        self._ask_at = time.monotonic() + QUIET_SECONDS
        log.warning("shared_stream_left", destination=self.source.destination, reason=str(error))


def key_of(source: Source) -> tuple[str, ...]:
    """Returns the key of a source. Sources with the same key may share a stream."""
    return (source.address, source.user, source.tls_mode, source.bastion.address if source.bastion else "")


def has_caught_up(position: Position, facts: ServerFacts) -> bool:
    """Returns whether the stream has reached the end that the binlog had when the facts were read. A dump by GTID can omit transactions
    only before that end.
    """
    if not position.file or not facts.file:
        return False
    return (file_number(position.file), position.offset) >= (file_number(facts.file), facts.offset)


def _line(stream: SharedStream, line: DumpLine, position: Position) -> SharedPosition:
    return SharedPosition(line, position, contiguous=not stream.mariadb, checksum=stream.checksum)
