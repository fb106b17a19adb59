"""Stores Dagster's data in SQLite files with connections that stay open. `sluice up` configures this storage, unless the user's
dagster.yaml names another one.

Dagster's own storage opens and closes a file for each event. SQLite then copies its write-ahead log into the file and syncs both, so an
event costs three to five milliseconds of processor time and several syncs. With this storage, a process keeps its connections open, and
SQLite does not sync each commit. A killed process loses at most the events that its open `with` blocks of `together` have not committed. If
the host loses power, the newest events may be lost. No promise of Sluice depends on these events (docs/reliability.md).

Each run has its own event file. Dagster creates an event file with migrations, which takes 60 milliseconds. This storage copies an empty
event file instead.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import shutil
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import sqlalchemy as db
from dagster._core.events import ASSET_EVENTS
from dagster._core.events.log import EventLogEntry
from dagster._core.scheduler.instigation import TickStatus
from dagster._core.storage.event_log.sqlite.sqlite_event_log import (
    INDEX_SHARD_NAME,
    SqliteEventLogStorage,
    SqliteEventLogStorageWatchdog,
)
from dagster._core.storage.runs.sqlite.sqlite_run_storage import SqliteRunStorage
from dagster._core.storage.schedules.sqlite.sqlite_schedule_storage import SqliteScheduleStorage
from dagster._core.storage.sqlite import create_db_conn_string
from dagster._core.storage.sqlite_storage import DagsterSqliteStorage
from dagster._serdes import ConfigurableClassData
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool, QueuePool

from sluice.cdc_engine.durable_files import FileStamp, stamp_of
from sluice.cdc_engine.file_lock import locked

BUSY_SECONDS_MAX = 30.0  # A writer waits at most this long for another writer. After that, its write fails.
# A process keeps this many connections per file open. If more threads need a connection at the same time, it opens more, and closes the
# additional ones afterwards.
KEPT_CONNECTIONS = 2
# Old ticks are removed at most once in this many seconds. Dagster keeps ticks for days, so some minutes more do not matter.
PURGE_SECONDS = 600.0
# A process keeps the connections of this many run files open: those that it used last.
RUN_FILES_KEPT = 8
# Within `KeptEvents.together`, the events are committed as soon as an event is stored more than this time after the first one, because
# other processes wait for the files. The end of the `with` block commits the rest.
JOINED_SECONDS_MAX = 0.25
MIGRATIONS = "alembic_version"  # This table has the newest migration of a file.
RUN_PAGE_BYTES = 1024  # The size of a page in the file of a run. SQLite's own is 4096.
JOB_SUFFIX = "_job"  # The name of a merge job is the name of its step with this ending.
NO_LOG: FileStamp = (0, 0, 0)
LOG_SUFFIX = "-wal"  # SQLite's write-ahead log, which contains the newest commits.


class KeptFile:
    """This process's open connections to one SQLite file. If the file was replaced or removed, the connections are opened again.

    A forked process opens new connections. A forked process neither uses nor closes the connections of its parent, because SQLite forbids
    both.
    """

    def __init__(self, url: str) -> None:
        self._url, self._path = url, db.make_url(url).database or ""
        self._lock = threading.Lock()
        self._engine: db.Engine | None = None
        self._inode: int | None = None
        self._process = os.getpid()

    @contextlib.contextmanager
    def begin(self) -> Iterator[db.Connection]:
        """Yields a connection in a transaction, which is committed at the end."""
        with self.engine().connect() as connection, connection.begin():
            yield connection

    def engine(self) -> db.Engine:
        if self._process != os.getpid():
            self._leave_to_parent()
        with self._lock:
            inode = self._inode_now()
            if self._engine is None or (self._inode is not None and inode != self._inode):
                self._dispose()
                self._engine = self._create()
            self._inode = inode
            return self._engine

    def stamp(self) -> tuple[FileStamp, FileStamp] | None:
        """Returns a value that changes when a process writes to the file. Returns None if the value may not reflect a recent write yet."""
        log = Path(self._path + LOG_SUFFIX)
        file, of_log = stamp_of(Path(self._path)), stamp_of(log) if log.exists() else NO_LOG
        return (file, of_log) if file is not None and of_log is not None else None

    def close(self) -> None:
        with self._lock:
            self._dispose()

    def _leave_to_parent(self) -> None:
        # Called in a forked process. The reference `_parents` stays, because Python would otherwise close the parent's connections.
        self._parents, self._engine, self._inode = self._engine, None, None
        self._lock, self._process = threading.Lock(), os.getpid()

    def _dispose(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
        self._engine, self._inode = None, None

    def _inode_now(self) -> int | None:
        try:
            return Path(self._path).stat().st_ino
        except FileNotFoundError:
            return None

    def _create(self) -> db.Engine:
        engine = db.create_engine(
            self._url,
            poolclass=QueuePool,
            pool_size=KEPT_CONNECTIONS,
            max_overflow=-1,
            connect_args={"timeout": BUSY_SECONDS_MAX, "check_same_thread": False},
        )
        db.event.listen(engine, "connect", _sync_at_checkpoints)
        return engine


def _sync_at_checkpoints(connection: Any, _: Any) -> None:
    connection.execute("PRAGMA synchronous = NORMAL").close()


def _small_pages(connection: Any, _: Any) -> None:
    """Makes the pages of a new file small. Most of the 25 tables and indexes of a run's file are empty, and each takes a page."""
    connection.execute(f"PRAGMA page_size = {RUN_PAGE_BYTES}").close()


def _stored_form(event: EventLogEntry) -> EventLogEntry:
    """Returns the event in the form that is stored. The output of a merge step loses its metadata, because the materialization of the
    output's table has the same metadata. All other events stay as they are.
    """
    found = event.dagster_event
    if found is None or not found.is_successful_output or f"{event.step_key}{JOB_SUFFIX}" != event.job_name:
        return event
    bare = found.step_output_data._replace(metadata={})
    return event._replace(dagster_event=found._replace(event_specific_data=bare))


class KeptConnections:
    """The base class of storages with one file. Connections stay open, and Dagster's migrations run only if a table is missing.

    A subclass must list this class before Dagster's class in its bases. `NAME` is the name of the file. `TABLES` are the tables of a
    complete file.
    """

    NAME: ClassVar[str]
    TABLES: ClassVar[tuple[str, ...]] = (MIGRATIONS,)

    def __init__(self, conn_string: str, inst_data: ConfigurableClassData | None = None) -> None:
        self._kept = KeptFile(conn_string)
        super().__init__(conn_string, inst_data)  # type: ignore[call-arg]  # of Dagster's class

    @classmethod
    def from_local(cls, base_dir: str, inst_data: ConfigurableClassData | None = None) -> Any:
        """Returns the storage in the folder `base_dir`. If its SQLite file is missing or lacks one of TABLES, Dagster's migrations first
        create what is missing.
        """
        url = create_db_conn_string(base_dir, cls.NAME)
        if _has_tables(url, *cls.TABLES):
            return cls(url, inst_data)
        # The daemon, the webserver and `sluice up` open a new storage at the same time, and Dagster's migrations fail if two processes run
        # them at once.
        with locked(Path(base_dir) / f"{cls.NAME}.lock"):
            if _has_tables(url, *cls.TABLES):
                return cls(url, inst_data)
            return super().from_local(base_dir, inst_data)  # type: ignore[misc]  # of Dagster's class

    @contextlib.contextmanager
    def connect(self) -> Iterator[db.Connection]:
        with self._kept.begin() as connection:
            yield connection

    def dispose(self) -> None:
        self._kept.close()
        super().dispose()  # type: ignore[misc]  # of Dagster's class


class KeptRuns(KeptConnections, SqliteRunStorage):
    """Stores Dagster's runs, the heartbeats of its daemons, and its stored definitions of jobs."""

    NAME, TABLES = "runs", (MIGRATIONS, "instance_info")

    def stamp(self) -> object:
        """Returns a value that changes when a process writes to the file of the runs. Returns None if the value may not reflect a recent
        write yet.
        """
        return self._kept.stamp()


class KeptSchedules(KeptConnections, SqliteScheduleStorage):
    """Stores ticks and the states of sensors and schedules. Dagster removes old ticks after each tick. This storage does so at most every
    PURGE_SECONDS for each sensor.
    """

    NAME = "schedules"

    def __init__(self, conn_string: str, inst_data: ConfigurableClassData | None = None) -> None:
        self._purged: dict[tuple[str, frozenset[TickStatus]], float] = {}
        super().__init__(conn_string, inst_data)

    def purge_ticks(
        self, origin_id: str, selector_id: str, before: float, tick_statuses: Sequence[TickStatus] | None = None
    ) -> None:
        """Removes ticks with these statuses that are older than `before` (seconds since 1970). Does nothing if this was done for the same
        sensor and statuses less than PURGE_SECONDS ago.
        """
        key, now = (selector_id, frozenset(tick_statuses or ())), time.monotonic()
        if now - self._purged.get(key, -math.inf) >= PURGE_SECONDS:
            super().purge_ticks(origin_id, selector_id, before, tick_statuses)
            self._purged[key] = now


class KeptEvents(SqliteEventLogStorage):
    """Stores events in one file for each run and one common file. Within `together`, several events share a transaction of each file."""

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        self._files: OrderedDict[str, KeptFile] = OrderedDict()
        self._empty: bytes | None = None
        self._there = set[str]()  # Tables of the common file, and columns of its table of assets, that were found.
        self._joined = _Joined()
        super().__init__(base_dir, inst_data)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Stores the events of this thread in one transaction of each file. The transactions are committed at the end of the `with` block,
        even if the block raises an error. They are also committed when an event is stored more than JOINED_SECONDS_MAX after their first
        event. Until a transaction is committed, other processes that write its file wait.

        The `with` block must not contain a `yield`: if the generator is never continued, the transactions stay open.
        """
        if self._joined.is_open:
            yield
            return
        self._joined.is_open = True
        try:
            yield
        finally:
            self._joined.is_open = False
            self._commit_joined()

    def store_now(self) -> None:
        """Stores the events that the `with` block of `together` in this thread has not stored yet. Does nothing outside such a `with`
        block.
        """
        self._commit_joined()

    @contextlib.contextmanager
    def _connect(self, shard: str) -> Iterator[db.Connection]:
        if not self._joined.is_open:
            with self._db_lock, self._opened(shard) as connection:
                yield connection
            return
        if self._joined.transactions is None:
            # This thread holds the lock until its events are committed, and other threads of the process wait for the lock. Otherwise
            # another thread could take the lock between two events, and keep the lock while it waits in SQLite for the end of this thread's
            # transaction. The two threads would then wait for each other.
            self._db_lock.acquire()
            self._joined.begin()
        yield self._joined.connection(shard, self._opened)
        if self._joined.is_due:
            self._commit_joined()

    def _commit_joined(self) -> None:
        if self._joined.transactions is not None:
            try:
                self._joined.commit()
            finally:
                self._db_lock.release()

    @contextlib.contextmanager
    def _opened(self, shard: str) -> Iterator[db.Connection]:
        if shard not in self._initialized_dbs:
            self._create_file(shard)
            self._initialized_dbs.add(shard)
        with self._file(shard).begin() as connection:
            yield connection

    def has_table(self, table_name: str) -> bool:
        """Returns whether the common file has a table. Dagster calls this for each event. An answer True is remembered, because tables are
        never removed.
        """
        return self._is_there(table_name, functools.partial(super().has_table, table_name))

    def _has_asset_key_col_on_connection(self, conn: db.Connection, column_name: str) -> bool:
        look = functools.partial(super()._has_asset_key_col_on_connection, conn, column_name)
        return self._is_there(f"column {column_name}", look)

    def _is_there(self, name: str, look: Callable[[], bool]) -> bool:
        if name not in self._there and look():
            self._there.add(name)
        return name in self._there

    def _file(self, shard: str) -> KeptFile:
        kept = self._files.pop(shard, None) or KeptFile(self.conn_string_for_shard(shard))
        self._files[shard] = kept
        runs = [name for name in self._files if name != INDEX_SHARD_NAME]
        for name in runs[:-RUN_FILES_KEPT]:
            self._files.pop(name).close()
        return kept

    def _create_file(self, shard: str) -> None:
        """Creates an event file if it does not exist, and its tables if it has none. The new file of a run is a copy of `_empty_file`."""
        file = Path(self.path_for_shard(shard))
        if not file.exists() and shard != INDEX_SHARD_NAME:
            _write_new(file, self._empty_file())
        if not _has_tables(self.conn_string_for_shard(shard), MIGRATIONS):
            self._initdb(self._file(shard).engine(), for_index_shard=shard == INDEX_SHARD_NAME)

    def _empty_file(self) -> bytes:
        """Returns the content of a run's event file with all tables and no events."""
        if self._empty is None:
            folder = Path(tempfile.mkdtemp(prefix="sluice-events-"))
            try:
                engine = db.create_engine(f"sqlite:///{folder / 'empty.db'}")
                db.event.listen(engine, "connect", _small_pages)
                self._initdb(engine)
                engine.dispose()
                self._empty = (folder / "empty.db").read_bytes()
            finally:
                shutil.rmtree(folder)
        return self._empty

    def prepare_insert_event(self, event: EventLogEntry) -> Any:
        """Prepares the insertion of an event, and removes the metadata from the output of a merge step (`_stored_form`)."""
        return super().prepare_insert_event(_stored_form(event))

    def store_event_batch(self, events: Sequence[EventLogEntry]) -> None:
        """Stores the events of one run with one transaction per file, if all of them are events of assets. Stores other events, and events
        of several runs, as Dagster does. Dagster calls this for the materializations that a run plans.
        """
        kinds = {each.dagster_event_type if each.is_dagster_event else None for each in events}
        if len({each.run_id for each in events}) > 1 or kinds - ASSET_EVENTS:
            super().store_event_batch(events)
            return
        statements = [self.prepare_insert_event(each) for each in events]
        with self.run_connection(events[0].run_id) as connection:
            for statement in statements:
                connection.execute(statement)
        with self.index_transaction() as connection:
            keys: list[Any] = [connection.execute(statement).inserted_primary_key for statement in statements]
            ids = [key[0] for key in keys]
            self._store_asset_event_tags(connection, events, ids)
            for event, event_id in zip(events, ids, strict=True):
                self._store_asset_event(connection, event, event_id)

    def watch(self, run_id: str, cursor: str | None, callback: Any) -> None:
        """Calls `callback` for each new event of a run. The run's page in Dagster's UI needs these calls. Replaces Dagster's watchdog by
        LogWatchdog, because Dagster's watchdog notices new events late.
        """
        super().watch(run_id, cursor, callback)
        observer: Any = self._obs
        dagsters, watch = self._watchers[run_id][callback]
        observer.remove_handler_for_watch(dagsters, watch)
        ours = LogWatchdog(self, run_id, callback, cursor)
        self._watchers[run_id][callback] = (ours, observer.schedule(ours, self._base_dir, recursive=True))

    def dispose(self) -> None:
        super().dispose()
        self._commit_joined()  # Otherwise the next line would wait forever if this thread is within `together`.
        with self._db_lock:
            for kept in self._files.values():
                kept.close()
            self._files.clear()


class _Joined(threading.local):
    """The transactions in which a thread stores several events (`KeptEvents.together`). `is_open` is True within a `with` block of
    `together`. `transactions` is None until the first event in this `with` block is stored, and after each commit.
    """

    is_open = False
    transactions: contextlib.ExitStack | None = None

    def begin(self) -> None:
        self.transactions, self._begun = contextlib.ExitStack(), time.monotonic()
        self._connections: dict[str, db.Connection] = {}

    def connection(
        self, shard: str, opened: Callable[[str], contextlib.AbstractContextManager[db.Connection]]
    ) -> db.Connection:
        """Returns the connection of a file's transaction. Begins the transaction if there is none."""
        if shard not in self._connections and self.transactions is not None:
            self._connections[shard] = self.transactions.enter_context(opened(shard))
        return self._connections[shard]

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self._begun > JOINED_SECONDS_MAX

    def commit(self) -> None:
        transactions, self.transactions, self._connections = self.transactions, None, {}
        if transactions is not None:
            transactions.close()


class LogWatchdog(SqliteEventLogStorageWatchdog):
    """Watches a run's event file and its write-ahead log. Dagster's own watchdog watches only the event file, which SQLite changes
    later, when it copies the log into the file.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._patterns = [self._log_path, self._log_path + LOG_SUFFIX]

    def on_modified(self, event: Any) -> None:  # noqa: ARG002
        """Passes the new events of the run to the callback."""
        self._process_log()


def _write_new(file: Path, content: bytes) -> None:
    """Creates a file with this content in one step: other processes see no file, or the whole file. Does nothing if the file exists, or if
    the file system has no hard links. Without hard links, the caller creates the file with Dagster's migrations.
    """
    made = file.with_name(f"{file.name}.{os.getpid()}.{threading.get_ident()}.new")
    made.write_bytes(content)
    try:
        with contextlib.suppress(OSError):
            os.link(made, file)
    finally:
        made.unlink()


def _has_tables(url: str, *names: str) -> bool:
    """Returns True if the SQLite file of `url` has all tables in `names`. If `names` has MIGRATIONS, this table must also have a row.
    Returns False if the file does not exist.
    """
    if not Path(db.make_url(url).database or "").is_file():
        return False
    engine = db.create_engine(url, poolclass=NullPool)
    try:
        with engine.connect() as connection:
            for name in names:
                row = connection.execute(db.text(f"SELECT 1 FROM {name} LIMIT 1")).fetchone()
                if name == MIGRATIONS and row is None:
                    return False
    except OperationalError:  # SQLite raises this error if a table does not exist.
        return False
    return True


class KeptSqlite(DagsterSqliteStorage):
    """Stores all of Dagster's data in one folder, in the files that Dagster itself would use."""

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        # Dagster's own `__init__` is not called, because it opens the files with its own classes.
        self.base_dir, self._inst_data = base_dir, inst_data
        home = Path(base_dir)
        self._run_storage = KeptRuns.from_local(f"{home / 'history'}{os.sep}")
        self._event_log_storage = KeptEvents(f"{home / 'history' / 'runs'}{os.sep}")
        self._schedule_storage = KeptSchedules.from_local(str(home / "schedules"))

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]) -> KeptSqlite:
        return cls(inst_data=inst_data, **config_value)
