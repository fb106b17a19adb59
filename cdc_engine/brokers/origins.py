"""Finds the origins of messages in the binlog: the GTID and the position that a message has in its headers."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.cdc_engine.binlog.entries.elements import BEGIN, OPEN_HERE, ROWS
from sluice.cdc_engine.binlog.entries.gtid_marks import name_of, transactions_of
from sluice.cdc_engine.binlog.entries.locate import EventFacts
from sluice.cdc_engine.binlog.entries.messages import EntryPart
from sluice.cdc_engine.brokers.publisher import NO_ORIGIN, MessageOrigin
from sluice.cdc_engine.contracts import Block


def origin_of(block: Block, transaction: int, offset: int) -> MessageOrigin:
    return MessageOrigin(name_of(block, transaction), f"{block.file}:{offset}")


class EventOrigins:
    """Finds the origins of the row events of a block."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._names: dict[int, str] = {}

    def of(self, facts: EventFacts) -> list[MessageOrigin]:
        """Returns the origin of each row event."""
        found = []
        for transaction, offset in zip(facts.transactions.tolist(), facts.offsets.tolist(), strict=True):
            name = self._names.get(transaction)
            if name is None:
                name = self._names[transaction] = name_of(self._block, transaction)
            found.append(MessageOrigin(name, f"{self._block.file}:{offset}"))
        return found


def last_origin(parts: Sequence[EntryPart]) -> MessageOrigin:
    """Returns the origin of the last entry in these parts."""
    if not parts:
        return NO_ORIGIN
    part = parts[-1]
    block = part.block
    if part.statement is not None:
        return origin_of(block, 0, part.statement.offset)
    kind, index = int(part.kinds[-1]), int(part.indices[-1])
    if kind == ROWS:
        return origin_of(block, int(transactions_of(block, part.indices[-1:])[0]), int(block.event_position[index]))
    if index == OPEN_HERE:
        return origin_of(block, block.transaction_count, int(block.open_frame["begin"][0]))
    frame = block.transaction_frame[index]
    return origin_of(block, index, int(frame["begin" if kind == BEGIN else "close"]))
