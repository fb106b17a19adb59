"""Loads rows of source and lake into DuckDB, which converts, hashes, sums and joins them on all cores. `compare` uses this module.

A chunk is equal if source and lake have the same number of rows and the same sum of the rows' 64-bit hashes. The sum does not depend on the
order of rows. In a change log, the hash of an image that removes a row is subtracted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from sluice.equality import lake_side, source_side
from sluice.equality.chunks import Chunks
from sluice.equality.table_plan import ORDER_KEY, ComparisonPlan
from sluice.equality.values import Difference, Seen
from sluice.spark_jobs.sql_text import double_quoted

Key = tuple[Any, ...]
MEMORY = "1GB"  # The memory limit of DuckDB. DuckDB writes further data to temporary files.
SOURCE, LAKE = "source", "lake"
# Columns of Sluice in DuckDB's tables. No captured column has such a name, because Sluice refuses columns that begin with `_sluice_`.
HASH, COUNT, NEWEST = "_sluice_hash", "_sluice_count", "_sluice_newest"
SOURCE_HASH, LAKE_HASH, ROWS = "_sluice_source_hash", "_sluice_lake_hash", "_sluice_rows"
IN_SOURCE, IN_LAKE = "_sluice_in_source", "_sluice_in_lake"


@dataclasses.dataclass(frozen=True)
class Sum:
    """The number of rows in a chunk, and the sum of their hashes. In a change log, an image that removes a row counts as -1, and its hash
    is subtracted.
    """

    rows: int
    hashes: int


NO_ROWS = Sum(0, 0)  # The sum of a chunk without rows. `Sums` of source and lake leave such chunks out.


@dataclasses.dataclass(frozen=True)
class ComparedRow:
    """The rows of one key in source and lake. `seen` has the hashes of these rows. `lake_rows` is the number of rows that the lake has for
    the key. `order_key` is the highest order key of the lake's rows, or -1 if the lake has no row.
    """

    seen: Seen
    lake_rows: int
    order_key: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class DifferingKey:
    """A key whose rows differ, or for which source or lake does not have exactly one row. `in_source` tells whether the source has a row
    with this key, compared by bytes. `lake_rows` is the number of rows that the lake has for the key.
    """

    in_source: bool
    lake_rows: int


class Tables:
    """The rows of one table during a comparison, in DuckDB. DuckDB writes data that does not fit into memory to `folder`."""

    def __init__(self, plan: ComparisonPlan, chunks: Chunks, folder: str = "") -> None:
        self._plan, self._chunks = plan, chunks
        self._duckdb = duckdb.connect(
            config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
        )
        self._duckdb.execute(
            f"SET TimeZone = 'UTC'; SET memory_limit = '{MEMORY}'; SET disabled_optimizers = 'filter_pushdown'"
        )
        if folder:
            self._duckdb.execute(f"SET temp_directory = '{folder.replace(chr(39), chr(39) * 2)}'")

    def close(self) -> None:
        self._duckdb.close()

    def sums_of_source(self, reader: Any, wanted: Collection[int] | None = None) -> dict[int, Sum]:
        """Returns the sum of each chunk by its number, for rows from `SourceSide.rows`. `wanted` are the chunks to sum, or None for all."""
        return self._sums(reader, source_side.canonical_rows(self._plan), "1", "true", wanted)

    def sums_of_lake(
        self, reader: Any, wanted: Collection[int] | None = None, order_key_max: int | None = None
    ) -> dict[int, Sum]:
        """Returns the sum of each chunk by its number, for rows from `LakeSide.rows`. `wanted` are the chunks to sum, or None for all. In a
        change log, rows above the order key `order_key_max` are left out, unless it is None.
        """
        counted = lake_side.counted(self._plan, order_key_max)
        return self._sums(reader, lake_side.canonical_rows(self._plan), lake_side.SIGN, counted, wanted)

    def _sums(
        self, reader: Any, columns: str, sign: str, counted: str, wanted: Collection[int] | None
    ) -> dict[int, Sum]:
        chosen = "" if wanted is None else f"WHERE chunk IN ({', '.join(map(str, sorted(wanted))) or 'NULL'})"
        answer = self._run(
            f"SELECT chunk, sum(sign), sum(sign * CAST(hash AS HUGEINT)) FROM (SELECT {self._chunks.number()} AS chunk, {sign} AS sign, "
            f"{self._plan.hash} AS hash FROM (SELECT {columns} FROM reader WHERE {counted})) {chosen} GROUP BY 1",
            reader,
        )
        return {int(chunk): Sum(int(rows), int(hashes)) for chunk, rows, hashes in answer}

    def keep_source(self, reader: Any, *, whole: bool) -> None:
        """Stores the source's rows in DuckDB, from which `rows` and `differing` read them. Replaces the rows that were stored before. If
        `whole` is True, stores all columns, otherwise only the key and the hash of each row.
        """
        self._keep(SOURCE, reader, source_side.canonical_rows(self._plan), "1", "true", whole=whole)

    def keep_lake(
        self, reader: Any, *, whole: bool, keys: bool = False, order_key_max: int | None = None, chunks: str = "true"
    ) -> None:
        """Stores the lake's rows in DuckDB, and replaces those that were stored before. If `whole` is True, stores all columns, otherwise
        only the key and the hash of each row. If `keys` is True, stores only rows whose keys the last call of `keep_keys` stored. `chunks`
        is DuckDB's condition for the chunks to store, or "true" for all chunks. In a change log, leaves out rows above the order key
        `order_key_max`, unless it is None.
        """
        columns = lake_side.canonical_rows(self._plan)
        counted = lake_side.counted(self._plan, order_key_max)
        self._keep(LAKE, reader, columns, lake_side.SIGN, counted, whole=whole, keys=keys, chunks=chunks)

    def _keep(
        self,
        table: str,
        reader: Any,
        columns: str,
        sign: str,
        counted: str,
        *,
        whole: bool,
        keys: bool = False,
        chunks: str = "true",
    ) -> None:
        plan = self._plan
        kept = [double_quoted(name) for name in (self._names if whole or not plan.key else plan.key)]
        order_key = ORDER_KEY if table == LAKE and plan.key else "-1"
        these = f"WHERE {chunks}"
        if keys:
            these += f" AND {self._is_kept_key('side')}"
        inner = f"SELECT {columns}, {order_key} AS {NEWEST} FROM reader WHERE {counted}"
        self._run(
            f"CREATE OR REPLACE TABLE {table} AS SELECT {', '.join(kept)}, {plan.hash} AS {HASH}, {sign} AS {COUNT}, {NEWEST} "
            f"FROM ({inner}) AS side {these}",
            reader,
        )

    def chunks_in(self, numbers: Collection[int]) -> str:
        return f"{self._chunks.number()} IN ({', '.join(map(str, sorted(numbers)))})"

    def keep_keys(self, keys: Collection[Key]) -> None:
        """Stores keys in DuckDB, for a later call of `keep_lake` with `keys=True`. Replaces the keys that were stored before. The methods
        `values` and `chunk_of` call this method, so they replace the stored keys too.
        """
        columns = ", ".join(f"{double_quoted(column.name)} {column.type}" for column in self._plan.key_columns)
        self._duckdb.execute(f"CREATE OR REPLACE TABLE keys ({columns})")
        if keys:
            marks = ", ".join("?" for _ in self._plan.key)
            self._duckdb.executemany(f"INSERT INTO keys VALUES ({marks})", [list(key) for key in keys])

    def differing(self, limit: int) -> dict[Key, DifferingKey]:
        """Compares the rows that `keep_source` and `keep_lake` have stored. Returns at most `limit` keys whose rows differ, or for which
        source or lake does not have exactly one row.
        """
        answer = self._duckdb.execute(
            f"SELECT {self._key}, {SOURCE_HASH} IS NOT NULL, coalesce({ROWS}, 0) FROM ({self._joined()}) "
            f"WHERE {self._differ} LIMIT {limit}"
        )
        return {
            tuple(row[:-2]): DifferingKey(in_source=bool(row[-2]), lake_rows=int(row[-1])) for row in answer.fetchall()
        }

    def rows(self) -> dict[Key, ComparedRow]:
        """Returns, for each key whose rows `keep_source` or `keep_lake` has stored, the hashes of its rows in source and lake."""
        answer = self._duckdb.execute(
            f"SELECT {self._key}, {SOURCE_HASH}, {LAKE_HASH}, {ROWS}, {NEWEST} FROM ({self._joined()})"
        )
        width = len(self._plan.key)
        found: dict[Key, ComparedRow] = {}
        for row in answer.fetchall():
            source, lake, rows, newest = row[width:]
            # If the lake has several rows for a key, the key must count as different. So a number above all 64-bit hashes is added to the
            # sum of the rows' hashes, and the sum never equals the hash of the source's single row.
            lake = lake if rows in {None, 1} else int(lake) + (int(rows) << 80)
            order_key = -1 if newest is None else int(newest)
            found[tuple(row[:width])] = ComparedRow(
                Seen(
                    None if source is None else int(source),
                    None if lake is None else int(lake),
                    order_key=order_key,
                    doubled=int(rows or 0) > 1,
                ),
                int(rows or 0),
                order_key,
            )
        return found

    def values(self, table: str, keys: Sequence[Key]) -> dict[Key, tuple[Any, ...]]:
        """Returns the complete rows that `table`, SOURCE or LAKE, has for these keys. The rows must have been stored with all columns (the
        argument `whole` of `keep_source` and `keep_lake`).
        """
        self.keep_keys(keys)
        answer = self._duckdb.execute(f"SELECT {self._all} FROM {table} AS side WHERE {self._is_kept_key('side')}")
        indices = [self._names.index(name) for name in self._plan.key]
        return {tuple(row[index] for index in indices): row for row in answer.fetchall()}

    def keys_of(self, table: str) -> list[Key]:
        """Returns the keys of the rows that are stored in `table`, SOURCE or LAKE."""
        return [tuple(row) for row in self._duckdb.execute(f"SELECT DISTINCT {self._key} FROM {table}").fetchall()]

    def chunk_of(self, key: Key) -> int:
        """Returns the number of the chunk that contains a key."""
        self.keep_keys([key])
        return int(self._duckdb.execute(f"SELECT {self._chunks.number()} FROM keys LIMIT 1").fetchall()[0][0])

    def differing_rows(self, limit: int) -> dict[Key, Seen]:
        """Returns, for a table without a key, at most `limit` rows that do not occur equally often in source and lake. `Seen` says how
        often a row occurs in each.
        """
        answer = self._duckdb.execute(
            f"SELECT {self._all}, sum({IN_SOURCE}), sum({IN_LAKE}) FROM "
            f"(SELECT {self._all}, {COUNT} AS {IN_SOURCE}, 0 AS {IN_LAKE} FROM source UNION ALL SELECT {self._all}, 0, {COUNT} FROM lake) "
            f"GROUP BY {self._all} HAVING sum({IN_SOURCE}) <> sum({IN_LAKE}) LIMIT {limit}"
        )
        return {tuple(row[:-2]): Seen(int(row[-2]), int(row[-1])) for row in answer.fetchall()}

    @property
    def _names(self) -> list[str]:
        return [column.name for column in self._plan.columns]

    @property
    def _all(self) -> str:
        return ", ".join(double_quoted(name) for name in self._names)

    @property
    def _key(self) -> str:
        return ", ".join(double_quoted(name) for name in self._plan.key)

    _differ = f"{SOURCE_HASH} IS DISTINCT FROM {LAKE_HASH} OR coalesce({ROWS}, 1) <> 1"

    def _is_kept_key(self, table: str) -> str:
        """Returns the condition that a row has one of the keys that `keep_keys` stored last."""
        return f"EXISTS (SELECT 1 FROM keys WHERE {self._same_key(table, 'keys')})"

    def _same_key(self, one: str, other: str) -> str:
        """Returns the condition that rows of two tables have the same key. NULL equals NULL."""
        names = [double_quoted(name) for name in self._plan.key]
        return " AND ".join(f"{one}.{name} IS NOT DISTINCT FROM {other}.{name}" for name in names)

    def _joined(self) -> str:
        """Returns SQL that joins the stored rows of source and lake by key. The result has one row per key.

        Several statements may select rows of the source by their keys. The server compares keys by collation, so two statements can return
        the same row, which is then stored twice. Therefore the join uses only one of several source rows with the same key. Rows whose key
        contains NULL are different rows even if their keys are the same, so their hashes are added up.
        """
        names = [double_quoted(name) for name in self._plan.key]
        is_null = " OR ".join(f"{name} IS NULL" for name in names)
        in_source = f"CASE WHEN {is_null} THEN sum(CAST({HASH} AS HUGEINT)) ELSE any_value(CAST({HASH} AS HUGEINT)) END"
        keys = ", ".join(f"coalesce(s.{name}, l.{name}) AS {name}" for name in names)
        return (
            f"SELECT {keys}, {SOURCE_HASH}, {LAKE_HASH}, {ROWS}, {NEWEST} FROM "
            f"(SELECT {self._key}, {in_source} AS {SOURCE_HASH} FROM source GROUP BY {self._key}) AS s FULL JOIN "
            f"(SELECT {self._key}, sum(CAST({HASH} AS HUGEINT)) AS {LAKE_HASH}, count(*) AS {ROWS}, max({NEWEST}) AS {NEWEST} "
            f"FROM lake GROUP BY {self._key}) AS l ON {self._same_key('s', 'l')}"
        )

    def _run(self, sql: str, reader: Any) -> Any:
        """Runs one statement that reads the stream `reader`. If the stream fails, raises the stream's error instead of DuckDB's."""
        kept = _ErrorKeepingStream(reader)
        self._duckdb.register("reader", kept.reader)
        try:
            return self._duckdb.execute(sql).fetchall()
        except duckdb.Error:
            if kept.error is not None:
                raise kept.error from None
            raise
        finally:
            self._duckdb.unregister("reader")


class _ErrorKeepingStream:
    """Wraps a stream and stores the stream's error, because DuckDB reports only the text of the error."""

    def __init__(self, reader: Any) -> None:
        self.error: Exception | None = None
        self._source = reader
        self.reader = pa.RecordBatchReader.from_batches(reader.schema, self._batches())

    def _batches(self) -> Any:
        try:
            yield from self._source
        except Exception as error:
            self.error = error
            raise


def shown(value: Any) -> str:
    """Formats a canonical value for a person: printable text in quotes, other bytes in hexadecimal digits."""
    if isinstance(value, bytes | bytearray):
        try:
            text = bytes(value).decode()
        except UnicodeDecodeError:
            return f"x'{bytes(value).hex()}'"
        return repr(text) if text.isprintable() else f"x'{bytes(value).hex()}'"
    return "NULL" if value is None else str(value)


def difference(
    plan: ComparisonPlan,
    key: Key,
    chunk: str,
    *,
    source: Sequence[Any] | None,
    lake: Sequence[Any] | None,
    lake_rows: int = 1,
) -> Difference:
    """Describes how the rows of one key differ. `source` is the complete row of the source, and `lake` that of the lake; None means that
    there is no row. `lake_rows` is the number of rows that the lake has for the key, and `chunk` the name of the key's chunk.
    """
    named: Mapping[str, str] = {name: shown(value) for name, value in zip(plan.key, key, strict=True)}
    if lake_rows > 1:
        return Difference("doubled", named, chunk, count=lake_rows)
    if lake is None:
        return Difference("missing", named, chunk)
    if source is None:
        return Difference("surplus", named, chunk)
    pairs = zip(plan.columns, source, lake, strict=True)
    return Difference(
        "value",
        named,
        chunk,
        tuple((each.name, shown(left), shown(right)) for each, left, right in pairs if left != right),
    )
