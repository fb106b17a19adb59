"""Reads the stream of one destination in a loop: connects, checks the server, decides where to start, requests a dump, scans it and passes
each block to the sink. Starts again if the stream breaks.

`instance` starts and stops the parser, which runs in one daemon thread. The parser's position is the end of the last transaction that the
sink accepted. Every connection begins at this position, so no transaction is lost or put into the store twice.

The parser reports its state to `on_state`: STOPPED, CONNECTING, STREAMING, RECONNECTING with the reason, or the `code` of the error that
ended the thread (POSITION_LOST, UNKNOWN_EVENT, SOURCE_CHECK, …). After such an error, the parser does nothing until `start` is called
again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import threading
import time
from collections.abc import Callable, Iterator

import structlog

from sluice.cdc_engine import limits
from sluice.cdc_engine.binlog.events.recorded import MemoryPrepared
from sluice.cdc_engine.contracts import Block
from sluice.cdc_engine.errors import (
    BinlogFormatError,
    PositionLostError,
    ReplicaClashError,
    SluiceError,
    SourceCheckError,
    SourceConnectionError,
    StandbyBehindError,
    UndoneRowsError,
)
from sluice.cdc_engine.parser.connection import SourceConnection, answer_error
from sluice.cdc_engine.parser.scan.framing import PacketFramer
from sluice.cdc_engine.parser.scan.scanner import Scanner
from sluice.cdc_engine.parser.server_facts import ServerFacts, dump_clients, read_facts
from sluice.cdc_engine.parser.shared.sharing import SharedPosition, Sharing
from sluice.cdc_engine.parser.shared.window import DumpReader, FellBehindError
from sluice.cdc_engine.parser.source_check import check_source, is_mixed, unfollowed_format
from sluice.cdc_engine.parser.start_position import NO_EPOCHS, DumpStart, Epochs, Lost, StartChoice, decide_start
from sluice.cdc_engine.parser.stream.archived import ArchivedInterval, first_of_server
from sluice.cdc_engine.parser.stream.dump import begin_dump, begin_shared
from sluice.cdc_engine.parser.stream.reconnect import Attempts
from sluice.cdc_engine.parser.stream.watch import StreamState
from sluice.cdc_engine.ports import BlockSink, PreparedTransactions, SchemaHistory
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.source.archive import Archive
from sluice.cdc_engine.source.server import Source

ByTime = Callable[[Position, ServerFacts, Epochs], DumpStart | Lost]
STOPPED, CONNECTING, STREAMING, RECONNECTING = "STOPPED", "CONNECTING", "STREAMING", "RECONNECTING"
# If no data arrive for this many seconds, the stream counts as caught up. A call of `stop` takes effect within the same time.
IDLE_SECONDS = 0.5
STOP_SECONDS_MAX = limits.CONNECT_TIMEOUT_SECONDS + limits.READ_TIMEOUT_SECONDS + 5

log = structlog.get_logger()


def _learn_nothing(_given_up: Callable[[], bool]) -> None:
    """Does nothing. The default of `learn`, for a schema history that is complete up to the start of the stream."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParserCallbacks:
    """The callbacks of a parser.

    - `on_state(state, reason)`: at each change of the state.
    - `on_start`: called with the start of the stream, before its first block. A caller without a cursor must store the start: until the
      first ack, nothing else records where the stream began, and a start at the latest position cannot be found again.
    - `on_idle`: whenever the stream has caught up and no data arrive.
    - `learn(given_up)`: before a stream is read, to complete the schema history up to the stream's start. `given_up` returns True when the
      parser is to stop.
    """

    on_state: Callable[[str, str], None] = lambda _state, _reason: None
    on_start: Callable[[DumpStart], None] = lambda _start: None
    on_idle: Callable[[], None] = lambda: None
    learn: Callable[[Callable[[], bool]], None] = _learn_nothing


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamRules:
    """Where a stream begins and how it continues.

    - `choice`: where a parser without a position starts. `epochs`: returns the ledger's epochs, called at each connect.
    - `waits`: whether the parser waits if the source has not executed all transactions that the stream has read. A standby source may catch
      up. Without `waits`, the parser ends.
    - `by_time`: finds the position by commit time on another server. None if conf/ does not allow it.
    - `archive`: has the files that the server has purged. `sharing`: shares one dump with other parsers of this process.
    - `follows_mixed`: whether the schema history knows the triggers and views at a position. Sluice needs them if binlog_format is MIXED.
    - `rows_queries`: whether blocks include the SQL text of statements that change rows.
    """

    choice: StartChoice
    epochs: Callable[[], Epochs] = lambda: NO_EPOCHS
    waits: bool = False
    by_time: ByTime | None = None
    archive: Archive | None = None
    sharing: Sharing | None = None
    follows_mixed: Callable[[Position], bool] = lambda _: True
    rows_queries: bool = False


NO_CALLBACKS = ParserCallbacks()


@dataclasses.dataclass
class StreamCounters:
    """Counts what a parser has read since it was created, over all connections. `received_at` is in seconds since 1970, and
    `last_commit_time_us` in µs since 1970. Both are 0 before the first value.
    """

    bytes: int = 0
    events: int = 0
    row_events: int = 0
    dropped_row_events: int = 0
    transactions: int = 0
    blocks: int = 0
    connections: int = 0
    received_at: float = 0.0
    last_commit_time_us: int = 0


class EventParser:
    """Reads the stream of one destination. `start` and `stop` may be called repeatedly, by one thread. The next connection begins at
    `position`.
    """

    def __init__(
        self,
        source: Source,
        rules: StreamRules,
        *,
        sink: BlockSink,
        history: SchemaHistory,
        captured: Callable[[str, str], bool],
        callbacks: ParserCallbacks = NO_CALLBACKS,
        prepared: PreparedTransactions | None = None,
    ) -> None:
        self._source, self._rules, self._callbacks = source, rules, callbacks
        # The position in the shared dump at which the parser continues, or None if the parser uses its own dump.
        self._shared: SharedPosition | None = None
        self._facts: ServerFacts | None = None  # The server's facts, read when the parser connected.
        self._sink = sink
        self._history = history
        self._captured = captured
        self._prepared = prepared or MemoryPrepared()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._attempts = Attempts()
        self._continue_from_cursor = ""  # The reason with which `reconnect` was called, or empty if it was not called.
        self._displaced = False  # Whether a replica with the engine's server id or UUID ended the dump.
        self._putting = False  # Whether a block waits for space in the store.
        self._scanned: tuple[str, int] = ("", 0)  # The file and offset after the last scanned event.
        self.state = STOPPED
        self.reason = ""
        self.last_error: Exception | None = None
        self.position: Position | None = None
        self.shares = False  # Whether the parser reads a shared dump now.
        # While the parser waits for the source to catch up: a sentence that tells what the source lacks.
        self.lacks = ""
        self.warnings: list[str] = []
        self.counters = StreamCounters()

    def start(self, position: Position | None) -> None:
        """Starts to read after `position`, or at the configured start if `position` is None. Returns at once. Errors are reported to
        `on_state`.
        """
        if self._thread is not None and self._thread.is_alive():
            raise RuntimeError("the event parser runs already")
        self._stopping.clear()
        self._displaced = isinstance(self.last_error, ReplicaClashError)
        self.position, self.last_error, self._attempts = position, None, Attempts()
        self._thread = threading.Thread(target=self._run, name=f"parser-{self._source.destination}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and its dump on the server. Returns after the thread has ended. Raises SourceConnectionError if the thread has
        not ended after STOP_SECONDS_MAX.
        """
        self._stopping.set()
        self._sink.interrupt()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS_MAX)
            if self._thread.is_alive():
                raise SourceConnectionError(
                    f"the event parser of {self._source.destination} did not stop in {STOP_SECONDS_MAX:g} s: restart the engine process"
                )
        if self.last_error is None:
            self._set_state(STOPPED, "")

    def stream_state(self) -> StreamState | None:
        """Returns how far the stream has read, or None if the parser is not in the state STREAMING or has no position yet."""
        position = self.position
        if self.state != STREAMING or position is None:
            return None
        file, offset = self._scanned
        return StreamState(
            position=position, file=file, offset=offset, bytes=self.counters.bytes, held_up=self._putting
        )

    def reconnect(self, reason: str) -> None:
        """Makes the parser close its connection and open a new one, as after a lost connection. `reason` becomes the reason of the state
        RECONNECTING.
        """
        self._continue_from_cursor = reason

    # ── the thread ──

    def _run(self) -> None:
        try:
            if self._rules.sharing is not None:
                self._rules.sharing.enter()
            while not self._stopping.is_set():
                # Drops the open transaction, which the next connection sends again. If another thread has called `interrupt`, as `stop`
                # does, the sink accepts blocks again only after this thread has also called `interrupt`.
                self._sink.interrupt()
                self._stream_until_it_breaks()
        except SluiceError as error:
            self._end(error, error.code)
        except Exception as error:
            # Errors of any kind are caught, because a defect of Sluice must also set a state, and must not end the thread silently.
            log.exception("parser_failed", destination=self._source.destination)
            self._end(error, SluiceError.code)
        finally:
            self._leave_reader()
            if self._rules.sharing is not None:
                self._rules.sharing.leave()

    def _end(self, error: Exception, state: str) -> None:
        self.last_error = error
        self._set_state(state, str(error) or type(error).__name__)

    def _stream_until_it_breaks(self) -> None:
        """Streams until a new connection is needed. Raises errors that a new connection would not resolve."""
        try:
            if self._shared is not None:
                self._stream_along(self._shared)
                return
            self._set_state(CONNECTING, "")
            with self._connection() as connection:
                self._stream(connection)
        except InterruptedError:
            return
        except UndoneRowsError as error:
            # A ROLLBACK undid rows that the scan had already yielded. The next connection begins before this transaction, and the scan,
            # which knows the undone rows by then, leaves them out.
            log.info("transaction_read_again", destination=self._source.destination, reason=str(error))
        except SluiceError as error:
            if self._stopping.is_set():
                return
            if not self._attempts.tried_again(error):
                raise
            self._set_state(RECONNECTING, str(error))
            self._stopping.wait(self._attempts.wait_seconds(random.random()))  # noqa: S311  spreads attempts, protects nothing

    @contextlib.contextmanager
    def _connection(self) -> Iterator[SourceConnection]:
        """Yields a connection and ends its dump on the server afterwards. After a SourceConnectionError the connection is only closed,
        because the server has ended the dump already.
        """
        connection = SourceConnection(self._source)
        try:
            yield connection
        except SourceConnectionError:
            connection.close()
            raise
        except BaseException:
            connection.end_dump()
            raise
        else:
            connection.end_dump()

    def _stream(self, connection: SourceConnection) -> None:
        start = self._decide(connection)
        if start is None:
            return
        scanner, framer = begin_dump(
            connection,
            start,
            self._history,
            self._captured,
            prepared=self._prepared,
            rows_queries=self._rules.rows_queries,
        )
        self.counters.connections += 1
        self._continue_from_cursor, self._scanned = "", (start.position.file, start.position.offset)
        self._set_state(STREAMING, "")
        self._read(connection, scanner, framer, self._found_reader)

    def _found_reader(self) -> bool:
        """Asks for a reader of a shared dump. Returns whether there is one, so that the parser changes to it."""
        if self._rules.sharing is not None and self._facts is not None:
            self._shared = self._rules.sharing.reader(self.position, self._facts)
        if self._shared is not None:
            # If the sink has skipped the last empty transaction, `on_idle` makes the sink put this transaction into the store, because the
            # shared dump does not repeat it.
            self._callbacks.on_idle()
        return self._shared is not None

    def _stream_along(self, shared: SharedPosition) -> None:
        """Reads the dump that several parsers share, until the dump breaks or ends. Afterwards the parser opens its own connection."""
        try:
            self._rewind(shared.position)
            scanner, framer = begin_shared(shared, self._history, self._captured, prepared=self._prepared)
            self._continue_from_cursor, self._scanned, self.shares = (
                "",
                (shared.position.file, shared.position.offset),
                True,
            )
            self._read(shared.reader, scanner, framer, lambda: False)
        except FellBehindError:
            log.info("shared_stream_fell_behind", destination=self._source.destination, position=str(self.position))
        except UndoneRowsError:
            raise
        except (BinlogFormatError, PositionLostError) as error:
            if self._rules.sharing is not None:
                self._rules.sharing.refused(error)
        finally:
            self._leave_reader()

    def _leave_reader(self) -> None:
        shared, self._shared, self.shares = self._shared, None, False
        if shared is not None:
            shared.reader.close()

    def _decide(self, connection: SourceConnection) -> DumpStart | None:
        """Decides where the stream starts. If the server has purged the next files and the archive has them, reads these files and returns
        None. The next connection continues after these files. Raises StandbyBehindError or PositionLostError if the stream cannot continue.
        """
        facts = self._facts = read_facts(connection, self.position.file if self.position else self._rules.choice.file)
        self._warn(self._checked(connection, facts))
        start = decide_start(self.position, self._rules.choice, facts, self._rules.epochs())
        if (
            isinstance(start, Lost)
            and start.only_time
            and self._rules.by_time is not None
            and self.position is not None
        ):
            start = self._rules.by_time(self.position, facts, self._rules.epochs())
        self.lacks = start.reason if isinstance(start, Lost) and start.not_yet and self._rules.waits else ""
        from_archive = isinstance(start, Lost) and start.purged and self._rules.archive is not None
        if from_archive or not isinstance(start, Lost):
            self._refuse_mixed(facts)
        if isinstance(start, Lost) and start.purged and self._rules.archive is not None and self.position is not None:
            self._callbacks.learn(self._stopping.is_set)
            interval = ArchivedInterval.before_server(self._rules.archive, self.position, facts, self._stopping.is_set)
            self._read_archive(interval, self.position, facts)
            return None
        if isinstance(start, Lost):
            raise (StandbyBehindError if self.lacks else PositionLostError)(str(start))
        self._callbacks.learn(self._stopping.is_set)
        self._rewind(self.position or start.position)
        if start.position != self.position:
            self._callbacks.on_start(start)
            self.position = start.position
        return start

    def _warn(self, warnings: list[str]) -> None:
        """Logs the warnings about the source if they differ from the last ones."""
        if warnings != self.warnings:
            for warning in warnings:
                log.warning("source_warning", destination=self._source.destination, warning=warning)
        self.warnings = warnings

    def _checked(self, connection: SourceConnection, facts: ServerFacts) -> list[str]:
        """Checks the source and returns warnings. Raises SourceCheckError, or ReplicaClashError with the addresses of the clients that
        dump the binlog.
        """
        try:
            return check_source(self._source, facts, displaced=self._displaced, captured=self._captured)
        except ReplicaClashError as error:
            clients = ", ".join(dump_clients(connection)) or "addresses that the user of the engine may not see"
            raise ReplicaClashError(f"{error}. The clients that dump the server's binlog: {clients}") from error

    def unfollowed(self, facts: ServerFacts) -> str:
        """Returns why a running stream must not continue with the source's current settings, or "" if it may. Any thread may call it."""
        position = self.position
        return unfollowed_format(facts, follows_mixed=position is None or self._rules.follows_mixed(position))

    def _refuse_mixed(self, facts: ServerFacts) -> None:
        """Raises SourceCheckError if the source's binlog_format became MIXED and the schema history does not know the
        triggers and views.
        """
        if is_mixed(facts) and self.position is not None and not self._rules.follows_mixed(self.position):
            why = "binlog_format became MIXED, for which the engine must know the triggers and views of the source"
            restart = f"`sluice instance restart {self._source.destination}`"
            raise SourceCheckError(
                [
                    f"{why}: run {restart}, so that the engine reads the triggers and views, or set binlog_format back to ROW"
                ]
            )

    def _rewind(self, before: Position) -> None:
        if before.file:
            self._history.rewind(before)
            self._prepared.undone.forget_before(before)
        self._prepared.rewind(before)

    def _read_archive(self, interval: ArchivedInterval, begin: Position, facts: ServerFacts) -> None:
        count, first = len(interval.files), interval.files[0]
        self._set_state(
            RECONNECTING,
            f"the source has purged the next binlog files: the engine reads {count} archived files, from {first} on",
        )
        self._rewind(begin)
        scanner = interval.scanner(
            self._history,
            self._captured,
            self._prepared,
            executed_known=bool(begin.gtid_set),
            rows_queries=self._rules.rows_queries,
        )
        for block in interval.blocks(scanner):
            if self._stopping.is_set():
                return
            self._accept(block, scanner)
        self.position = first_of_server(self._source, facts, self.position or begin)

    def _read(
        self,
        connection: SourceConnection | DumpReader,
        scanner: Scanner,
        framer: PacketFramer,
        done: Callable[[], bool],
    ) -> None:
        heard_at = time.monotonic()
        while not self._stopping.is_set() and not done():
            if self._continue_from_cursor:
                raise SourceConnectionError(self._continue_from_cursor)
            count = connection.receive_into(framer.space(), IDLE_SECONDS)
            if count:
                heard_at = time.monotonic()
                self._take(framer, scanner, count)
            elif time.monotonic() - heard_at > limits.READ_TIMEOUT_SECONDS:
                raise SourceConnectionError(
                    f"{self._source.address} sent no event and no heartbeat before the read timeout: check the server and the network"
                )
            else:
                self._callbacks.on_idle()
            if framer.answer is not None:
                raise answer_error(self._source, framer.answer)

    def _take(self, framer: PacketFramer, scanner: Scanner, count: int) -> None:
        events, dropped = self.counters.events, self.counters.dropped_row_events
        before = scanner.counters()
        self.counters.bytes += count
        self.counters.received_at = time.time()
        try:
            for block in framer.received(count):
                self._accept(block, scanner)
        except BinlogFormatError as error:
            if error.file:
                raise
            position = scanner.position
            raise type(error)(error.reason, position.file, position.offset) from error
        position, after = scanner.position, scanner.counters()
        self._scanned = (position.file, position.offset)
        self.counters.events = events + after["events"] - before["events"]
        self.counters.dropped_row_events = dropped + after["dropped_row_events"] - before["dropped_row_events"]

    def _accept(self, block: Block, scanner: Scanner) -> None:
        # The executed set ends with this block's last transaction, because the scan continues only when the next block is requested.
        executed = scanner.position.gtid_set
        self._putting = True
        try:
            self._sink.accept(block)
        finally:
            self._putting = False
        self._attempts.succeeded()
        self.counters.blocks += 1
        self.counters.row_events += block.event_count
        self.counters.transactions += block.transaction_count
        if block.transaction_count:
            self.counters.last_commit_time_us = int(block.transaction_time_us[-1])
            self.position = Position(
                epoch=block.epoch,
                file=block.file,
                offset=int(block.transaction_end[-1]),
                gtid_set=executed,
                server_uuid=block.server_uuid,
                time_us=self.counters.last_commit_time_us,
                file_created=block.file_created,
            )

    def _set_state(self, state: str, reason: str) -> None:
        if (state, reason) != (self.state, self.reason):
            self.state, self.reason = state, reason
            log.info("parser_state", destination=self._source.destination, state=state, reason=reason)
            self._callbacks.on_state(state, reason)
