"""Decides which parsers of this process share one dump of a server, and when a parser changes from its own dump to the shared dump. A
parser reads the shared dump through a `DumpReader`, which stores how far the parser has read.

A parser first connects by itself. This proves that its stream continues on the server. The parser reads up to the end that the binlog had
when the parser connected. Up to this end, the parser may need a dump by GTID set, which leaves transactions out. After this end, the parser
needs every event. A shared dump is requested by file and offset, and has every event. So the parser can then join a shared dump. If no
shared dump runs, and another parser reads the same server, the parser starts one.

When a shared dump ends, each of its parsers connects by itself again, as after a lost connection. So this module decides nothing about
positions, and stores nothing durably.
"""

from __future__ import annotations

import dataclasses
import threading
import time

import structlog

from sluice.cdc_engine.parser.server_facts import ServerFacts
from sluice.cdc_engine.parser.shared.stream import SharedStream
from sluice.cdc_engine.parser.shared.window import DumpReader
from sluice.cdc_engine.position import Position, file_number
from sluice.cdc_engine.source.server import Source

REQUEST_SECONDS = 1.0  # A parser waits this long before it asks for a reader again.
# After a shared dump could not begin or could not be read, a parser keeps its own connection for this many seconds before it asks for a
# reader again.
QUIET_SECONDS = 60.0
# A shared dump begins only if at least this many parsers read the server. A single parser uses its own connection.
SHARERS_MIN = 2

log = structlog.get_logger()


@dataclasses.dataclass(frozen=True, eq=False)
class SharedPosition:
    """A reader of a shared dump, and the position after which the parser continues. The scanner needs `contiguous` and `checksum`: whether
    the dump has every event of the binlog, and whether events end with a checksum.
    """

    reader: DumpReader
    position: Position
    contiguous: bool
    checksum: bool


@dataclasses.dataclass
class _SharedSource:
    """The parsers that share one server, and their shared dump (`stream`). After a shared dump has failed, no other one begins before
    `quiet_until`, a value of `time.monotonic`.
    """

    sharers: set[Sharing] = dataclasses.field(default_factory=set)
    stream: SharedStream | None = None
    quiet_until: float = 0.0


class SharedStreams:
    """The shared dumps of all servers that this process reads."""

    def __init__(self) -> None:
        self._shared: dict[tuple[str, ...], _SharedSource] = {}
        self._lock = threading.Lock()

    def of(self, source: Source) -> Sharing:
        """Returns an object through which a parser of `source` shares a dump."""
        return Sharing(self, source)

    def enter(self, sharing: Sharing) -> None:
        with self._lock:
            self._shared.setdefault(sharing.key, _SharedSource()).sharers.add(sharing)

    def leave(self, sharing: Sharing) -> None:
        """Removes a parser. If it was the last parser of the server, ends the shared dump. A second call has no effect."""
        with self._lock:
            shared = self._shared.get(sharing.key, _SharedSource())
            shared.sharers.discard(sharing)
            last = self._shared.pop(sharing.key, None) if not shared.sharers else None
        if last is not None and last.stream is not None:
            last.stream.close()

    def reader(self, sharing: Sharing, position: Position) -> SharedPosition | None:
        """Returns a reader that continues after a position, or None if no shared dump runs or its window does not have the position.

        If no shared dump runs and at least SHARERS_MIN parsers read the server, starts a shared dump at the position. A later call then
        returns a reader. After a dump has failed, starts no new dump for QUIET_SECONDS.
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
                return _shared_position(shared.stream, found, position) if found is not None else None
            elif len(shared.sharers) >= SHARERS_MIN:
                shared.stream = SharedStream(sharing.source, position)
                shared.stream.start()
            return None


OF_PROCESS = SharedStreams()


class Sharing:
    """The object through which one parser shares a binlog dump with other parsers of the same server. After a call of `refused`, `reader`
    returns None for QUIET_SECONDS.
    """

    def __init__(self, streams: SharedStreams, source: Source) -> None:
        self._streams, self.source = streams, source
        self.key = key_of(source)
        self._request_at = 0.0

    def enter(self) -> None:
        """Adds the parser to the parsers that share dumps of the server."""
        self._streams.enter(self)

    def leave(self) -> None:
        self._streams.leave(self)

    def reader(self, position: Position | None, facts: ServerFacts) -> SharedPosition | None:
        """Returns a reader with which a parser continues after `position`, the end of its last transaction. `facts` were read when the
        parser connected.

        Returns None if `position` is None, if `position` is before the end of the binlog in `facts`, if the last request is less than
        REQUEST_SECONDS ago, or if `SharedStreams.reader` has no reader.
        """
        now = time.monotonic()
        if now < self._request_at or position is None or not has_caught_up(position, facts):
            return None
        self._request_at = now + REQUEST_SECONDS
        return self._streams.reader(self, position)

    def refused(self, error: Exception) -> None:
        """Records that the parser could not read the shared dump. The parser then connects by itself, which shows whether only the shared
        dump is unreadable or the whole stream of the server.
        """
        self._request_at = time.monotonic() + QUIET_SECONDS
        log.warning("shared_stream_left", destination=self.source.destination, reason=str(error))


def key_of(source: Source) -> tuple[str, ...]:
    """Returns the key of a source. Sources with the same key can share a dump."""
    return (source.address, source.user, source.tls_mode, source.bastion.address if source.bastion else "")


def has_caught_up(position: Position, facts: ServerFacts) -> bool:
    """Returns whether a stream has reached the end that the binlog had when the facts were read. A dump by GTID set leaves out transactions
    only before that end. After that end, the parser can join a shared dump, which has every event.
    """
    if not position.file or not facts.file:
        return False
    return (file_number(position.file), position.offset) >= (file_number(facts.file), facts.offset)


def _shared_position(stream: SharedStream, reader: DumpReader, position: Position) -> SharedPosition:
    return SharedPosition(reader, position, contiguous=not stream.mariadb, checksum=stream.checksum)
