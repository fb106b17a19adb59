"""Dagster's storage in SQLite files, with connections that are used again. `sluice up` names it in dagster.yaml, unless that names another.

Dagster opens a file for each event and closes it again. SQLite then copies its log into the file and syncs both, so an event costs three to
five milliseconds of processor time and several syncs. Here a process keeps its connections, and a commit is not synced by itself: a process
that is killed loses nothing, and a host that loses power may lose the newest events, of which no promise depends (docs/reliability.md).

A run has a file of its own. Dagster creates it by its migrations, which takes 60 milliseconds; here it is a copy of an empty one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import sqlalchemy as db
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

BUSY_SECONDS_MAX = 30.0  # how long a writer waits for another one
KEPT_CONNECTIONS = 2  # of a file and a process; more are opened while more threads need them
RUN_FILES_KEPT = 8  # files of runs with open connections in a process, the newest
MIGRATIONS = "alembic_version"  # the table with the newest migration of a file
LOG_SUFFIX = "-wal"  # SQLite's log, which has the newest commits


class KeptFile:
    """The connections of this process to one SQLite file. If the file was replaced or removed, they are opened again.

    A forked process opens its own ones. It leaves those of its parent open: SQLite forbids to use or to close them there.
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

    def close(self) -> None:
        with self._lock:
            self._dispose()

    def _leave_to_parent(self) -> None:
        self._parents, self._engine, self._inode = self._engine, None, None  # a reference, so that they are not closed
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


class KeptConnections:
    """What the storages of one file share: connections that stay open, and a look at Dagster's migrations only if a table is missing.

    Comes before Dagster's class in the list of bases. `NAME`: of the file. `TABLES`: those by which a complete file is known.
    """

    NAME: ClassVar[str]
    TABLES: ClassVar[tuple[str, ...]] = (MIGRATIONS,)

    def __init__(self, conn_string: str, inst_data: ConfigurableClassData | None = None) -> None:
        self._kept = KeptFile(conn_string)
        super().__init__(conn_string, inst_data)  # type: ignore[call-arg]  # of Dagster's class

    @classmethod
    def from_local(cls, base_dir: str, inst_data: ConfigurableClassData | None = None) -> Any:
        """Returns the storage in a folder."""
        url = create_db_conn_string(base_dir, cls.NAME)
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
    """Dagster's runs, daemon heartbeats and job snapshots."""

    NAME, TABLES = "runs", (MIGRATIONS, "instance_info")


class KeptSchedules(KeptConnections, SqliteScheduleStorage):
    """Ticks and the states of sensors and schedules."""

    NAME = "schedules"


class KeptEvents(SqliteEventLogStorage):
    """Events: a file for each run, and the common file."""

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        self._files: OrderedDict[str, KeptFile] = OrderedDict()
        self._empty: bytes | None = None
        super().__init__(base_dir, inst_data)

    @contextlib.contextmanager
    def _connect(self, shard: str) -> Iterator[db.Connection]:
        with self._db_lock:
            if shard not in self._initialized_dbs:
                self._create_file(shard)
                self._initialized_dbs.add(shard)
            with self._file(shard).begin() as connection:
                yield connection

    def _file(self, shard: str) -> KeptFile:
        kept = self._files.pop(shard, None) or KeptFile(self.conn_string_for_shard(shard))
        self._files[shard] = kept
        runs = [name for name in self._files if name != INDEX_SHARD_NAME]
        for name in runs[:-RUN_FILES_KEPT]:
            self._files.pop(name).close()
        return kept

    def _create_file(self, shard: str) -> None:
        """Creates the tables of a file that has none."""
        file = Path(self.path_for_shard(shard))
        if not file.exists() and shard != INDEX_SHARD_NAME:
            _write_new(file, self._empty_file())
        if not _has_tables(self.conn_string_for_shard(shard), MIGRATIONS):
            self._initdb(self._file(shard).engine(), for_index_shard=shard == INDEX_SHARD_NAME)

    def _empty_file(self) -> bytes:
        """Returns a file with the tables of a run and no events."""
        if self._empty is None:
            folder = Path(tempfile.mkdtemp(prefix="sluice-events-"))
            try:
                engine = db.create_engine(f"sqlite:///{folder / 'empty.db'}")
                self._initdb(engine)
                engine.dispose()
                self._empty = (folder / "empty.db").read_bytes()
            finally:
                shutil.rmtree(folder)
        return self._empty

    def watch(self, run_id: str, cursor: str | None, callback: Any) -> None:
        """Calls `callback` for each new event of a run, for its page in the UI."""
        super().watch(run_id, cursor, callback)
        observer: Any = self._obs
        dagsters, watch = self._watchers[run_id][callback]
        observer.remove_handler_for_watch(dagsters, watch)
        ours = LogWatchdog(self, run_id, callback, cursor)
        self._watchers[run_id][callback] = (ours, observer.schedule(ours, self._base_dir, recursive=True))

    def dispose(self) -> None:
        super().dispose()
        with self._db_lock:
            for kept in self._files.values():
                kept.close()
            self._files.clear()


class LogWatchdog(SqliteEventLogStorageWatchdog):
    """Watches the file of a run and SQLite's log of it. Dagster watches only the file, which changes when SQLite copies the log."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._patterns = [self._log_path, self._log_path + LOG_SUFFIX]

    def on_modified(self, event: Any) -> None:  # noqa: ARG002
        """Reads the new events of the run."""
        self._process_log()


def _write_new(file: Path, content: bytes) -> None:
    """Creates the file with this content, as a whole, unless another process has created it or the file system has no links."""
    made = file.with_name(f"{file.name}.{os.getpid()}.{threading.get_ident()}.new")
    made.write_bytes(content)
    try:
        with contextlib.suppress(OSError):
            os.link(made, file)
    finally:
        made.unlink()


def _has_tables(url: str, *names: str) -> bool:
    """Returns whether a file has these tables, each with a row if it is the one of Dagster's migrations."""
    if not Path(db.make_url(url).database or "").is_file():
        return False
    engine = db.create_engine(url, poolclass=NullPool)
    try:
        with engine.connect() as connection:
            for name in names:
                row = connection.execute(db.text(f"SELECT 1 FROM {name} LIMIT 1")).fetchone()
                if name == MIGRATIONS and row is None:
                    return False
    except OperationalError:  # there is no such table
        return False
    return True


class KeptSqlite(DagsterSqliteStorage):
    """All of Dagster's storage in one folder, in the files that Dagster itself would use."""

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        # Without Dagster's own `__init__`, which opens the files by its own classes.
        self.base_dir, self._inst_data = base_dir, inst_data
        home = Path(base_dir)
        self._run_storage = KeptRuns.from_local(f"{home / 'history'}{os.sep}")
        self._event_log_storage = KeptEvents(f"{home / 'history' / 'runs'}{os.sep}")
        self._schedule_storage = KeptSchedules.from_local(str(home / "schedules"))

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]) -> KeptSqlite:
        return cls(inst_data=inst_data, **config_value)
