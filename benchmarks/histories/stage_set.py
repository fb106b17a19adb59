"""Replaces production's dependencies by the simulated ones while histories run in this process.

Sockets, Spark, deltalake, Parquet, clocks, and threads that only wait are replaced. Code that makes decisions is not replaced.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import sluice.orchestration.sensor.tick
import sluice.spark_jobs.batch.run_batch
import sluice.spark_jobs.consistent_snapshots
import sluice.spark_jobs.staged_files.read
import sluice.spark_jobs.tables.lake_look
from benchmarks.histories.connection import PlayedConnection
from benchmarks.histories.engine_host import (
    GuardedFiles,
    InlinePool,
    PlayedHistory,
    PlayedParser,
    make_played_stager,
)
from benchmarks.histories.lake import PlayedDeltalake, PlayedDeltaTable
from benchmarks.histories.statements import PlayedSession, read_images
from sluice.cdc_engine.destination_files.lake_tables import FOLDER as LAKE_TABLES
from sluice.cdc_engine.durable_files import replace_file
from sluice.cdc_engine.instance.batches import hand_out
from sluice.cdc_engine.instance.engine import begin, engine, wiring
from sluice.cdc_engine.meta import ledger_record, stored_ledger
from sluice.cdc_engine.meta.stored_ledger import LEDGER
from sluice.cdc_engine.parser.connection import SourceConnection
from sluice.cdc_engine.records import files
from sluice.cdc_engine.staging import batches
from sluice.spark_jobs.fence import Fence
from sluice.spark_jobs.session import LakeSession

if TYPE_CHECKING:
    from benchmarks.histories.world import World

# Modules that read a clock to make decisions, and therefore get the simulated clock.
TIMED = ("sluice.cdc_engine.instance.", "sluice.cdc_engine.parser.stream.event_parser", "sluice.orchestration.")
OURS = ("sluice.cdc_engine", "sluice.orchestration", "sluice.spark_jobs", "sluice.console")
MOMENT_SECONDS = 1e-9  # Production waits only this long where it would wait in real time.
MEMORY = "/dev/shm"  # noqa: S108  a disk in memory, where there is one


class _Silent:
    """Replaces structlog's loggers."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class _PlayedParquet:
    """Replaces `pyarrow.parquet` where production reads the footer of a staged file."""

    @staticmethod
    def read_metadata(path: Path) -> Any:
        names = ["_sluice_operation", "_sluice_order_key", "_sluice_row", "_sluice_commit_time", "id", "number"]
        schema = SimpleNamespace(to_arrow_schema=lambda: SimpleNamespace(names=names))
        return SimpleNamespace(num_rows=len(read_images(path)), schema=schema)


class _PlainJson:
    """Replaces `json` where production writes the ledger, and writes without indentation, which is ten times as fast."""

    loads = staticmethod(json.loads)

    @staticmethod
    def dumps(record: Any, indent: int) -> str:
        del indent
        return json.dumps(record)


_current: list[World] = []


def present(world: World) -> None:
    """Connects all simulated dependencies to this history."""
    _current[:] = [world]
    PlayedConnection.world = GuardedFiles.world = world
    PlayedDeltaTable.lake = world.lake


@contextlib.contextmanager
def staged() -> Iterator[Path]:
    """Installs the simulated dependencies until the block ends. Yields a folder for the files of histories, which is removed at the end."""
    memory = MEMORY if Path(MEMORY).is_dir() else None
    disabled = logging.root.manager.disable
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="histories-", dir=memory)))
        for target, name, value in _replacements():
            stack.enter_context(mock.patch.object(target, name, value))
        stack.callback(logging.disable, disabled)
        logging.disable(logging.CRITICAL)
        yield folder


def _replacements() -> Iterator[tuple[Any, str, Any]]:
    yield wiring, "TableHistory", PlayedHistory
    yield wiring, "PublishedHistory", lambda history, *_, **__: history
    yield wiring, "TableListWriter", lambda *_, **__: None
    yield wiring, "EventParser", PlayedParser
    yield (
        begin,
        "stable_snapshot",
        lambda _, __, position_now, **___: (SimpleNamespace(elsewhere=(), tables=()), position_now()),
    )
    yield begin, "_of_then", lambda _, snapshot, __: snapshot
    yield engine, "make_stager", make_played_stager
    yield hand_out, "ThreadPoolExecutor", InlinePool
    yield hand_out, "GET_SECONDS", MOMENT_SECONDS
    yield batches, "shutil", GuardedFiles
    yield ledger_record, "json", _PlainJson
    # The events of a tick are left out, because only Dagster's pages use them.
    yield sluice.orchestration.sensor.tick, "due", lambda *_, published, **__: ([], published)
    yield files, "replace_file", _replace_record
    # A process that holds the lock is suspended until the history continues. So a wait for the lock would take real time and change
    # nothing.
    yield files, "LOCK_SECONDS_MAX", MOMENT_SECONDS
    yield stored_ledger, "born_id", _born_id
    yield sluice.spark_jobs.batch.run_batch, "ThreadPoolExecutor", InlinePool
    yield sluice.spark_jobs.batch.run_batch, "open_sessions", _open_sessions
    yield sluice.spark_jobs.consistent_snapshots, "publish_consistent_snapshot", lambda *_: False
    yield sluice.spark_jobs.staged_files.read, "pq", _PlayedParquet
    for name, module in [(name, each) for name, each in list(sys.modules.items()) if name.startswith(OURS)]:
        if getattr(module, "time", None) is time and name.startswith(TIMED):
            yield module, "time", _Clock()
        if getattr(module, "SourceConnection", None) is SourceConnection:
            yield module, "SourceConnection", PlayedConnection
        if getattr(module, "deltalake", None) is sys.modules.get("deltalake"):
            yield module, "deltalake", PlayedDeltalake
        if type(getattr(module, "log", None)).__module__.startswith("structlog"):
            yield module, "log", _Silent()


def _born_id() -> str:
    return _current[0].born_id()


def _replace_record(path: Path, content: bytes) -> None:
    """Replaces the durable write of a record. Writes of the ledger, and of the records of lake tables, can have faults."""
    if path.name == LEDGER:
        _current[0].keep_ledger(path, content.decode())
    elif path.parent.name == LAKE_TABLES:
        path.parent.mkdir(exist_ok=True)
        _current[0].trouble.reach("record", lambda: path.write_bytes(content), lambda: OSError(28, "No space left"))
    else:
        replace_file(path, content)


class _Clock:
    """Replaces the module `time` by the clock of the current history."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_current[0].clock, name)


@contextlib.contextmanager
def _open_sessions(_: Any, count: int, fence: Fence) -> Iterator[list[LakeSession]]:
    world = _current[0]
    sessions = [LakeSession(PlayedSession(world.lake, world.trouble)) for _ in range(count)]
    for session in sessions:
        session.fence = fence
    yield sessions
