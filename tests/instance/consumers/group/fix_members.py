"""Provides members of a group without servers. Windows, feeds and ledgers are real. The sources have numbered events, and clocks that the
test sets.
"""

from __future__ import annotations

import dataclasses

from sluice.cdc_engine.binlog.block import end_position
from sluice.cdc_engine.contracts import Block
from sluice.cdc_engine.errors import NotStartedError, SluiceError
from sluice.cdc_engine.instance.consumers.consumers import Consumers, ConsumerStreams, LiveSource
from sluice.cdc_engine.instance.consumers.group.clock import MemberClock
from sluice.cdc_engine.instance.consumers.group.consumers import GroupConsumers, Runs
from sluice.cdc_engine.instance.consumers.group.members import Members
from sluice.cdc_engine.meta.manager import MetaManager
from sluice.cdc_engine.parser.server_facts import ServerFacts
from sluice.cdc_engine.parser.stream.source_clock import ClockAnswer
from sluice.cdc_engine.parser.stream.watch import StreamState
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.store.window.window import Window
from tests.fix_blocks import SERVER, Source
from tests.fix_ledgers import MemoryLedger
from tests.instance.consumers.test_consumer_machine import ReadAlone, rows_in

START = Position(epoch=1, file="mysql-bin.000001", offset=4, server_uuid=SERVER)
Row = tuple[str, int]  # a member, and the number of a row event


class StillClock(MemberClock):
    """A clock that advances only when the test reads it."""

    def begin(self) -> None: ...


@dataclasses.dataclass
class Fake:
    """A fake member of a group, which also implements `clock.ClockReader`. `now_us` is the time at its source. `held` contains blocks that
    were written but have not arrived in the window yet.
    """

    name: str
    window_bytes: int = 1 << 20
    now_us: int = 1
    trouble: SluiceError | None = None

    def __post_init__(self) -> None:
        self.source, self.blocks, self.held = Source(), list[Block](), list[Block]()
        self.read_alone: list[Block] = self.blocks  # The blocks for a consumer whose position is before the window.
        self.transactions: list[tuple[int, list[int]]] = []  # commit time, row numbers
        self.end = START
        self.restart()

    def restart(self) -> None:
        """Starts another engine. Consumers with a separate stream can still read what the previous engine has read."""
        self.arrive()
        self.window = Window(self.end, bytes_max=self.window_bytes)
        self.consumers = Consumers(
            MemoryLedger(),
            ConsumerStreams(
                live=self.window,
                open_own=lambda _reader, _position: ReadAlone(self.read_alone, START),
                held_up=lambda: False,
            ),
            server_filter=TableFilter(),
            wants=lambda _tables, _shown: lambda _statement: False,
            source=LiveSource(stream_state=self.stream_state),
        )
        self.clock = StillClock(self.name, self)

    def write(self, *sizes: int, now_us: int = 0, held: bool = False) -> None:
        """Writes transactions with these numbers of rows, which all commit at `now_us` (0: the present time). With `held`, they arrive only
        when `arrive` is called.
        """
        self.source.time_us = self.now_us = now_us or self.now_us
        first = self.source.number
        for size in sizes:
            self.transactions.append((self.now_us, [*range(first, first + size)]))
            first += size
        self.held.append(self.source.block(sizes))
        if not held:
            self.arrive()

    def arrive(self) -> None:
        for block in self.held:
            self.blocks.append(block)
            self.window.put(block)
            self.end = end_position(block, block.transaction_count - 1)
        self.held.clear()

    def stream_state(self) -> StreamState:
        return StreamState(position=self.end, file=self.end.file, offset=self.end.offset, bytes=0)

    def read(self) -> ClockAnswer:
        end = ServerFacts(
            version="8.0",
            mariadb=False,
            server_uuid=SERVER,
            gtid_enabled=False,
            file=START.file,
            offset=self.source.offset,
        )
        return ClockAnswer(now_us=self.now_us, before_us=self.now_us, end=end)

    def close(self) -> None: ...


class Group:
    """The group `all` of some members, with one ledger."""

    def __init__(self, *fakes: Fake, wait_seconds: float | None = None, meta: MetaManager | None = None) -> None:
        self.fakes, self.wait_seconds = {each.name: each for each in fakes}, wait_seconds
        self.meta = meta or MemoryLedger()
        self.begin()

    def begin(self) -> None:
        """Starts a new engine of the group with the contents of the ledger."""
        members = Members(self.fakes, self._consumers_of, lambda name, _: self.fakes[name].clock)
        self.consumers = GroupConsumers(
            "all", self.meta, members, group_filter=TableFilter(), wait_seconds=self.wait_seconds
        )

    def _consumers_of(self, name: str) -> Consumers:
        if (trouble := self.fakes[name].trouble) is not None:
            raise trouble
        return self.fakes[name].consumers

    def clocks(self) -> None:
        for each in self.fakes.values():
            each.clock.read()

    def got(self, client_id: int = 7) -> list[Row]:
        """Takes and acks everything that is available now."""
        service, found = self.consumers.service(client_id), list[Row]()
        while (delivery := service.get(1 << 20))[1] is not None:
            found += rows_of(delivery[1])
            service.ack(delivery[0])
        return found


def rows_of(content: Runs) -> list[Row]:
    return [(run.member, number) for run in content for number in rows_in(run.chosen)]


def away() -> SluiceError:
    return NotStartedError("its engine does not run")
