"""Converts row events of one table version to flat messages (JSON in the form of Canal's FlatMessage). Called by the broker senders."""

from __future__ import annotations

import dataclasses
import json

import numpy as np

from sluice.cdc_engine.binlog.entries import flat_json, kernel_arguments
from sluice.cdc_engine.binlog.entries.gtid_marks import NO_MARKS, GtidMarks, pieces_of
from sluice.cdc_engine.binlog.entries.kernel_arguments import FlatUnits, Pieces
from sluice.cdc_engine.binlog.entries.locate import BEFORE
from sluice.cdc_engine.binlog.entries.numbers import EventType
from sluice.cdc_engine.binlog.entries.rows import ShownRows, TableEntries
from sluice.cdc_engine.binlog.entries.units import Units
from sluice.cdc_engine.binlog.rows.locate import KIND_DELETE, KIND_INSERT, KIND_UPDATE
from sluice.cdc_engine.contracts import Bytes, Int8s, Int64s, LoggedStatement

KINDS = {KIND_INSERT: "INSERT", KIND_UPDATE: "UPDATE", KIND_DELETE: "DELETE"}


@dataclasses.dataclass(frozen=True, eq=False)
class FlatMessages:
    """Flat messages, back to back in `data`. The arrays have one value per message: `ends`, the offset after the message; `events`, the
    index of its row event among the requested events; `partitions`, its partition.
    """

    data: Bytes
    ends: Int64s
    events: Int64s
    partitions: Int64s


def text_of(value: object) -> str:
    """Returns a value as JSON in the form of Canal's fastjson: no blanks, and non-ASCII characters without escapes."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class FlatTable:
    """Makes the flat messages of one table version."""

    def __init__(self, table: TableEntries) -> None:
        version = table.version
        self._database, self._table = text_of(version.database), text_of(version.table)
        keys = {name.lower() for name in version.key}
        self._keys = np.array([column.name.lower() in keys for column in table.columns], np.int8)
        pieces = []
        for column, each in zip(table.columns, table.texts, strict=True):
            numbers = (each.sql_type, each.of_high, each.of_null)
            pieces += [f"{text_of(column.name)}:", text_of(column.mysql_type), *map(str, map(int, numbers))]
        self._pieces = pieces_of(pieces)

    def messages(
        self, shown: ShownRows, units: Units, batch_id: int, now_ms: int, marks: GtidMarks = NO_MARKS
    ) -> FlatMessages:
        """Returns the messages of the rows in `units`. `batch_id`, `now_ms`: the messages' fields `id` and `ts`. `marks`: the GTIDs of the
        rows' transactions.
        """
        begins = units.messages
        first = begins[:-1]
        kinds, events = units.kind[first], units.event[first]
        table = kernel_arguments.MessageParts(self._keys, self._pieces, self._frame(batch_id, now_ms))
        ends = np.empty(len(first), np.int64)
        ms = np.ascontiguousarray(shown.facts.ms[events])
        shows = _defining_images(shown, kinds, events)
        own = marks.indices(shown.facts.transactions[events])
        rows = FlatUnits(begins, units.kind, units.image, shows, ms, marks.pieces, own)
        room = np.empty(0, np.uint8)
        for writes in (False, True):
            flat_json.put_messages(room, writes, rows, shown.values, table, ends)
            if not writes:
                room = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
        return FlatMessages(room, ends, events, units.partition[first])

    def _frame(self, batch_id: int, now_ms: int) -> Pieces:
        end = f',"table":{self._table},"ts":{now_ms},"type":'
        return pieces_of(
            [
                '{"data":',
                f',"database":{self._database},"es":',
                ',"gtid":"',
                f'","id":{batch_id},"isDdl":false,"mysqlType":',
                ',"old":',
                ',"pkNames":',
                ',"sql":"","sqlType":',
                *(f'{end}"{KINDS[kind]}"}}' for kind in sorted(KINDS)),
            ]
        )


def _defining_images(shown: ShownRows, kinds: Int8s, events: Int64s) -> Int64s:
    """Returns, for each message, the image that defines the message's columns. For a deletion, this is the last before image of the
    message's event. For any other change, it is the event's last image.
    """
    last = np.full(len(shown.facts.kinds), -1, np.int64)
    last[shown.event] = np.arange(len(shown.event))  # numpy assigns in order, so each event gets its last image.
    found = last[events]
    back = (kinds == KIND_DELETE) & (shown.side[found] != BEFORE)
    images: Int64s = found - back
    return images


def flat_statement(  # noqa: PLR0917  one caller
    statement: LoggedStatement, kind: EventType, schema: str, table: str, batch_id: int, now_ms: int, gtid_set: str = ""
) -> bytes:
    """Returns the flat message of a statement as UTF-8 JSON. `kind`, `schema`, `table`: what the statement does, and to which table.
    `batch_id`, `now_ms`: the message's fields `id` and `ts`. `gtid_set`: the executed set after the statement, or empty if the consumer
    gets no GTIDs.
    """
    record = {
        "data": None,
        "database": schema,
        "es": statement.seconds * 1000,
        "gtid": gtid_set,
        "id": batch_id,
        "isDdl": True,
        "mysqlType": None,
        "old": None,
        "pkNames": None,
        "sql": statement.text,
        "sqlType": None,
        "table": table,
        "ts": now_ms,
        "type": kind.name,
    }
    return text_of(record).encode()
