"""Makes the messages for a broker from the changes of a batch. Within each topic and partition, messages are in the order of the stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Literal, TypeVar

import numpy as np

from sluice.cdc_engine.binlog.entries.elements import ROWS
from sluice.cdc_engine.binlog.entries.flat import FlatTable, flat_statement
from sluice.cdc_engine.binlog.entries.messages import VERSIONS_MAX, DescribedStatement, EntryMaker, EntryPart
from sluice.cdc_engine.binlog.entries.numbers import EventType
from sluice.cdc_engine.binlog.entries.rows import Entries, KeptColumns, ShownRows, TableEntries
from sluice.cdc_engine.binlog.entries.texts import Display
from sluice.cdc_engine.binlog.entries.units import units_of
from sluice.cdc_engine.binlog.rows.refused_values import ValuePolicy
from sluice.cdc_engine.binlog.rows_by_schema.table import SchemaTable
from sluice.cdc_engine.brokers.origins import EventOrigins, last_origin, origin_of
from sluice.cdc_engine.brokers.packets import by_unit, packet_of, whole_packet
from sluice.cdc_engine.brokers.publisher import Message
from sluice.cdc_engine.brokers.registry.subjects import Subjects
from sluice.cdc_engine.brokers.routing import Route, Routing
from sluice.cdc_engine.contracts import Int64s, LoggedStatement

Format = Literal["flat", "protobuf"]
FORMATS: tuple[Format, ...] = ("flat", "protobuf")
Describe = Callable[[LoggedStatement], DescribedStatement | None]
# A message for an event. Messages are sorted by the first value: the index of the event in its part of the batch.
IndexedMessage = tuple[int, Message]
TableT = TypeVar("TableT")


class MessageMaker:
    """Makes the messages for one broker.

    - `form`: the format of messages or, for a format with schemas, the `Subjects` that register the schemas.
    - `describe`: returns what kind of statement a logged statement is, and which table it is about.
    - `policies`: "database.table" → the policy for the table's values. `keys`: "database.table" → the key that conf/ declares.
    - `kept`: returns the indices of a table's captured columns; None means all columns.
    - `now_ms`: returns the current time in ms since 1970, for the field `ts` of a message.
    """

    def __init__(
        self,
        routing: Routing,
        form: Format | Subjects,
        *,
        display: Display,
        describe: Describe,
        policies: Mapping[str, ValuePolicy] | None = None,
        kept: KeptColumns | None = None,
        keys: Mapping[str, tuple[str, ...]] | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._routing, self._form, self._describe, self._now_ms = routing, form, describe, now_ms
        self._entries = EntryMaker(display, describe, policies, kept, keys)
        self._flat: dict[int, tuple[TableEntries, FlatTable]] = {}
        self._by_schema: dict[int, tuple[TableEntries, SchemaTable]] = {}

    def messages(self, parts: Sequence[EntryPart], batch_id: int) -> list[Message]:
        """Returns the messages of a batch. Raises SluiceError if a value cannot be encoded or a schema cannot be registered."""
        now_ms = self._now_ms()
        if isinstance(self._form, Subjects):
            return [message for part in parts for message in self._by_schema_of(part, self._form, now_ms)]
        if self._form == "flat":
            return [message for part in parts for message in self._flat_of(part, batch_id, now_ms)]
        if self._routing.is_plain:
            route = self._routing.statement("", "")
            packet = whole_packet(batch_id, self._entries.messages(parts))
            return [Message(route.topic, route.partition, packet, last_origin(parts))]
        return self._packets(parts)

    # ── flat messages ──

    def _flat_of(self, part: EntryPart, batch_id: int, now_ms: int) -> list[Message]:
        if part.statement is not None:
            return self._flat_statement(part, part.statement, batch_id, now_ms)
        found: list[IndexedMessage] = []
        marks, origins = self._entries.marks(part), EventOrigins(part.block)
        for table, route, indices, shown in self._tables(part):
            units = units_of(shown, route.partition, route.hashing)
            made = _of_version(self._flat, table, FlatTable).messages(shown, units, batch_id, now_ms, marks)
            data, ends = made.data.tobytes(), made.ends.tolist()
            headers = origins.of(shown.facts)
            for begin, end, event, partition in zip(
                [0, *ends], ends, made.events.tolist(), made.partitions.tolist(), strict=False
            ):
                found.append((int(indices[event]), Message(route.topic, partition, data[begin:end], headers[event])))
        return _in_order(found)

    def _flat_statement(self, part: EntryPart, statement: LoggedStatement, batch_id: int, now_ms: int) -> list[Message]:
        is_a = self._describe(statement)
        if is_a is None:
            return []
        route = self._routing.statement(is_a.schema, is_a.table)
        gtid_set = self._entries.marks(part).set_text(0)
        body = flat_statement(statement, EventType(is_a.kind), is_a.schema, is_a.table, batch_id, now_ms, gtid_set)
        return [Message(route.topic, route.partition, body, origin_of(part.block, 0, statement.offset))]

    # ── rows with a schema ──

    def _by_schema_of(self, part: EntryPart, subjects: Subjects, now_ms: int) -> list[Message]:
        """Returns the messages of rows in a format with schemas. Sends no messages for statements, because consumers notice a schema change
        in the schema of the next rows.
        """
        if part.statement is not None:
            return []
        found: list[IndexedMessage] = []
        origins = EventOrigins(part.block)
        for entries, route, indices, shown in self._tables(part):
            table = _of_version(self._by_schema, entries, subjects.form.table)
            ids = subjects.ids(route.topic, table.schemas)
            made = table.messages(shown, units_of(shown, route.partition, route.hashing), part.block, ids, now_ms)
            data, ends, headers = made.data.tobytes(), made.ends.tolist(), origins.of(shown.facts)
            rows = zip(
                [0, *ends], made.key_ends.tolist(), ends, made.events.tolist(), made.partitions.tolist(), strict=False
            )
            for begin, middle, end, event, partition in rows:
                message = Message(route.topic, partition, data[middle:end], headers[event], data[begin:middle])
                found.append((int(indices[event]), message))
        return _in_order(found)

    # ── packets ──

    def _packets(self, parts: Sequence[EntryPart]) -> list[Message]:
        """Returns one message per topic and partition, with all entries for this partition. The message has the origin (GTID and position)
        of its last entry.
        """
        gathered: dict[tuple[str, int], list[Message]] = {}
        for part in parts:
            for message in self._entries_of(part):
                gathered.setdefault((message.topic, message.partition), []).append(message)
        return [
            Message(*where, packet_of([entry.body for entry in entries]), entries[-1].origin)
            for where, entries in gathered.items()
        ]

    def _entries_of(self, part: EntryPart) -> list[Message]:
        if part.statement is not None:
            is_a = self._describe(part.statement)
            route = self._routing.statement(is_a.schema if is_a else "", is_a.table if is_a else "")
            entry, origin = self._entries.statement(part.block, part.statement), part.statement.offset
            return [Message(route.topic, route.partition, entry, origin_of(part.block, 0, origin))]
        file = np.frombuffer(part.block.file.encode(), np.uint8)
        found: list[IndexedMessage] = []
        marks, origins = self._entries.marks(part), EventOrigins(part.block)
        for table, route, indices, shown in self._tables(part):
            headers = origins.of(shown.facts)
            if route.hashing is None:
                made, events = table.written(shown, file, shown.row_counts, marks), np.arange(len(indices))
                partitions = np.full(len(indices), route.partition)
            else:
                units = units_of(shown, route.partition, route.hashing)
                single, row_counts = by_unit(shown, units)
                made = table.written(single, file, row_counts, marks)
                events, partitions = units.event, units.partition
            for entry, event, partition in zip(_each(made), events.tolist(), partitions.tolist(), strict=True):
                found.append((int(indices[event]), Message(route.topic, partition, entry, headers[event])))
        return _in_order(found)

    # ── all formats ──

    def _tables(self, part: EntryPart) -> Iterator[tuple[TableEntries, Route, Int64s, ShownRows]]:
        """Yields (table, route, indices of row events in the part, rows of these row events) for each table of the part. May yield a table
        several times, each time with other row events.
        """
        indices = np.flatnonzero(part.kinds == ROWS)
        tables = part.block.event_table[part.indices[indices]]
        for number in np.unique(tables).tolist():
            own = indices[tables == number]
            table = self._entries.table(part.block.tables[number])
            names = [column.name for column in table.columns]
            # Selects the partition by `table.key`: the key in conf/ if there is one, otherwise the primary key. Messages in a format with
            # schemas have this key, so all messages with the same key are in one partition.
            keys = {name.lower() for name in table.key}
            is_key = [name.lower() in keys for name in names]
            route = self._routing.rows(table.version.database, table.version.table, names, is_key)
            for shown in table.shown(part.block, part.indices[own]):
                yield table, route, own[shown.events], shown


def _of_version(
    known: dict[int, tuple[TableEntries, TableT]], table: TableEntries, make: Callable[[TableEntries], TableT]
) -> TableT:
    """Returns the encoder for rows of a table version. Makes it with `make` at the first call, and then returns it from the cache
    `known`.
    """
    found = known.get(id(table))
    if found is None or found[0] is not table:
        if len(known) >= VERSIONS_MAX:
            known.clear()
        found = known[id(table)] = (table, make(table))
    return found[1]


def _in_order(found: list[IndexedMessage]) -> list[Message]:
    """Returns the messages, sorted by the index of their event. Several messages of one event stay in their order."""
    return [message for _, message in sorted(found, key=itemgetter(0))]


def _each(made: Entries) -> Iterator[bytes]:
    data = made.data.tobytes()
    for start, size in zip(made.starts.tolist(), made.sizes.tolist(), strict=True):
        yield data[start : start + size]
