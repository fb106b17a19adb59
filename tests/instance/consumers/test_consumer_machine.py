"""Tests any order of gets, acks, rollbacks, a slow consumer, a crash and a delayed lake: each consumer gets its whole stream in order.

The window, streams and ledger are real. A source of numbered events replaces the server, and a list of its blocks replaces a consumer's own
connection.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sluice.cdc_engine.contracts import Block
from sluice.cdc_engine.instance.consumers.consumer_stream import Chosen
from sluice.cdc_engine.instance.consumers.consumers import Consumers, ConsumerStreams
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.store.window.positions import WindowPosition, WindowReading
from sluice.cdc_engine.store.window.window import Window
from tests.fix_blocks import SERVER, Source, numbers_of
from tests.fix_ledgers import MemoryLedger

START = Position(epoch=1, file="mysql-bin.000001", offset=4, server_uuid=SERVER)
FILTERS = {1: "", 2: r"shop\.audit", 3: r"shop\.orders"}
ROWS = 1  # The kind of an element.


class ReadAlone:
    """Reads everything that the source has, from the beginning, whatever position the live stream has."""

    def __init__(self, blocks: list[Block], begin: Position) -> None:
        self._window, self._blocks, self._put = Window(begin, bytes_max=1 << 40), blocks, 0

    def read(
        self,
        position: WindowPosition,
        bytes_max: int,
        entries_max: int,
        timeout_seconds: float,
        given_up: Callable[[], bool],
        *,
        full: bool = False,
    ) -> WindowReading | None:
        for block in self._blocks[self._put :]:
            self._window.put(block)
        self._put = len(self._blocks)
        return self._window.read(position, bytes_max, entries_max, 0.0 * timeout_seconds, given_up, full=full)

    def stream_state(self) -> None:
        """Does nothing, because nobody reads the status."""

    def wake(self) -> None:
        """Does nothing, because no read waits."""

    def close(self) -> None:
        """Does nothing, because nothing is open."""


def rows_in(content: tuple[Chosen, ...]) -> list[int]:
    found = []
    for each in content:
        for kind, index in zip(each.kinds.tolist(), each.indices.tolist(), strict=True):
            if kind == ROWS:
                found += numbers_of(each.block, index, index + 1)
    return found


@dataclasses.dataclass
class Seen:
    """Records what one consumer got. `acked` has the numbers of the row events whose deliveries the consumer has acked. `waiting` has the
    batch id and the numbers of each delivery that is not acked yet.
    """

    acked: list[int] = dataclasses.field(default_factory=list)
    waiting: list[tuple[int, list[int]]] = dataclasses.field(default_factory=list)


class ConsumersOfOneStream(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.source = Source()
        self.blocks: list[Block] = []
        # The table of each row event, by the number of the event.
        self.tables: dict[int, int] = {}
        # The blocks that the live stream has read and that are not in the window, because the lake's store is full.
        self.held: list[Block] = []
        self.held_up = False
        self.meta = MemoryLedger()
        self.seen = {client: Seen() for client in FILTERS}
        self.restart()
        for client, text in FILTERS.items():
            self.consumers.subscribe(client, text)

    def restart(self) -> None:
        begin = min((each.cursor for each in self.meta.ledger.consumers), key=lambda each: each.offset, default=START)
        self.window = Window(begin if not self.blocks else self.end, bytes_max=200)
        self.consumers = Consumers(
            self.meta,
            ConsumerStreams(
                live=self.window,
                open_own=lambda _client, _position: ReadAlone(self.whole(), START),
                held_up=lambda: self.held_up,
            ),
            server_filter=TableFilter(r"shop\..*"),
            wants=lambda _tables, _shown: lambda _statement: False,
        )

    @property
    def end(self) -> Position:
        ends = [block for block in self.blocks if block.transaction_count]
        return dataclasses.replace(START, offset=int(ends[-1].transaction_end[-1])) if ends else START

    def whole(self) -> list[Block]:
        return self.blocks

    @rule(
        transactions=st.lists(st.integers(0, 4), min_size=1, max_size=4), data=st.data(), open_events=st.integers(0, 2)
    )
    def written(self, transactions: list[int], data: Any, open_events: int) -> None:
        count = sum(transactions) + open_events
        tables = data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
        self.tables |= {self.source.number + index: table for index, table in enumerate(tables)}
        block = self.source.block(transactions, open_events, table=tables or 0)
        self.blocks.append(block)
        if self.held_up:
            self.held.append(block)
        else:
            self.window.put(block)

    @rule(client=st.sampled_from(sorted(FILTERS)), bytes_max=st.integers(1, 120))
    def get(self, client: int, bytes_max: int) -> None:
        batch_id, content = self.consumers.service(client).get(bytes_max)
        if content is not None:
            self.seen[client].waiting.append((batch_id, rows_in(content)))

    @rule(client=st.sampled_from(sorted(FILTERS)))
    def ack(self, client: int) -> None:
        seen = self.seen[client]
        if seen.waiting:
            batch_id, rows = seen.waiting.pop(0)
            self.consumers.service(client).ack(batch_id)
            seen.acked += rows

    @rule(client=st.sampled_from(sorted(FILTERS)))
    def roll_back(self, client: int) -> None:
        self.consumers.service(client).rollback()
        self.seen[client].waiting.clear()

    @rule()
    def lake_is_full(self) -> None:
        self.held_up = True

    @rule()
    def lake_has_room(self) -> None:
        self.held_up = False
        for block in self.held:
            self.window.put(block)
        self.held.clear()

    @rule(kept=st.booleans())
    def crash(self, kept: bool) -> None:
        """Starts all consumers again from their stored cursors. Row events that were acked after a stored cursor are delivered again. With
        `kept`, the cursors are stored immediately before the crash.
        """
        if kept:
            self.consumers.keep()
        self.held.clear()
        self.held_up = False
        if self.blocks and not self.ended():
            self.written_end()
        for client, seen in self.seen.items():
            consumer = self.meta.ledger.consumer(client)
            assert consumer is not None
            seen.waiting.clear()
            covered = self.events_up_to(consumer.cursor)
            seen.acked = [number for number in seen.acked if number < covered]
        self.restart()

    @rule(client=st.sampled_from(sorted(FILTERS)), kept=st.booleans())
    def crash_after_a_commit(self, client: int, kept: bool) -> None:
        """Crashes after a broker has committed the oldest delivery with its position, and before the ack. The consumer continues after that
        delivery.
        """
        seen = self.seen[client]
        if not seen.waiting:
            return
        batch_id, rows = seen.waiting[0]
        committed = seen.acked + rows
        text = self.consumers.service(client).end_text(batch_id)
        self.crash(kept=kept)
        assert self.consumers.service(client).continue_after(text)
        assert not self.consumers.service(client).continue_after(text)
        seen.acked = committed

    def ended(self) -> bool:
        last = self.blocks[-1]
        return bool(last.transaction_count) and int(last.transaction_events[-1]) == last.event_count

    def written_end(self) -> None:
        self.blocks.append(self.source.block([0]))

    def events_up_to(self, cursor: Position) -> int:
        before, covered = 0, 0
        for block in self.blocks:
            ended = int((block.transaction_end <= cursor.offset).sum())
            covered = before + int(block.transaction_events[ended - 1]) if ended else covered
            before += block.event_count
        return covered

    def expected(self, client: int) -> list[int]:
        wanted = {1: (0, 1), 2: (1,), 3: (0,)}[client]
        return [number for number in range(self.source.number) if self.tables[number] in wanted]

    @invariant()
    def each_has_a_beginning_of_its_stream(self) -> None:
        for client, seen in getattr(self, "seen", {}).items():
            got = seen.acked + [number for _, rows in seen.waiting for number in rows]
            assert got == self.expected(client)[: len(got)]

    def teardown(self) -> None:
        if not hasattr(self, "seen"):
            return
        self.lake_has_room()
        for client, seen in self.seen.items():
            service = self.consumers.service(client)
            while (delivery := service.get(1 << 20))[1] is not None:
                seen.waiting.append((delivery[0], rows_in(delivery[1])))
            got = seen.acked + [number for _, rows in seen.waiting for number in rows]
            assert got == self.expected(client)


ConsumersOfOneStream.TestCase.settings = settings(max_examples=30, stateful_step_count=30)
TestAnyInterleaving = pytest.mark.usefixtures("parts_at_once")(ConsumersOfOneStream.TestCase)
