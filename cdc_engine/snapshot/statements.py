"""Generates the SELECTs of a snapshot: one finds the bound of the next chunk, the other reads a chunk's rows. Pure. Called by `chunks` and
`read`.

A bound of a composite key is written as `a >= x AND (a > x OR (a = x AND b > y))`, which the servers' optimisers turn into ranges of the
key's index. Two neighbouring chunks share a bound, which belongs to the first of them. So each row is in exactly one chunk, whichever
values the collation considers equal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sluice.cdc_engine.contracts import Column, TableVersion
from sluice.cdc_engine.snapshot.key_literals import KeyColumn, is_uuid, key_column


@dataclasses.dataclass(frozen=True, kw_only=True)
class Key:
    """The key by which a table is split into chunks. The tuples have one value per key column: the quoted name, how the column is printed
    and compared, whether it may be NULL, and whether it is a UUID. `index` is the name of the index that has the key's order, or empty.
    The statements force the server to use this index.
    """

    quoted: tuple[str, ...]
    columns: tuple[KeyColumn, ...]
    nullable: tuple[bool, ...]
    uuids: tuple[bool, ...]
    index: str = ""

    @property
    def compared(self) -> tuple[str, ...]:
        return tuple(each.compared.format(name) for name, each in zip(self.quoted, self.columns, strict=True))


def quoted(name: str) -> str:
    """Returns a name quoted for SQL in any sql_mode."""
    return f"`{name.replace('`', '``')}`"


def key_of(table: TableVersion, index: str = "") -> Key | None:
    """Returns the key by which a table is split. Returns None if the table has no key, or a key without an order; such a table is read in
    one chunk.
    """
    by_name = {column.name.lower(): column for column in table.columns}
    columns: list[Column] = [by_name[name.lower()] for name in table.key]
    found = [key_column(column) for column in columns]
    if not found or None in found:
        return None
    return Key(
        quoted=tuple(quoted(column.name) for column in columns),
        columns=tuple(each for each in found if each),
        nullable=tuple(column.nullable for column in columns),
        uuids=tuple(is_uuid(column) for column in columns),
        index=index,
    )


def bound_statement(table: TableVersion, key: Key, after: tuple[str, ...], where: str, rows: int) -> str:
    """Returns the SELECT that finds the next bound: the key of the `rows`-th row after the bound `after`. The server prints the key's
    values as text (`KeyColumn.printed`).
    """
    printed = ", ".join(each.printed.format(name) for name, each in zip(key.quoted, key.columns, strict=True))
    there = [f"{name} IS NOT NULL" for name, nullable in zip(key.quoted, key.nullable, strict=True) if nullable]
    conditions = [*beyond(key.compared, after), *there, *_given(where)]
    order = ", ".join(key.compared)
    return f"SELECT {printed} FROM {_table(table, key.index)}{_where(conditions)} ORDER BY {order} LIMIT 1 OFFSET {rows - 1}"


def rows_statement(
    table: TableVersion, expressions: str, key: Key | None, bounds: tuple[tuple[str, ...], tuple[str, ...]], where: str
) -> str:
    """Returns the SELECT for all rows of a chunk. `bounds` are the chunk's `after` and `up_to`. The first chunk also selects rows with NULL
    in the key, so that the decoder of the rows stops the table (KEY_NULL). Otherwise, the snapshot would lack these rows.
    """
    after, up_to = bounds
    conditions: list[str] = []
    if key is not None:
        conditions = [*beyond(key.compared, after), *up_to_bound(key.compared, up_to)]
        nulls = [f"{name} IS NULL" for name, nullable in zip(key.quoted, key.nullable, strict=True) if nullable]
        if nulls and up_to and not after:
            conditions = [f"({' AND '.join(conditions)}) OR {' OR '.join(nulls)}"]
            conditions = [f"({conditions[0]})"]
    index = key.index if key is not None and (after or up_to) else ""
    return f"SELECT {expressions} FROM {_table(table, index)}{_where([*conditions, *_given(where)])}"


def beyond(names: Sequence[str], bound: Sequence[str]) -> list[str]:
    """Returns the SQL conditions that select the keys greater than a bound, or no condition if `bound` is empty."""
    return _comparisons(names, bound, ">", last=">")


def up_to_bound(names: Sequence[str], bound: Sequence[str]) -> list[str]:
    """Returns the SQL conditions that select the keys up to and including a bound, or no condition if `bound` is empty."""
    return _comparisons(names, bound, "<", last="<=")


def _comparisons(names: Sequence[str], bound: Sequence[str], sign: str, last: str) -> list[str]:
    if not bound:
        return []
    condition = f"{names[-1]} {last} {bound[-1]}"
    for name, value in reversed(list(zip(names[:-1], bound[:-1], strict=True))):
        condition = f"{name} {sign} {value} OR ({name} = {value} AND ({condition}))"
    if len(bound) == 1:
        return [condition]
    return [f"{names[0]} {sign}= {bound[0]}", f"({condition})"]


def _table(table: TableVersion, index: str) -> str:
    forced = f" FORCE INDEX ({quoted(index)})" if index else ""
    return f"{quoted(table.database)}.{quoted(table.table)}{forced}"


def _given(where: str) -> list[str]:
    """Returns the operator's condition in parentheses on lines of its own. Otherwise a comment at the end of the condition would hide the
    rest of the statement.
    """
    return [f"(\n{where}\n)"] if where.strip() else []


def _where(conditions: Sequence[str]) -> str:
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""
