"""Decides which parsers of this process share the stream of a server, and when a parser changes to it. The parser calls `Sharing` from its
thread. A line is one parser's reader of a shared stream.

A parser connects by itself, which proves that its stream continues there, and reads up to the end that the server's binlog had at the
connect. From there on it needs every event that follows in the file, whatever GTID set it began with, so it can join a dump by file and
offset at its position. The first of two that have reached this point begins that dump. When a line ends for any reason, its parser
continues by itself, as after a lost connection. So sharing never decides about a position in the stream and keeps no state."""

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

ASK_SECONDS = 1.0  # The interval between two requests for a line.
QUIET_SECONDS = 60.0  # The wait after a dump that could not begin, or a line that could not be read.
SHARERS_MIN = 2  # A parser that is alone has its own connection.

log = structlog.get_logger()


@dataclasses.dataclass(frozen=True, eq=False)
class SharedPosition:
    """A position in a shared stream after `position`. `contiguous`, `checksum`: those of the dump, as the scanner needs them."""

    line: DumpLine
    position: Position
    contiguous: bool
    checksum: bool


@dataclasses.dataclass
class _SharedSource:
    """The state of one server. `quiet_until`: by the monotonic clock."""

    sharers: set[Sharing] = dataclasses.field(default_factory=set)
    stream: SharedStream | None = None
    quiet_until: float = 0.0


class SharedStreams:
    """The shared streams of all servers that the parsers of a process read."""

    def __init__(self) -> None:
        self._shared: dict[tuple[str, ...], _SharedSource] = {}
        self._lock = threading.Lock()

    def of(self, source: Source) -> Sharing:
        """Returns the `Sharing` of one parser."""
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
        """Returns a line (the parser's own position in the shared window) after a position, if the shared stream has it. Starts a stream
        there if none runs and other parsers wait.
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
    """One of the parsers that share. After a refusal or a failed attempt it requests no line for a while, by the monotonic clock."""

    def __init__(self, streams: SharedStreams, source: Source) -> None:
        self._streams, self.source = streams, source
        self.key = key_of(source)
        self._ask_at = 0.0

    def enter(self) -> None:
        """Adds the parser, which from now on counts among the readers."""
        self._streams.enter(self)

    def leave(self) -> None:
        self._streams.leave(self)

    def line(self, position: Position | None, facts: ServerFacts) -> SharedPosition | None:
        """Returns a line for a parser whose last transaction ends at `position` and that read `facts` at its connect, or None."""
        now = time.monotonic()
        if now < self._ask_at or position is None or not has_caught_up(position, facts):
            return None
        self._ask_at = now + ASK_SECONDS
        return self._streams.line(self, position)

    def refused(self, error: Exception) -> None:
        """Records that a line could not be read. The parser's own connection then shows whether the stream itself cannot be read."""
        self._ask_at = time.monotonic() + QUIET_SECONDS
        log.warning("shared_stream_left", destination=self.source.destination, reason=str(error))


def key_of(source: Source) -> tuple[str, ...]:
    """Returns the key of a source. Sources with the same key may share a stream."""
    return (source.address, source.user, source.tls_mode, source.bastion.address if source.bastion else "")


def has_caught_up(position: Position, facts: ServerFacts) -> bool:
    """Returns whether the stream has reached the end that the server's binlog had when the facts were read. What a dump by GTID left out is
    before that end.
    """
    if not position.file or not facts.file:
        return False
    return (file_number(position.file), position.offset) >= (file_number(facts.file), facts.offset)


def _line(stream: SharedStream, line: DumpLine, position: Position) -> SharedPosition:
    return SharedPosition(line, position, contiguous=not stream.mariadb, checksum=stream.checksum)
