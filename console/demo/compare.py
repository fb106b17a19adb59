"""Row by row: is a Delta table what MySQL holds? Order-free and exact; used by `demo --once` and the acceptance tests.

Tables with a key are matched by key. A table without one is kept in Delta as its change log, so the log is replayed to a multiset of rows
(insert + update_postimage - update_preimage - delete) and that is compared: a change applied twice shows as a row too many.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pymysql
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pymysql.converters import escape_string
from pymysql.cursors import SSCursor

from console.demo.canonical import kind_of

Row = tuple[Any, ...]
Connect = Callable[[], "pymysql.Connection[Any]"]
DIFFERENCES_SHOWN = 10
OPERATION = "_sluice_operation"
# what one row of the change log adds to the table, by its operation's name in Delta's change data feed
SIGNS: Mapping[str, int] = {"insert": 1, "update_preimage": -1, "update_postimage": 1, "delete": -1}


@dataclasses.dataclass(frozen=True)
class TableShape:
    """Columns (name → data type) and key of a MySQL table; an empty key: none."""

    database: str
    table: str
    columns: Mapping[str, str]
    key: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """`rows`: in MySQL. `differences`: the first of `difference_count`, a sentence each."""

    rows: int
    difference_count: int
    differences: tuple[str, ...]

    @property
    def equal(self) -> bool:
        return self.difference_count == 0


def read_shape(connection: pymysql.Connection[Any], database: str, table: str) -> TableShape:
    """The shape as the server says it; `connection` may be raw."""
    named = f"table_schema = '{escape_string(database)}' AND table_name = '{escape_string(table)}'"
    where = f"WHERE {named} ORDER BY ordinal_position"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT column_name, data_type FROM information_schema.columns {where}")
        columns = {str(name): _text(data_type) for name, data_type in cursor.fetchall()}
        primary = where.replace("WHERE", "WHERE constraint_name = 'PRIMARY' AND")
        cursor.execute(f"SELECT column_name FROM information_schema.key_column_usage {primary}")
        key = tuple(str(row[0]) for row in cursor.fetchall())
    return TableShape(database, table, columns, key)


def compare_table(connect_raw: Connect, database: str, table: str, delta_path: str) -> Comparison:
    """Compares one table. `connect_raw` gives connections in UTC with `conv={}` (DemoSource.connect_raw)."""
    with contextlib.closing(connect_raw()) as connection:
        shape = read_shape(connection, database, table)
        source = Counter(mysql_rows(connection, shape))
    target: Counter[Row] = Counter()
    try:
        delta = DeltaTable(delta_path)
    except TableNotFoundError:
        missing = [f"{shape.name}: there is no Delta table at {delta_path}"]
    else:
        missing = missing_columns(shape, delta)
        if not missing:
            target = delta_rows(delta, shape)
    differences = missing if missing and (source or shape.columns) else difference_sentences(shape, source, target)
    return Comparison(source.total(), len(differences), tuple(differences[:DIFFERENCES_SHOWN]))


def mysql_rows(connection: pymysql.Connection[Any], shape: TableShape) -> Iterator[Row]:
    """All rows of the table, canonical, streamed from one consistent read."""
    kinds = [kind_of(data_type) for data_type in shape.columns.values()]
    wanted = ", ".join(kind.select.format(_quoted(name)) for name, kind in zip(shape.columns, kinds, strict=True))
    convert = [kind.from_mysql for kind in kinds]
    with SSCursor(connection) as cursor:
        cursor.execute(f"SELECT {wanted} FROM {_quoted(shape.database)}.{_quoted(shape.table)}")
        for row in cursor:
            yield tuple(None if value is None else one(value) for one, value in zip(convert, row, strict=True))


def delta_rows(delta: DeltaTable, shape: TableShape) -> Counter[Row]:
    """All rows as a multiset, canonical; of a change log, what it replays to (a count below zero: deleted more than inserted)."""
    convert = [kind_of(data_type).from_delta for data_type in shape.columns.values()]
    names = [*shape.columns, *([] if shape.key else [OPERATION])]
    rows: Counter[Row] = Counter()
    for batch in _batches(delta, names):
        lists = [
            [None if value is None else one(value) for value in column.to_pylist()]
            for one, column in zip(convert, batch.columns[: len(convert)], strict=True)
        ]
        if shape.key:
            rows.update(zip(*lists, strict=True))
            continue
        for row, operation in zip(zip(*lists, strict=True), batch.column(OPERATION).to_pylist(), strict=True):
            rows[row] += SIGNS[str(operation)]
    return rows


def missing_columns(shape: TableShape, delta: DeltaTable) -> list[str]:
    """One sentence a column of MySQL that the Delta table lacks, and one if a change log has no operation column."""
    present = {field.name for field in delta.schema().fields}
    wanted = [*shape.columns, *([] if shape.key else [OPERATION])]
    return [f"{shape.name}: the Delta table has no column {name}" for name in wanted if name not in present]


def difference_sentences(shape: TableShape, source: Counter[Row], target: Counter[Row]) -> list[str]:
    """Every difference of two multisets of rows: by key and column where there is a key, else by whole row."""
    only_source, only_target = source - target, target - source
    if not shape.key:
        return _whole_rows(shape, only_source, only_target)
    names = list(shape.columns)
    places = [names.index(column) for column in shape.key]
    left, right = _by_key(only_source, places), _by_key(only_target, places)
    sentences: list[str] = []
    for key in sorted(left.keys() | right.keys(), key=repr):
        where = f"{shape.name} {', '.join(f'{name}={value!r}' for name, value in zip(shape.key, key, strict=True))}"
        sentences += _of_key(where, names, left.get(key, []), right.get(key, []))
    return sentences


def _of_key(where: str, names: Sequence[str], left: list[Row], right: list[Row]) -> list[str]:
    if not right:
        return [f"{where}: the row is missing in Delta"]
    if not left:
        return [f"{where}: Delta has {len(right)} row(s) that MySQL does not have"]
    if len(right) > 1:
        return [f"{where}: Delta has the key {len(right)} times"]
    pairs = zip(names, left[0], right[0], strict=True)
    return [f"{where}: {name} is {a!r} in MySQL and {b!r} in Delta" for name, a, b in pairs if a != b]


def _whole_rows(shape: TableShape, only_source: Counter[Row], only_target: Counter[Row]) -> list[str]:
    missing = [f"{shape.name}: {count} times {row!r} missing in Delta" for row, count in only_source.items()]
    surplus = [f"{shape.name}: {count} times {row!r} too many in Delta" for row, count in only_target.items()]
    return missing + surplus


def _by_key(rows: Counter[Row], places: Sequence[int]) -> dict[Row, list[Row]]:
    found: dict[Row, list[Row]] = {}
    for row in rows.elements():
        found.setdefault(tuple(row[place] for place in places), []).append(row)
    return found


def _batches(delta: DeltaTable, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Delta's own scan: it applies deletion vectors, which the pyarrow dataset of deltalake does not."""
    yield from pa.RecordBatchReader.from_stream(delta.scan(columns=names))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
