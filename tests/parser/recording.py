"""A sink that remembers, a schema history that agrees to everything, and a parser between a real server and them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from cdc_engine.binlog.table_map import TableMap
from cdc_engine.contracts import Block, TableChange, TableChangeKind, TableVersion
from cdc_engine.errors import TableStoppedError
from cdc_engine.parser.event_parser import STREAMING, EventParser
from cdc_engine.parser.source import Source
from cdc_engine.parser.start_position import DumpStart, StartChoice
from cdc_engine.position import Position
from console.toolchain.servers import DatabaseServer

DEADLINE_SECONDS = 60.0
LATEST = StartChoice()


class AgreeableHistory:
    """Knows every table by name alone; tells each statement as a change of table `shop.ddl`, and stops the tables it is told to."""

    def __init__(self) -> None:
        self.statements: list[tuple[str, str, Position]] = []
        self.rewound: list[Position] = []
        self.resolved: list[str] = []
        self.stopped: set[str] = set()

    def resolve(self, table_map: TableMap, position: Position) -> TableVersion:  # noqa: ARG002  of the contract
        self.resolved.append(table_map.table)
        if table_map.table in self.stopped:
            raise TableStoppedError(table_map.database, table_map.table, "SCHEMA_UNKNOWN", "told to")
        return TableVersion(database=table_map.database, table=table_map.table, columns=())

    def apply(self, statement: str, default_database: str, position: Position) -> tuple[TableChange, ...]:
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


class RecordingSink:
    """Keeps whole transactions as a sink over a store does: what is open when the connection drops is forgotten."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._stopping = False
        self.closed: list[Block] = []
        self.opened: list[Block] = []

    def accept(self, block: Block) -> None:
        with self._changed:
            self.opened.append(block)
            if block.transaction_count:
                self.closed += self.opened
                self.opened = []
                self._open_rest(block)
            self._changed.notify_all()

    def _open_rest(self, block: Block) -> None:
        """Of the last block, the events after its last transaction end are still open; `events` leaves them out until it ends."""
        self.open_from = int(block.transaction_events[-1])

    def interrupt(self) -> None:
        with self._changed:
            self.opened = []
            self._changed.notify_all()

    def wait(self, done: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + DEADLINE_SECONDS
        with self._changed:
            while not done():
                left = end - time.monotonic()
                assert left > 0, f"no {what} within {DEADLINE_SECONDS} s"
                self._changed.wait(min(left, 0.2))

    @property
    def transaction_count(self) -> int:
        return sum(block.transaction_count for block in self.closed)

    def events_per_transaction(self) -> list[list[tuple[str, int, int]]]:
        """Of each transaction that ended: (file, position, kind) of its row events."""
        result: list[list[tuple[str, int, int]]] = []
        pending: list[tuple[str, int, int]] = []
        for block in self.closed:
            begin = 0
            for end in block.transaction_events.tolist():
                result.append(pending + _places(block, begin, end))
                pending, begin = [], end
            pending += _places(block, begin, block.event_count)
        return result

    def bodies(self) -> list[bytes]:
        """The bytes of every row event, header included, of every block kept."""
        return [
            block.buffer[offset : offset + length].tobytes()
            for block in self.closed
            for offset, length in zip(block.event_offset.tolist(), block.event_length.tolist(), strict=True)
        ]


def _places(block: Block, begin: int, end: int) -> list[tuple[str, int, int]]:
    return [(block.file, int(block.event_position[i]), int(block.event_kind[i])) for i in range(begin, end)]


class States:
    """Every state a parser told, waited for by name."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.told: list[tuple[str, str]] = []

    def __call__(self, state: str, reason: str) -> None:
        with self._changed:
            self.told.append((state, reason))
            self._changed.notify_all()

    def wait(self, state: str, count: int = 1) -> str:
        """The reason with which a state was told for the `count`-th time."""
        end = time.monotonic() + DEADLINE_SECONDS
        with self._changed:
            while True:
                reasons = [reason for told, reason in self.told if told == state]
                if len(reasons) >= count:
                    return reasons[count - 1]
                left = end - time.monotonic()
                assert left > 0, f"never {state}, but {self.told}"
                self._changed.wait(min(left, 0.2))


class Capture:
    """A parser with everything around it."""

    def __init__(self, source: Source, choice: StartChoice, captured: Callable[[str, str], bool]) -> None:
        self.sink, self.history, self.states = RecordingSink(), AgreeableHistory(), States()
        self.starts: list[DumpStart] = []
        self.parser = EventParser(
            source,
            choice,
            sink=self.sink,
            history=self.history,
            captured=captured,
            on_state=self.states,
            on_start=self.starts.append,
        )


def source_of(server: DatabaseServer, **changes: object) -> Source:
    settings: dict[str, object] = {"destination": "shop", "host": "127.0.0.1", "port": server.port, "user": "root"}
    return Source(**{**settings, **changes})  # type: ignore[arg-type]


def in_shop(database: str, table: str) -> bool:  # noqa: ARG001  of the contract
    return database == "shop"


@contextlib.contextmanager
def capturing(
    source: Source,
    position: Position | None = None,
    choice: StartChoice = LATEST,
    captured: Callable[[str, str], bool] = in_shop,
    *,
    wait: bool = True,
) -> Iterator[Capture]:
    """A running parser, streaming unless `wait` is False; stopped at the end."""
    capture = Capture(source, choice, captured)
    capture.parser.start(position)
    try:
        if wait:
            capture.states.wait(STREAMING)
        yield capture
    finally:
        capture.parser.stop()
