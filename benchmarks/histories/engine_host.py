"""Runs the engine of one destination, production's `Engine` with its ledger file, lease and parser, as a process that can die.

Three things are replaced: the parser's wait for bytes, staging (`staging`), and the schema history, which is not tested here. A crash is a
`Crash` that propagates through the production code. Everything that this code would still write while the `Crash` propagates is suppressed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar, Protocol

from benchmarks.histories.binlog_bytes import DATABASE, KEYED, KEYLESS
from benchmarks.histories.connection import PlayedConnection
from benchmarks.histories.faults import Actor, Clock, Crash, Trouble
from benchmarks.histories.staging import PlayedStaging
from sluice.batch_manifest.values import Cascade
from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.contracts import NO_SESSION, Column, StatementSession, TableChange, TableChangeKind, TableVersion
from sluice.cdc_engine.errors import LeaseLostError, SluiceError, SourceConnectionError
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.parser.connection import SourceConnection
from sluice.cdc_engine.parser.start_position import DumpStart
from sluice.cdc_engine.parser.stream.event_parser import EventParser
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.staging.stager import RulesFor
from sluice.cdc_engine.table_meta.history.kept.repository import HistoryRecord, RecordKind, Repository

COLUMNS = (Column(name="id", type_code=3, mysql_type="int"), Column(name="number", type_code=8, mysql_type="bigint"))
TABLES: dict[str, tuple[str, ...]] = {KEYED: ("id",), KEYLESS: ()}  # Table → the columns of its key.


class PlayedHistory:
    """A schema history with two tables that never change. This class replaces `TableHistory` and `PublishedHistory`. The history has a
    file, because production checks whether the file of a schema history exists.
    """

    def __init__(self, repository: Repository, *_: Any) -> None:
        self._repository = repository

    def covers(self, position: Position) -> bool:  # noqa: ARG002
        return bool(self._repository.look())

    def follows_objects(self, position: Position) -> bool:  # noqa: ARG002  nothing changes rows without row events
        return True

    knows_objects = follows_objects

    def seed(self, snapshot: Any, position: Position) -> None:  # noqa: ARG002  no table of it ever changes
        record = HistoryRecord(kind=RecordKind.SERVER, position=position)
        self._repository.replace([record])

    def compact(self, position: Position, records_min: int = 1) -> int:  # noqa: ARG002
        return 0

    def versions(self, position: Position) -> tuple[TableVersion, ...]:  # noqa: ARG002
        return tuple(self._version(table) for table in TABLES)

    def table_names(self) -> list[tuple[str, str]]:
        return [(DATABASE, table) for table in TABLES]

    def state(self, database: str, table: str, position: Position) -> None:
        """Returns None, because the engine only needs to know at its start whether a table was dropped."""

    @property
    def names(self) -> frozenset[str]:
        return frozenset(f"{DATABASE}.{table}" for table in TABLES)

    def publish(self, position: Position) -> None:
        """Does nothing, because only Dagster's pages use the list of tables."""

    def rewind(self, position: Position) -> None:
        """Does nothing, because the tables never change."""

    def resolve(self, table_map: Any, position: Position) -> TableVersion:  # noqa: ARG002
        return self._version(table_map.table)

    @staticmethod
    def _version(table: str) -> TableVersion:
        return TableVersion(database=DATABASE, table=table, columns=COLUMNS, key=TABLES[table], version="1")

    def all_cascades(self) -> tuple[Cascade, ...]:
        return ()

    def cascades(self, database: str, table: str) -> tuple[Cascade, ...]:  # noqa: ARG002
        return ()

    def is_undone(self, database: str, table: str) -> bool:  # noqa: ARG002
        return True

    def follows(self, database: str, table: str) -> bool:  # noqa: ARG002
        return False

    def apply(
        self, statement: str, default_database: str, position: Position, session: StatementSession = NO_SESSION
    ) -> tuple[TableChange, ...]:
        del session
        table = statement.removeprefix("TRUNCATE TABLE ")
        change = TableChange(
            kind=TableChangeKind.TRUNCATE,
            database=default_database,
            table=table,
            order_key=position.order_key,
            time_us=position.time_us,
        )
        return (change,)


class _Flag(threading.Event):
    """The parser's stop flag. A parser that waits between two connections is suspended here until the history resumes it."""

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is not None and not self.is_set():
            actor = getattr(Actor.current, "actor", None)
            if actor is not None:
                actor.suspend()
        return self.is_set()


class SimulatedHosts(Protocol):
    """The parts of `world.World` that the simulated processes of engines use."""

    clock: Clock
    trouble: Trouble

    @property
    def lines(self) -> Sequence[SimulatedInstallation]: ...


class SimulatedInstallation(Protocol):
    """The parts of `world.Installation` that the simulated staging uses."""

    host: EngineHost

    @property
    def directory(self) -> Path: ...


class PlayedParser(EventParser):
    """Runs production's parser. The parser's thread runs only while the history resumes it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._stopping = _Flag()
        self.actor: Actor | None = None

    def _run(self) -> None:
        actor = self.actor
        assert actor is not None
        actor.run()

    def start(self, position: Position | None) -> None:
        if self.actor is not None and not self.actor.ended:
            raise RuntimeError("the parser runs already")
        self.actor = Actor(super()._run)
        self.actor.stopping = self._stopping.is_set
        super().start(position)

    def _decide(self, connection: SourceConnection) -> DumpStart | None:
        if isinstance(connection, PlayedConnection):
            connection.note_stream()
        return super()._decide(connection)

    def stop(self) -> None:
        """Stops the parser. Raises SourceConnectionError if a fault keeps the thread from stopping in time."""
        error = SourceConnectionError(f"the parser of {self._source.destination} did not stop: played")
        GuardedFiles.world.trouble.reach("rewind", self._stop_now, lambda: error)

    def _stop_now(self) -> None:
        self._stopping.set()
        if self.actor is not None:
            self.actor.resume()
        EventParser.stop(self)

    def advance(self) -> None:
        """Lets the parser make one connection, or read once. Raises Crash if the parser's process died."""
        if self.actor is not None and not self.actor.ended:
            self.actor.resume()
            if self.actor.crashed:
                raise Crash


class InlinePool:
    """Replaces `ThreadPoolExecutor`, and executes work at once, in the caller's thread."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Starts no threads."""

    def __enter__(self) -> InlinePool:
        return self

    def __exit__(self, *_: object) -> None:
        """Does nothing, because no work is pending."""

    def submit(self, act: Any, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(act(*arguments))
        except BaseException as error:
            future.set_exception(error)
        return future

    def shutdown(self, **_: Any) -> None:
        """Does nothing, because no work is pending."""


class GuardedFiles:
    """Replaces `shutil` where production cleans up after an error. A process that has died must not clean up."""

    world: ClassVar[SimulatedHosts]

    @staticmethod
    def rmtree(path: Path, *, ignore_errors: bool = False) -> None:
        if not GuardedFiles.world.trouble.dying:
            shutil.rmtree(path, ignore_errors=ignore_errors)


@dataclasses.dataclass
class EngineHost:
    """Implements `ports.EngineHost` for one destination. `engine` is None while no process runs it."""

    world: SimulatedHosts
    config: SluiceConfig
    destination: str
    engine: Engine | None = None
    trouble: str = ""  # Says why the engine could not be started.

    def get_or_start(self, destination: str) -> Engine:
        assert destination == self.destination
        if self.engine is not None and self.engine.holds_lease:
            return self.engine
        self.stop()
        try:
            self.engine = self._started()
        except SluiceError as error:
            self.trouble = f"{error.code}: {error}"
            raise
        self.trouble = ""
        return self.engine

    def _started(self) -> Engine:
        """Starts an engine as `Engine.start` does, but without the thread that writes its status."""
        engine = Engine(self.config, self.destination)
        engine.directory.mkdir(parents=True, exist_ok=True)
        if not engine._lease.try_acquire():
            raise LeaseLostError("another process has the destination")
        try:
            engine._open()
            assert engine._watch is not None
            engine._watch._clock = self.world.clock.monotonic
        except BaseException:
            engine._lease.release()
            raise
        return engine

    def stop(self) -> None:
        """Stops the engine as SIGTERM does."""
        if self.engine is not None:
            self.engine.stop()
        self.engine = None

    def die(self) -> None:
        """Kills the engine's process as SIGKILL does. The process's files stay as they are, and its lease is released."""
        engine, self.engine = self.engine, None
        if engine is None:
            return
        parser = self.parser_of(engine)
        if parser is not None and parser.actor is not None:
            with self.world.trouble.death():
                parser.actor.kill()
        engine._lease.release()

    def look(self) -> None:
        """Runs one check of the source watch, as production does each minute. Restarts the parser if a full disk has ended it."""
        if self.engine is None:
            return
        with contextlib.suppress(SluiceError):
            self.engine._revive()
        if self.engine._watch is not None:
            with contextlib.suppress(SluiceError):
                self.engine._watch.look()

    def advance(self) -> None:
        """Lets the engine's parser continue."""
        parser = self.parser_of(self.engine) if self.engine is not None else None
        if parser is not None:
            parser.advance()

    @staticmethod
    def parser_of(engine: Engine) -> PlayedParser | None:
        parser = engine._parts.parser if engine._parts is not None else None
        return parser if isinstance(parser, PlayedParser) else None


def make_played_stager(destination: str, directory: Path, rules_for: RulesFor) -> PlayedStaging:
    """Replaces `engine.make_stager` by simulated staging."""
    world = GuardedFiles.world
    line = next(each for each in world.lines if each.directory == directory)
    return PlayedStaging(destination, directory / "staging", rules_for, world.trouble, meanwhile=line.host.advance)
