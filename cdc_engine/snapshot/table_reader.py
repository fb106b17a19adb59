"""Reads one table from the source or its replica for a snapshot, over one connection per thread (`work.TableReader`)."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.errors import SluiceError, SourceConnectionError
from sluice.cdc_engine.gtid import has_executed
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.snapshot.chunks import Chunk, chunks
from sluice.cdc_engine.snapshot.exact_position import Logged, Unlocked, binlog_end, rows_at_a_position
from sluice.cdc_engine.snapshot.read import ALL_ROWS, ChunkFacts, Marks, ReadRules, read_chunk
from sluice.cdc_engine.snapshot.reader import RowReader
from sluice.cdc_engine.snapshot.record import SourceEnd
from sluice.cdc_engine.snapshot.visible import view_contains, waits_for_replicas, writers_have_committed
from sluice.cdc_engine.snapshot.work import SizeEstimate
from sluice.cdc_engine.source import reader as replica

# A snapshot waits this long after it has created its reader (`SourceTable`), before it reads from a MySQL server without GTIDs. Such a
# server does not report which transactions its reads show. After the wait, reads show the transactions that were in the binlog before the
# wait, because a commit usually ends within milliseconds. A commit takes longer only if it waits for a semi-sync replica, which Sluice
# checks separately.
UNTOLD_SECONDS = 2.0


class KeptReaders:
    """Keeps the connections of a table open after the table was read, so that the next table uses them. Any thread may call the methods."""

    def __init__(self, connect: Callable[[], RowReader]) -> None:
        self._connect = connect
        self._free: list[RowReader] = []
        self._lock = threading.Lock()

    def take(self, server: str = "") -> RowReader:
        """Returns a kept connection that still answers and, if `server` is not empty, leads to the server with this identity. If there is
        no such connection, opens a new connection, whose server is not checked.
        """
        while (reader := self._freed()) is not None:
            with contextlib.suppress(SluiceError):
                if reader.server() == server or not server:
                    return reader
            reader.close()
        return self._connect()

    def give_back(self, reader: RowReader) -> None:
        if not reader.closed:
            with self._lock:
                self._free.append(reader)

    def close(self) -> None:
        """Closes the connections that no table uses."""
        while (reader := self._freed()) is not None:
            reader.close()

    def _freed(self) -> RowReader | None:
        with self._lock:
            return self._free.pop() if self._free else None


def estimates(reader: RowReader, tables: Sequence[TableVersion]) -> dict[str, SizeEstimate]:
    """Returns the server's estimates of the sizes of tables, by "database.table". Makes one query per database."""
    by_database = dict[str, list[TableVersion]]()
    for table in tables:
        by_database.setdefault(table.database, []).append(table)
    found = dict[str, SizeEstimate]()
    for database, some in by_database.items():
        rows = reader.texts(
            "SELECT TABLE_NAME, TABLE_ROWS, DATA_LENGTH FROM information_schema.TABLES WHERE "
            f"TABLE_SCHEMA = {_text_literal(database)} AND TABLE_NAME IN ({', '.join(_text_literal(each.table) for each in some)})"
        )
        named = {str(name): SizeEstimate(int(count or 0), int(size or 0)) for name, count, size in rows}
        # A server with lower_case_table_names may return a table name in another letter case than `each.table`.
        lower = {name.lower(): size for name, size in named.items()}
        found |= {each.name: named.get(each.table) or lower.get(each.table.lower(), SizeEstimate()) for each in some}
    return found


class SourceTable:
    """Reads the rows of one table for its snapshot, over connections that `connect` opens.

    - `source`: opens a connection to the server whose binlog the engine reads, if `connect` leads to a replica. Otherwise None.
    - `logged`: reads the source's binlog. It is needed to read a table without a key if the account may not lock the table.
    - `kept`: gives open connections to this reader, and gets them back. If it is None, the reader opens and closes its own connections.
    """

    def __init__(
        self,
        connect: Callable[[], RowReader],
        table: TableVersion,
        *,
        chunk_rows: int,
        rules: ReadRules = ALL_ROWS,
        source: Callable[[], RowReader] | None = None,
        logged: Logged | None = None,
        kept: KeptReaders | None = None,
    ) -> None:
        self._connect, self._table, self._chunk_rows = connect, table, chunk_rows
        self._kept, self._keeps = kept or KeptReaders(connect), kept is not None
        self._rules, self._source, self._logged = rules, source, logged
        self._own = threading.local()
        self._opened: list[RowReader] = []
        self._lock = threading.Lock()
        self._began = time.monotonic()
        # The position at which `read` read the rows of a table without a key. None for other tables.
        self._end: SourceEnd | None = None
        self._shown: Position | None = None  # The position with which `shows` was called last.
        self._server = ""  # The identity of the server whose binlog the engine reads. Empty before `shows` is called.
        # The GTID set that a replica must have executed before a new connection to it is used. The set is checked for each connection,
        # because one host name may lead to several replicas, and one of them may lag.
        self._needed = ""

    def shows(self, position: Position) -> bool:
        """Returns whether a read that begins now shows every commit up to `position`. It is not sufficient that the binlog has these
        commits: with semi-sync AFTER_SYNC, the server sends a transaction to replicas before the storage engine commits the transaction.

        After this call, each new connection is checked, and may raise SourceConnectionError. If the rows are read from the source, the
        error means that the connection leads to another server than the server of `position`. If the rows are read from a replica
        (`source.reader`), the error means that the replica did not reach `position` within a minute.
        """
        self._server, self._shown = position.server_uuid, position
        reader = self._reader()
        if self._source is not None and reader.server() != self._server:
            self._needed = position.gtid_set
            return replica.shows(reader.source.address, _executed(reader), position.gtid_set)
        if self._source is None:
            self._require_same(reader)
            _require_executed(reader, position)
        if not reader.mariadb and position.gtid_set:
            # MySQL adds a GTID to the executed set after the storage engine's commit. So a read shows all transactions of this set.
            return has_executed(_one_line(reader.texts("SELECT @@GLOBAL.gtid_executed")), position.gtid_set)
        with contextlib.closing(self._connected()) as view:
            if view.mariadb:
                return view_contains(view, position)
            if time.monotonic() - self._began < UNTOLD_SECONDS:
                return False
            return not waits_for_replicas(view) or writers_have_committed(view, self._table)

    def chunks(self, after: Chunk | None) -> Iterator[Chunk]:
        return chunks(self._reader(), self._table, self._chunk_rows, self._rules.where, after)

    def read(self, chunk: Chunk, path: Path, marks: Marks | None = None) -> ChunkFacts:
        if self._table.key:
            return self._read(self._reader(), chunk, path, marks)
        with rows_at_a_position(self._connected, self._table, self._unlocked()) as (reader, end):
            facts = self._read(reader, chunk, path)
        self._end = end
        return facts

    def _unlocked(self) -> Unlocked | None:
        begin = self._shown
        if self._logged is None or begin is None or not (begin.file and begin.gtid_set):
            return None
        return Unlocked(begin=begin, logged=self._logged)

    def _read(self, reader: RowReader, chunk: Chunk, path: Path, marks: Marks | None = None) -> ChunkFacts:
        return read_chunk(reader, self._table, chunk, path, self._rules, marks=marks)

    def end(self) -> SourceEnd:
        """Returns the current end of the binlog that the engine reads. All changes that the read rows contain are before this end, even if
        the rows were read from a replica. For a table without a key, returns the position at which the table's rows were read.
        """
        if self._end is not None:
            return self._end
        if self._source is None:
            return _end(self._reader())
        with contextlib.closing(self._source()) as reader:
            self._require_same(reader)
            return _end(reader)

    def close(self) -> None:
        """Gives all connections back to `kept`, or closes them. The caller must make sure that no thread reads any more."""
        with self._lock:
            opened, self._opened = self._opened, []
        for reader in opened:
            self._kept.give_back(reader)
        if not self._keeps:
            self._kept.close()

    def _reader(self) -> RowReader:
        """Returns the calling thread's connection. Opens a new connection if the thread has none or an error closed it."""
        reader: RowReader | None = getattr(self._own, "reader", None)
        if reader is None or reader.closed:
            reader = self._own.reader = self._checked(self._kept.take("" if self._source else self._server))
            with self._lock:
                self._opened.append(reader)
        return reader

    def _connected(self) -> RowReader:
        return self._checked(self._connect())

    def _checked(self, reader: RowReader) -> RowReader:
        """Returns the connection. If it leads to a replica, first waits until the replica has executed the GTID set `_needed`. Closes the
        connection and raises SourceConnectionError if the replica stays behind, or if the connection leads to another server than the one
        that must be read.
        """
        if self._source is None:
            self._require_same(reader)
        elif self._needed:
            _wait_for_replica(reader, self._needed)
        return reader

    def _require_same(self, reader: RowReader) -> None:
        """Raises SourceConnectionError if a connection does not lead to the server whose binlog the engine reads. The server may change
        during the reading, because another source was chosen, or because an address now leads to another server. Positions of one server
        have no meaning on another server.
        """
        if self._server and (found := reader.server()) != self._server:
            reader.close()
            raise SourceConnectionError(
                f"{reader.source.address} leads to the server {found}, but the last merged change is of the "
                f"server {self._server}, so rows and buffered changes may be of different servers. Sluice "
                "tries again, and continues after a change of the new server is merged"
            )


def _require_executed(reader: RowReader, position: Position) -> None:
    """Raises SourceConnectionError if a MariaDB server lacks, in any GTID domain, a transaction that the engine has read. A comparison of
    server ids is not sufficient, because a server that was rebuilt has the same id as before. Does nothing on MySQL, whose servers have a
    UUID.
    """
    if not reader.mariadb or not position.gtid_set:
        return
    executed = _one_line(reader.texts("SELECT @@GLOBAL.gtid_binlog_pos"))
    if not has_executed(executed, position.gtid_set):
        raise SourceConnectionError(
            f"{reader.source.address} has executed only {executed or 'nothing'}, but the engine has read the stream up to "
            f"{position.gtid_set}: the server was reset or restored, or is another server, so its rows do not "
            "match the changes of the stream. Sluice tries again"
        )


def _executed(reader: RowReader) -> str:
    """Returns the GTID set that a replica has executed. A read that begins afterwards shows all transactions of this set."""
    return _one_line(reader.texts(replica.EXECUTED[reader.mariadb]))


def _wait_for_replica(reader: RowReader, needed: str) -> None:
    """Waits until the replica to which a new connection leads has executed the GTID set `needed`. Raises SourceConnectionError if the
    replica stays behind. Closes the connection after any error.
    """
    with contextlib.ExitStack() as refused:
        refused.callback(reader.close)
        if why := replica.still_behind(reader.source.address, functools.partial(_executed, reader), needed):
            raise SourceConnectionError(why)
        refused.pop_all()


def _end(reader: RowReader) -> SourceEnd:
    executed = "@@GLOBAL.gtid_current_pos" if reader.mariadb else "@@GLOBAL.gtid_executed"
    answer = _one_line(reader.texts(f"SELECT {executed}"))
    file, offset = binlog_end(reader)
    return SourceEnd(file=file, offset=offset, executed=answer)


def _one_line(rows: list[tuple[str | None, ...]]) -> str:
    return replica.one_line(rows[0][0]) if rows else ""


def _text_literal(text: str) -> str:
    return f"CONVERT(x'{text.encode().hex()}' USING utf8mb4)" if text else "''"
