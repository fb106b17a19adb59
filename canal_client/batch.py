"""Defines the batch that a server returns. A batch has changes in binlog order, as typed objects or as Arrow tables."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from sluice.canal_client import messages
from sluice.canal_client.column_types import column_type
from sluice.canal_client.errors import CanalProtocolError
from sluice.canal_client.messages import EntryType, EventType

if TYPE_CHECKING:
    import pyarrow as pa

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
ROWS = {EventType.INSERT: "insert", EventType.UPDATE: "update", EventType.DELETE: "delete"}
NOTHING = -1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EntryPosition:
    """A position in the binlog. `offset` is the offset of the event's first byte. `time` is the event's time by the source's clock."""

    file: str
    offset: int
    time: dt.datetime
    gtid: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """One row change: an insert, update or delete (`kind`).

    - `before` and `after` map columns to values. They lack columns that the source left out of the row image. `before` is None for an
      insert, and `after` is None for a delete.
    - `key` has the names of the primary key's columns that `after` contains, or for a delete, that `before` contains. It is empty for a
      table without a primary key.
    - `updated` has the names of the columns that the server marks as changed: all columns for an insert, and none for a delete.
    """

    kind: str
    database: str
    table: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    key: tuple[str, ...]
    updated: frozenset[str]
    position: EntryPosition

    @property
    def row(self) -> dict[str, Any]:
        """The row after the change. For a delete, the row before the delete."""
        return self.after if self.after is not None else self.before or {}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A statement that the source logged. `kind` is CREATE, ALTER, ERASE, TRUNCATE, RENAME, CINDEX, DINDEX, QUERY, …"""

    kind: str
    database: str
    table: str
    sql: str
    ddl: bool
    position: EntryPosition


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TransactionBegin:
    thread: int
    position: EntryPosition


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TransactionEnd:
    transaction: str
    position: EntryPosition


Change = RowChange | Statement | TransactionBegin | TransactionEnd


class Batch:
    """A batch of entries. If the server had no entries, the batch is empty, and `bool(batch)` is False. `ack` confirms the batch.
    `rollback` makes the server send again this batch and all other unacked batches.
    """

    def __init__(self, batch_id: int, raw: tuple[bytes, ...], settle: Callable[[Batch, bool], None]) -> None:
        self.id, self.raw = batch_id, raw
        self._settle = settle

    def __bool__(self) -> bool:
        return self.id != NOTHING

    def __len__(self) -> int:
        """Returns the number of entries: row events, statements, and begins and ends of transactions."""
        return len(self.raw)

    def ack(self) -> None:
        """Confirms the batch. Raises BatchGoneError if the connection that returned the batch has ended, or if another client with the same
        id reads. Raises CanalConnectionError if the connection ends during the call.
        """
        self._settle(self, True)

    def rollback(self) -> None:
        """Makes the server send again all batches of this client that were not acked, including this batch. Raises BatchGoneError and
        CanalConnectionError in the same cases as `ack`.
        """
        self._settle(self, False)

    @functools.cached_property
    def entries(self) -> tuple[Any, ...]:
        """The entries as protobuf messages. Raises CanalProtocolError if a message is not an entry."""
        try:
            return tuple(messages.Entry.FromString(each) for each in self.raw)
        except DecodeError as error:
            raise CanalProtocolError(
                "the server sent a message that is not an Entry of Canal's protocol: check which server listens at the "
                "client's host and port"
            ) from error

    def everything(self) -> Iterator[Change]:
        """Yields row changes, statements, and begins and ends of transactions, in binlog order. Raises CanalProtocolError if a message is
        not an entry.
        """
        for entry in self.entries:
            if entry.entryType == EntryType.TRANSACTIONBEGIN:
                yield TransactionBegin(
                    thread=messages.TransactionBegin.FromString(entry.storeValue).threadId,
                    position=position_of(entry.header),
                )
            elif entry.entryType == EntryType.TRANSACTIONEND:
                ended = messages.TransactionEnd.FromString(entry.storeValue)
                yield TransactionEnd(transaction=ended.transactionId, position=position_of(entry.header))
            elif entry.entryType == EntryType.ROWDATA:
                yield from _changes(entry)

    def changes(self) -> Iterator[RowChange]:
        """Yields only the row changes. Raises CanalProtocolError if a message is not an entry."""
        return (each for each in self.everything() if isinstance(each, RowChange))

    def to_arrow(self) -> dict[str, pa.Table]:
        """Returns the row images in binlog order as one Arrow table for each "database.table". An update is two rows. `canal_client.arrow`
        describes the columns.
        """
        from sluice.canal_client.arrow import tables_of  # noqa: PLC0415  only `to_arrow` needs pyarrow

        return tables_of(self.entries)


def position_of(header: Any) -> EntryPosition:
    return EntryPosition(
        file=header.logfileName,
        offset=header.logfileOffset,
        time=EPOCH + dt.timedelta(milliseconds=header.executeTime),
        gtid=header.gtid,
    )


def _changes(entry: Any) -> Iterator[Change]:
    header, change = entry.header, messages.row_change(entry)
    kind, position = EventType(change.eventType), position_of(header)
    if kind not in ROWS or change.sql:
        yield Statement(
            kind=kind.name,
            database=header.schemaName or change.ddlSchemaName,
            table=header.tableName,
            sql=change.sql,
            ddl=change.isDdl,
            position=position,
        )
        return
    for row in change.rowDatas:
        newest = row.beforeColumns if kind is EventType.DELETE else row.afterColumns
        yield RowChange(
            kind=ROWS[kind],
            database=header.schemaName,
            table=header.tableName,
            before=_image(row.beforeColumns) if kind is not EventType.INSERT else None,
            after=_image(row.afterColumns) if kind is not EventType.DELETE else None,
            key=tuple(column.name for column in newest if column.isKey),
            updated=frozenset(column.name for column in newest if column.updated),
            position=position,
        )


def _image(columns: Any) -> dict[str, Any]:
    return {
        column.name: None if column.isNull else column_type(column.mysqlType).value(column.value) for column in columns
    }
