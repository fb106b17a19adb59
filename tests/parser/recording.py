"""Provides a sink that records what it gets, a schema history that accepts everything, and a parser between them and a real server."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from sluice.batch_manifest.values import Cascade
from sluice.cdc_engine.binlog.events.table_map import TableMap
from sluice.cdc_engine.contracts import NO_SESSION, Block, StatementSession, TableChange, TableChangeKind, TableVersion
from sluice.cdc_engine.errors import TableStoppedError
from sluice.cdc_engine.parser.shared.sharing import Sharing
from sluice.cdc_engine.parser.start_position import DumpStart, StartChoice
from sluice.cdc_engine.parser.stream.event_parser import STREAMING, EventParser, ParserCallbacks, StreamRules
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.source.server import Source
from sluice.console.toolchain.database.server import DatabaseServer

DEADLINE_SECONDS = 60.0
LATEST = StartChoice()


class AgreeableHistory:
    """A schema history that knows every table by its name. It reports each statement as a change of the table `shop.ddl`, and stops the
    tables that the test names.
    """

    def __init__(self) -> None:
        self.statements: list[tuple[str, str, Position]] = []
        self.rewound: list[Position] = []
        self.resolved: list[str] = []
        self.stopped: set[str] = set()

    def cascades(self, database: str, table: str) -> tuple[Cascade, ...]:  # noqa: ARG002  of the contract
        return ()

    def is_undone(self, database: str, table: str) -> bool:  # noqa: ARG002  of the contract
        return True

    def follows(self, database: str, table: str) -> bool:  # noqa: ARG002  of the contract
        return False

    def resolve(self, table_map: TableMap, position: Position) -> TableVersion:  # noqa: ARG002  of the contract
        self.resolved.append(table_map.table)
        if table_map.table in self.stopped:
            raise TableStoppedError(table_map.database, table_map.table, "SCHEMA_UNKNOWN", "told to")
        return TableVersion(database=table_map.database, table=table_map.table, columns=())

    def apply(
        self,
        statement: str,
        default_database: str,
        position: Position,
        session: StatementSession = NO_SESSION,  # noqa: ARG002  part of the contract
    ) -> tuple[TableChange, ...]:
        self.statements.append((statement, default_database, position))
        change = TableChange(
            kind=TableChangeKind.SCHEMA,
            database=default_database,
            table="ddl",
            order_key=position.order_key,
            time_us=position.time_us,
        )
        return (change,)

    def rewind(self, position: Position) -> None:
        self.rewound.append(position)
        self.statements = [each for each in self.statements if each[2].order_key <= position.order_key]


class RowEvent(NamedTuple):
    """One row event, as a block describes it. `body` is the whole event without its checksum."""

    file: str
    position: int
    kind: int
    table: str
    body: bytes


def _open_gate(block: Block) -> None:
    """Lets every block through."""


class RecordingSink:
    """Keeps whole transactions, as a sink with a store does. When the connection is lost, it forgets the open transaction."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.transactions: list[list[RowEvent]] = []
        self.ends: list[tuple[str, int]] = []
        self.changes: list[TableChange] = []
        self.blocks: list[Block] = []
        self.gate: Callable[[Block], None] = _open_gate
        self._open: list[RowEvent] = []

    def accept(self, block: Block) -> None:
        self.gate(block)
        with self._changed:
            self.blocks.append(block)
            events = row_events(block)
            begin = 0
            for end, offset in zip(block.transaction_events.tolist(), block.transaction_end.tolist(), strict=True):
                self.transactions.append(self._open + events[begin:end])
                self.ends.append((block.file, offset))
                self._open, begin = [], end
            self._open += events[begin:]
            self.changes += block.changes
            self._changed.notify_all()

    def interrupt(self) -> None:
        with self._changed:
            self._open = []
            self._changed.notify_all()

    def wait(self, done: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + DEADLINE_SECONDS
        with self._changed:
            while not done():
                left = end - time.monotonic()
                assert left > 0, f"no {what} within {DEADLINE_SECONDS} s"
                self._changed.wait(min(left, 0.2))

    def wait_for_rows(self, count: int) -> None:
        """Waits until this many row events have arrived in transactions that ended."""
        self.wait(lambda: len(self.events) >= count, f"{count} row events")

    @property
    def events(self) -> list[RowEvent]:
        return [event for transaction in self.transactions for event in transaction]


def row_events(block: Block) -> list[RowEvent]:
    return [
        RowEvent(
            block.file,
            int(block.event_position[i]),
            int(block.event_kind[i]),
            block.tables[block.event_table[i]].name,
            block.buffer[block.event_offset[i] : block.event_offset[i] + block.event_length[i]].tobytes(),
        )
        for i in range(block.event_count)
    ]


class States:
    """Records every state that a parser reports, and waits for a state by name."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.reported: list[tuple[str, str]] = []

    def __call__(self, state: str, reason: str) -> None:
        with self._changed:
            self.reported.append((state, reason))
            self._changed.notify_all()

    def wait(self, state: str, count: int = 1) -> str:
        """Returns the reason with which a state was reported for the `count`-th time."""
        end = time.monotonic() + DEADLINE_SECONDS
        with self._changed:
            while True:
                reasons = [reason for reported, reason in self.reported if reported == state]
                if len(reasons) >= count:
                    return reasons[count - 1]
                left = end - time.monotonic()
                assert left > 0, f"never {state}, but {self.reported}"
                self._changed.wait(min(left, 0.2))


def in_shop(database: str, table: str) -> bool:
    return database == "shop"


class Capture:
    """A parser with everything around it."""

    def __init__(
        self,
        source: Source,
        choice: StartChoice,
        captured: Callable[[str, str], bool],
        sharing: Sharing | None = None,
    ) -> None:
        self.sink, self.history, self.states = RecordingSink(), AgreeableHistory(), States()
        self.starts: list[DumpStart] = []
        self.parser = EventParser(
            source,
            StreamRules(choice=choice, sharing=sharing),
            sink=self.sink,
            history=self.history,
            captured=captured,
            callbacks=ParserCallbacks(on_state=self.states, on_start=self.starts.append),
        )

    @classmethod
    def of(cls, source: Source) -> Capture:
        return cls(source, LATEST, in_shop)

    @contextlib.contextmanager
    def running(self, position: Position | None = None, *, wait: bool = True) -> Iterator[Capture]:
        """Starts the parser, and waits until it streams unless `wait` is False. Stops the parser at the end."""
        self.parser.start(position)
        try:
            if wait:
                self.states.wait(STREAMING)
            yield self
        finally:
            self.parser.stop()


def source_of(server: DatabaseServer, **changes: object) -> Source:
    settings: dict[str, object] = {"destination": "shop", "host": "127.0.0.1", "port": server.port, "user": "root"}
    return Source(**{**settings, **changes})  # type: ignore[arg-type]


@contextlib.contextmanager
def capturing(
    source: Source,
    position: Position | None = None,
    choice: StartChoice = LATEST,
    captured: Callable[[str, str], bool] = in_shop,
    *,
    wait: bool = True,
) -> Iterator[Capture]:
    """Starts a parser. See `Capture.running`."""
    with Capture(source, choice, captured).running(position, wait=wait) as capture:
        yield capture
