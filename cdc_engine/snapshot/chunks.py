"""Splits a table into chunks, which are ranges of the table's key. The server finds the bound of each chunk with the key's index.

Because a chunk is a range of keys, every row is in exactly one chunk at any moment, even if rows are inserted, deleted or get another key.
Bounds are SQL literals, so they can be stored in a file, and a process can read the same chunk after a restart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Protocol

from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.errors import SourceConnectionError
from sluice.cdc_engine.snapshot.key_literals import UUID_PROBE, as_text
from sluice.cdc_engine.snapshot.statements import Key, bound_statement, key_of, quoted

PRIMARY = "PRIMARY"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chunk:
    """A key range of a table. `number` counts from 1. `after` is the exclusive lower bound as SQL literals of the key columns, or () at the
    table's beginning. `up_to` is the inclusive upper bound, or () for the last chunk, which has no upper bound.
    """

    number: int
    after: tuple[str, ...] = ()
    up_to: tuple[str, ...] = ()


class QueryRunner(Protocol):
    """The method of `RowReader` with which `chunks` searches the bounds."""

    def texts(self, sql: str) -> list[tuple[str | None, ...]]:
        """Returns the rows of a query."""


def chunks(
    connection: QueryRunner, table: TableVersion, chunk_rows: int, where: str = "", after: Chunk | None = None
) -> Iterator[Chunk]:
    """Yields the chunks of a table, from the table's beginning or after the chunk `after`. Searches the bound of a chunk only when the
    caller requests the chunk. A table without a key is one chunk without bounds.

    When the bound of a chunk is searched, the chunk has `chunk_rows` rows (`snapshots.chunk_rows` in conf/) that `where` selects. The last
    chunk has fewer rows. Raises TableChangedError if the table or a column no longer exists, ConfigurationError if the user lacks SELECT or
    `where` cannot be evaluated, and SourceConnectionError after any other error of the source.
    """
    if after is not None and not after.up_to:
        return
    number, bound = (after.number, after.up_to) if after is not None else (0, ())
    key = chunk_key(connection, table)
    while key is not None:
        found = connection.texts(bound_statement(table, key, bound, where, chunk_rows))
        if not found:
            break
        number, before, bound = number + 1, bound, _literals(key, found[0])
        yield Chunk(number=number, after=before, up_to=bound)
    yield Chunk(number=number + 1, after=bound)


def chunk_key(connection: QueryRunner, table: TableVersion) -> Key | None:
    """Returns the key by which a table is split into chunks. Returns None if the table has no key, or if the values of the key cannot be
    ordered or cannot be written as exact literals. UUIDs in the key are compared as text if the server compares UUIDs in another order than
    it sorts them.

    `index` of the result names the index that the server must use for the SELECTs of the chunks. It is PRIMARY if the primary key begins
    with the key's columns and indexes no column by a prefix only. If not, or if UUIDs in the key are compared as text, `index` is empty.
    """
    key = key_of(table)
    if key is None:
        return None
    if any(key.uuids) and connection.texts(UUID_PROBE) != [("1",)]:
        columns = zip(key.columns, key.uuids, strict=True)
        return dataclasses.replace(key, columns=tuple(as_text(each) if uuid else each for each, uuid in columns))
    name = f"{quoted(table.database)}.{quoted(table.table)}"
    parts = [row for row in connection.texts(f"SHOW INDEX FROM {name}") if row[2] == PRIMARY]
    names = [str(row[4]).lower() for row in parts if row[7] is None]
    whole = len(names) == len(parts) and names[: len(table.key)] == [each.lower() for each in table.key]
    return dataclasses.replace(key, index=PRIMARY) if whole else key


def _literals(key: Key, row: tuple[str | None, ...]) -> tuple[str, ...]:
    try:
        return tuple(each.literal(text or "") for each, text in zip(key.columns, row, strict=True))
    except ValueError as error:
        raise SourceConnectionError(f"the source returned an invalid key for the bound of a chunk: {error}") from None
