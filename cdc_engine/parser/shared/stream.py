"""Runs a dump of a server that several parsers of this process read. The dump has a separate connection and a separate thread, which puts
the bytes into a `DumpWindow`.

The dump is requested by file and offset, so it has every event after its start. A dump by GTID set would leave out transactions that other
parsers need. `sharing` decides which parsers join the dump.
"""

from __future__ import annotations

import threading
import time

import structlog

from sluice.cdc_engine import limits
from sluice.cdc_engine.errors import SluiceError, SourceConnectionError
from sluice.cdc_engine.parser.connection import SourceConnection, answer_error
from sluice.cdc_engine.parser.server_facts import read_facts
from sluice.cdc_engine.parser.shared.dump_filler import DumpFiller
from sluice.cdc_engine.parser.shared.window import DumpReader, DumpWindow
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.source.server import Source

LOOK_SECONDS = 0.5  # How often the thread checks whether any parser still reads the dump.
UNUSED_SECONDS_MAX = 10.0  # The dump ends if no parser has read it for this many seconds.
END_SECONDS_MAX = limits.CONNECT_TIMEOUT_SECONDS + 2 * LOOK_SECONDS

log = structlog.get_logger()


class SharedStream:
    """A shared dump of a server. The dump begins at `begin`, the end of a transaction. `began` tells whether the server has sent anything.
    `failed` tells whether a new dump would probably fail immediately too: this dump failed before the server sent anything, or it failed
    for another reason than a lost connection.
    """

    def __init__(self, source: Source, begin: Position) -> None:
        self._source = source.named(f"{source.destination}-shared")
        self._begin = begin
        self._window = DumpWindow(limits.SHARED_BYTES_MAX // limits.READ_BUFFER_BYTES)
        self._ending = threading.Event()
        self._used_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"parser-{self._source.destination}", daemon=True)
        self.server_uuid, self.mariadb, self.checksum = begin.server_uuid, False, False
        self.began = self.failed = False

    def start(self) -> None:
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def join(self, position: Position) -> DumpReader | None:
        """Returns a reader that continues after `position`. Returns None if `position` is of another server, or if the window does not have
        the bytes after `position`.
        """
        if not self.began or position.server_uuid != self.server_uuid:
            return None
        return self._window.join(position)

    def close(self) -> None:
        """Ends the dump on the server. Waits up to END_SECONDS_MAX until the stream's thread has ended."""
        self._ending.set()
        self._thread.join(END_SECONDS_MAX)

    # ── the thread ──

    def _run(self) -> None:
        reason = "no destination reads the shared stream any more"
        try:
            self._dump()
        except SourceConnectionError as error:
            reason, self.failed = str(error), not self.began
        except SluiceError as error:
            reason, self.failed = str(error), True
        # An unexpected error is a defect of Sluice, and ends only the shared dump. The parsers continue with their own connections.
        except Exception as error:
            log.exception("shared_stream_failed", address=self._source.address)
            reason, self.failed = str(error), True
        log.info("shared_stream_ended", address=self._source.address, reason=reason)
        # Each parser that reads the shared dump gets this error and opens its own connection. The new connection shows whether the parser's
        # stream can continue.
        self._window.end(SourceConnectionError(f"the shared stream of {self._source.address} ended: {reason}"))

    def _dump(self) -> None:
        connection = SourceConnection(self._source)
        try:
            facts = read_facts(connection)
            if facts.server_uuid != self._begin.server_uuid:
                raise SourceConnectionError(
                    f"{self._source.address} is now another server, {facts.server_uuid}; "
                    "each destination connects by itself"
                )
            self.mariadb, self.checksum = connection.mariadb, connection.prepare_dump()
            if not connection.dump_from_file(self._begin.file, self._begin.offset):
                raise SourceConnectionError(
                    f"{self._begin} is beyond 4 GiB of its binlog file, where a shared stream cannot begin; "
                    "each destination connects by itself"
                )
            log.info("shared_stream_begins", address=self._source.address, position=str(self._begin))
            self._read(connection)
        finally:
            connection.end_dump()

    def _read(self, connection: SourceConnection) -> None:
        filler = DumpFiller(self._window, checksum=self.checksum, contiguous=not self.mariadb)
        heard_at = time.monotonic()
        while self._wanted():
            space = filler.space(LOOK_SECONDS)
            count = connection.receive_into(space, LOOK_SECONDS) if space is not None else 0
            if count or space is None:
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > limits.READ_TIMEOUT_SECONDS:
                raise SourceConnectionError(
                    f"{self._source.address} sent no event and no heartbeat before the read timeout: check the server and the network"
                )
            if count:
                filler.received(count)
                self.began = True
            if filler.answer:
                raise answer_error(self._source, filler.answer)

    def _wanted(self) -> bool:
        now = time.monotonic()
        if self._window.line_count:
            self._used_at = now
        return not self._ending.is_set() and now - self._used_at < UNUSED_SECONDS_MAX
