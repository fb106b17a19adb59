"""Provides the prepared XA transactions of a consumer's own stream: the transactions that this stream has read, and the destination's
records of transactions that were prepared before the stream's start. Used by `instance.consumers.own_start`.

This module writes nothing. The destination removes a record only after all consumers have passed the commit of the record's transaction.
"""

from __future__ import annotations

from collections.abc import Callable

from sluice.cdc_engine.binlog.events.recorded import MemoryPrepared, RecordedEvents
from sluice.cdc_engine.binlog.events.undone_rows import UndoneRows
from sluice.cdc_engine.ports import Content

NO_EVENTS = b""


class OwnPrepared(MemoryPrepared):
    """The prepared transactions of a consumer's own stream (`ports.PreparedTransactions`). `recorded_before(name)` searches the
    destination's records for the last transaction with the XA name `name` that was prepared before the stream's start. It returns the
    events of this transaction, or None if there is no record.

    The caller first reads a part of the binlog that ends at the stream's start, and then calls `begin_stream`. From this part, only the
    statements and the prepared transactions are used, not the rows.
    """

    def __init__(self, recorded_before: Callable[[str], Content | None]) -> None:
        super().__init__(UndoneRows(rows_are_read=False))
        self._recorded_before = recorded_before
        self._before: dict[str, bytes] = {}
        self._begun = False

    def begin_stream(self) -> None:
        """Marks the start of the consumer's stream. Rows are read only after this start. Stores the events of the transactions that are
        prepared now, because `rewind`, which the parser calls before it reads from a position again, may discard them.
        """
        self._before, self._begun, self.undone = self.undecided(), True, UndoneRows()

    def commit(self, name: str, order_key: int) -> Content | None:
        """Returns the events of the prepared transaction with this XA name, or None if the transaction is unknown. Before `begin_stream`
        is called, returns empty content for an unknown transaction, because rows before the start of the stream are not read. Raises the
        errors of `recorded_before`.
        """
        found = super().commit(name, order_key)
        if found is not None:
            return found
        if not self._begun:
            return RecordedEvents(NO_EVENTS)
        return RecordedEvents(self._before[name]) if name in self._before else self._recorded_before(name)
