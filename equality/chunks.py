"""Splits a table into chunks so that source and lake assign a row to the same chunk, although their collations differ. Pure functions.

If the first key column is an integer, chunks are ranges of this column, which the server reads by its index. If the column has text or
bytes, chunks are ranges of an MD5 digest of the text in UTF-8, or of the bytes. The server and DuckDB compute the same digest. A table
whose first key column has another type is one chunk, and so is a table without a key.

Two keys that the server's collation considers equal can differ in bytes, and so be in different chunks. For example, the source can have
'a' where the lake has 'A'. Rows whose first key column is NULL are in the first chunk.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Protocol

from sluice.equality.canonical import COMPARABLE_RANGES, Canonical, quoted
from sluice.spark_jobs.sql_text import double_quoted

ROWS_A_CHUNK = 50_000
CHUNKS_MAX = 4_096
UNSIGNED = "DECIMAL(20,0)"  # The Delta type of an unsigned BIGINT.
DIGITS = 4  # The chunk depends on this many hexadecimal digits at the start of the MD5 digest.
DIGESTS = 16**DIGITS


class Chunks(Protocol):
    """Divides a table into `count` chunks, numbered from 0."""

    @property
    def count(self) -> int: ...

    def number(self) -> str:
        """Returns an expression in DuckDB's SQL for the number of a row's chunk. The expression expects columns in the canonical form."""

    def where(self, numbers: Iterable[int]) -> list[str]:
        """Returns conditions in MySQL's SQL that together select the rows of the chunks with these numbers. Each condition is for a
        statement of its own. An empty condition selects all rows, and an empty list no rows.
        """

    def name(self, number: int) -> str:
        """Returns a description of a chunk for operators, for example the range of its keys."""

    def record(self) -> dict[str, Any]:
        """Returns the parameters of these chunks as JSON, for `chunks_from`."""


@dataclasses.dataclass(frozen=True)
class Whole:
    """Treats the whole table as one chunk."""

    count: int = 1

    def number(self) -> str:
        return "0"

    def where(self, numbers: Iterable[int]) -> list[str]:
        return [""] if list(numbers) else []

    def name(self, number: int) -> str:  # noqa: ARG002
        return "all rows"

    def record(self) -> dict[str, Any]:
        return {"kind": "whole"}


@dataclasses.dataclass(frozen=True)
class Ranges:
    """Splits a table by ranges of an integer column. Each range has `width` values, and the first range begins at `low`. The first
    range also has all lower values, and the last range all higher values.
    """

    column: str
    low: int
    width: int
    count: int

    def number(self) -> str:
        location = f"(CAST({double_quoted(self.column)} AS HUGEINT) - {self.low}) // {self.width}"
        return f"CAST(greatest(0, least({self.count - 1}, coalesce({location}, 0))) AS INTEGER)"

    def where(self, numbers: Iterable[int]) -> list[str]:
        return [self._between(each) for each in sorted(numbers)]

    def _between(self, number: int) -> str:
        column, begin = quoted(self.column), self.low + number * self.width
        above = [f"{column} >= {begin}"] if number else []
        below = [f"{column} < {begin + self.width}"] if number < self.count - 1 else []
        condition = " AND ".join([*above, *below])
        return f"({condition} OR {column} IS NULL)" if condition and not number else condition

    def name(self, number: int) -> str:
        begin = self.low + number * self.width
        return f"{self.column} from {begin} to {begin + self.width - 1}" if self.count > 1 else "all rows"

    def record(self) -> dict[str, Any]:
        return {"kind": "ranges", **dataclasses.asdict(self)}


@dataclasses.dataclass(frozen=True)
class Digests:
    """Splits a table into `count` ranges of the first DIGITS hexadecimal digits of the MD5 digest of `column`. If `text` is True, the
    digest is computed from the column's characters in UTF-8, otherwise from its bytes. `select` is the expression in MySQL's SQL that has
    the column's value, or empty for the column itself.
    """

    column: str
    count: int
    text: bool
    select: str = ""

    def number(self) -> str:
        digits = f"coalesce(left(md5({double_quoted(self.column)}), {DIGITS}), '0')"
        return f"CAST('0x' || {digits} AS INTEGER) * {self.count} // {DIGESTS}"

    def where(self, numbers: Iterable[int]) -> list[str]:
        wanted = sorted(numbers)
        if len(wanted) == self.count:
            return [""]
        value = f"CONVERT({self.select or quoted(self.column)} USING utf8mb4)" if self.text else quoted(self.column)
        digits = f"LEFT(MD5({value}), {DIGITS})"
        parts = [f"{digits} BETWEEN '{self._first(each):04x}' AND '{self._first(each + 1) - 1:04x}'" for each in wanted]
        parts += [f"{quoted(self.column)} IS NULL"] if 0 in wanted else []
        return [" OR ".join(parts)] if parts else []

    def _first(self, number: int) -> int:
        """Returns the lowest digest of the chunk `number`, reduced to its first DIGITS hexadecimal digits, as a number."""
        first: int = -(-number * DIGESTS // self.count)
        return first

    def name(self, number: int) -> str:
        if self.count == 1:
            return "all rows"
        return f"digest of {self.column} from {self._first(number):04x} to {self._first(number + 1) - 1:04x}"

    def record(self) -> dict[str, Any]:
        return {"kind": "digests", **dataclasses.asdict(self)}


def chunks_from(record: dict[str, Any]) -> Chunks:
    """Creates chunks from `record`, the JSON that `Chunks.record` returned. Raises KeyError or TypeError if the JSON has another form."""
    kinds: dict[str, Any] = {"whole": Whole, "ranges": Ranges, "digests": Digests}
    made: Chunks = kinds[record["kind"]](**{name: value for name, value in record.items() if name != "kind"})
    return made


def chunks_of(key: tuple[Canonical, ...], rows: int, low: int | None, high: int | None) -> Chunks:
    """Splits a table with about `rows` rows into chunks. `key` has the key columns, and is empty for a table without a key. Such a table
    becomes one chunk, as does a table whose first key column is neither an integer nor text nor bytes. `low` and `high` are the least and
    the greatest value of the first key column in the source. They are None if the column is not an integer or the source has no rows.
    """
    wanted = max(1, min(CHUNKS_MAX, -(-rows // ROWS_A_CHUNK)))
    if not key:
        return Whole()
    first = key[0]
    if is_integer(first):
        if low is None or high is None:
            return Ranges(first.name, 0, 1, 1)
        width = max(1, -(-(high - low + 1) // wanted))
        return Ranges(first.name, low, width, max(1, -(-(high - low + 1) // width)))
    if first.type == "BLOB":
        select = first.compared if first.has_other_charset else ""
        return Digests(first.name, wanted, text=not first.is_bytes, select=select)
    return Whole()


def is_integer(column: Canonical) -> bool:
    """Returns whether the values of a column are integers in source and lake, so that ranges of the column can split the table."""
    return column.type in COMPARABLE_RANGES or column.type == UNSIGNED
