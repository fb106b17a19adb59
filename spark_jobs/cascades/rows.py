"""Loads the rows that foreign keys may change: rows of the lake, and staged images of a batch. `derive` calls this module.

Loads only child rows that reference a wanted value, which is a deleted or changed value of a parent. Also loads all staged images with the
key of such a row.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice.batch_manifest.values import Cascade, CascadeEvents, ChangesSegment, SchemaSegment, StagedTable
from sluice.spark_jobs import sql_text
from sluice.spark_jobs.cascades.play import ADVICE, CascadeRow, ChangeOrder, Event, Image, Values, coarse
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.merging.fold import DELETE, LOG_NAMES, UPDATE_BEFORE
from sluice.spark_jobs.session import LakeSession
from sluice.spark_jobs.staged_batch import COMMIT_TIME, DELETED, GROUP_COLUMNS, MOVED, OPERATION, ORDER_KEY, PRESENT
from sluice.spark_jobs.tables.delta_table import DeltaTable

ROW_INDEX = "_sluice_sequence_number"
WANTED_VIEW = "sluice_wanted"
INDEX_BYTES = 8
# A run loads at most this many rows of one table from the lake, to compute the changes that foreign keys made in one batch. If more rows
# may have changed, the table cannot be merged. Each loaded row takes about 2.5 kB of the run's memory.
ROWS_MAX = 500_000


def events_of(events: CascadeEvents) -> Iterator[Event]:
    """Yields the changes of parent rows that foreign keys may pass on to child rows, in stream order: deleted rows, and changed values in
    columns to which foreign keys refer.
    """
    rows = pq.read_table(events.file).to_pylist()
    before: dict[str, Any] = {}
    for row in rows:
        values = {name.lower(): value for name, value in row.items() if not name.startswith("_sluice_")}
        if row[OPERATION] == UPDATE_BEFORE:
            before = values
            continue
        old, new = (values, None) if row[OPERATION] == DELETE else (before, values)
        at = ChangeOrder(row[ORDER_KEY], row[ROW_INDEX], row[COMMIT_TIME])
        yield Event(at, events.parent_name, old, new, events.cascades, events.live_names)


def positions_of(table: StagedTable) -> list[int]:
    """Returns the sequence number of each staged row of a table. The sequence numbers order the rows of all tables of the batch. If no
    foreign key needs this order, the engine stages no sequence numbers for the table, and all numbers are 0.
    """
    if table.positions is None:
        return [0] * table.rows
    content = table.positions.read_bytes()
    array = pa.Array.from_buffers(pa.int64(), len(content) // INDEX_BYTES, [None, pa.py_buffer(content)])
    return cast("list[int]", array.to_pylist())


@dataclasses.dataclass
class StagedImages:
    """Selects the staged images of one table from which the module `play` derives the changes that foreign keys made. `key` and the columns
    of foreign keys are in lower case.
    """

    table: StagedTable
    key: tuple[str, ...]

    def relevant(self, wanted: Mapping[tuple[str, ...], set[Values]], keys: set[Values]) -> Iterator[Image]:
        """Yields the images of rows that have one of the `keys`, or that reference a `wanted` value at any time in the batch. Also yields
        each TRUNCATE of the table, and each schema change that alters columns or fills them with values.

        For a table without a key, yields the images that reference a wanted value. An image that lacks columns is yielded if it may
        reference a wanted value. If a row's key changes, its images under all of its keys are yielded.
        """
        pointing = keys | self._referencing(wanted)
        indices, begin = positions_of(self.table), 0
        for segment in self.table.segments:
            if not isinstance(segment, ChangesSegment):
                at = ChangeOrder(segment.order_key, -1, None)
                if not isinstance(segment, SchemaSegment):
                    yield Image(at, self.table.name, 0, {})
                elif segment.alterations or segment.fills:
                    yield Image(at, self.table.name, -1, {})
                continue
            yield from self._images(segment, indices[begin : begin + segment.rows], wanted, pointing)
            begin += segment.rows

    def _referencing(self, wanted: Mapping[tuple[str, ...], set[Values]]) -> set[Values]:
        """Returns the keys of all rows with an image that references a `wanted` value. If the batch changes the key of such a row,
        returns all of the row's keys.
        """
        found: set[Values] = set()
        moves: list[set[Values]] = []
        for segment in self.table.changes:
            spelled = {column.name.lower(): column.name for column in segment.columns}
            names = [columns for columns in wanted if all(name in spelled for name in columns)]
            before: Values = ()
            for row in self._known(segment, spelled, names):
                key = tuple(row[name] for name in self.key)
                if _references(row, names, wanted):
                    found.add(key)
                if row.get(MOVED):
                    moves.append({before, key})
                before = key
        return _joined(found, moves)

    def _known(
        self, segment: ChangesSegment, spelled: Mapping[str, str], names: Sequence[tuple[str, ...]]
    ) -> Iterator[dict[str, Any]]:
        """Yields, for each image, the values of the key columns and foreign key columns that the image has."""
        needed = dict.fromkeys([*self.key, *(name for columns in names for name in columns)])
        if not segment.partial:
            table = pq.read_table(segment.file, columns=[spelled[name] for name in needed])
            yield from table.rename_columns(list(needed)).to_pylist()
            return
        numbers = {name: number for number, name in enumerate(spelled)}
        groups = {f"{PRESENT}{numbers[name] // GROUP_COLUMNS}" for name in needed}
        for row in pq.read_table(
            segment.file, columns=[*(spelled[name] for name in needed), *groups, MOVED]
        ).to_pylist():
            known = {name: row[spelled[name]] for name in needed if _has(segment, row, numbers[name])}
            yield {**known, MOVED: row[MOVED]}

    def _images(
        self,
        segment: ChangesSegment,
        row_indices: Sequence[int],
        wanted: Mapping[tuple[str, ...], set[Values]],
        keys: set[Values],
    ) -> Iterator[Image]:
        spelled = {column.name.lower(): column.name for column in segment.columns}
        names = [columns for columns in wanted if all(name in spelled for name in columns)]
        rows = pq.read_table(segment.file)
        if self.key:
            first = spelled[self.key[0]]
            values = pa.array([key[0] for key in keys], rows.schema.field(first).type)
            chosen: Any = pc.indices_nonzero(pc.is_in(rows[first], value_set=values))
        else:
            chosen = pa.array(range(rows.num_rows), pa.int64())
        for index, row in zip(chosen.to_pylist(), rows.take(chosen).to_pylist(), strict=True):
            known = {
                name.lower(): row[name] for number, name in enumerate(spelled.values()) if _has(segment, row, number)
            }
            matters = tuple(known[name] for name in self.key) in keys if self.key else _references(known, names, wanted)
            if matters:
                at = ChangeOrder(row[ORDER_KEY], row_indices[index], row[COMMIT_TIME])
                partial = len(known) < len(segment.columns)
                yield Image(at, self.table.name, row[OPERATION], known, partial, moved=bool(row.get(MOVED)))


def _joined(keys: set[Values], moves: Sequence[set[Values]]) -> set[Values]:
    """Returns the keys, and every other key that a row with one of these keys has before or after its key is changed. Each element of
    `moves` has the old and the new key of one change.
    """
    found, left = set(keys), list(moves)
    while met := [each for each in left if each & found]:
        found = found.union(*met)
        left = [each for each in left if not each & found]
    return found


def _has(segment: ChangesSegment, row: dict[str, Any], index: int) -> bool:
    if not segment.partial:
        return True
    return bool(row[f"{PRESENT}{index // GROUP_COLUMNS}"] >> index % GROUP_COLUMNS & 1)


def _references(
    row: Mapping[str, Any], names: Sequence[tuple[str, ...]], wanted: Mapping[tuple[str, ...], set[Values]]
) -> bool:
    """Returns whether a row references a `wanted` value. If the row lacks some of the foreign key's columns, returns whether it may
    reference one.
    """
    for columns in names:
        known = {index: coarse(row[name]) for index, name in enumerate(columns) if name in row}
        if len(known) == len(columns):
            if tuple(known.values()) in wanted[columns]:
                return True
        elif known and any(all(each[index] == value for index, value in known.items()) for each in wanted[columns]):
            return True
    return False


def lake_rows(
    session: LakeSession | None, table: DeltaTable, cascade: Cascade, values: set[Values]
) -> list[CascadeRow]:
    """Returns the rows of the child table in the lake whose foreign key columns may equal one of `values`. `values` are coarse values
    (`play.coarse`): values that the server may consider equal have the same coarse value. Returns [] if the Delta table does not exist.

    Raises TableError if the lake does not have a column that is needed, if more than ROWS_MAX rows match, or if `session` is None although
    rows must be read.
    """
    if not table.snapshot.exists or not values:
        return []
    types = {}
    for name in (*cascade.columns, *cascade.key):
        if name not in table.snapshot.columns:
            reason = (
                f"the foreign key {cascade.name} to {cascade.parent_name} changed rows of the table without "
                f"row events. The column {name}, by which Sluice finds these rows, is not in the lake; "
                "capture the column in conf/, or set `cascades: ignore` or `stop` for the table"
            )
            raise TableError(table.name, reason)
        types[name] = table.snapshot.columns[name][1]
    if session is None:
        raise TableError(
            table.name,
            "a foreign key changes rows of the table, and the merge has no Spark session to read these rows "
            "from the lake: report this defect of Sluice",
        )
    chosen = _select(session, table, cascade, types, values)
    found: Any = session.spark.sql(f"SELECT * FROM ({chosen}) LIMIT {ROWS_MAX + 1}").toArrow()
    refuse_too_many(table.name, found.num_rows)
    source = [name for name in found.schema.names if not name.startswith("_sluice_")]
    rows = []
    for record in found.to_pylist():
        known = {name.lower(): record[name] for name in source}
        rows.append(
            (record, CascadeRow(known, record[ORDER_KEY] if record[ORDER_KEY] is not None else -1, of_lake=True))
        )
    return [row for _, row in rows] if cascade.key else _remaining(rows)


def refuse_too_many(table: str, rows: int) -> None:
    """Raises TableError if more than ROWS_MAX rows of a table would be loaded for a batch."""
    if rows > ROWS_MAX:
        raise TableError(
            table, f"foreign keys may have changed more than {ROWS_MAX:,} rows of the table in one batch{ADVICE}"
        )


def _select(
    session: LakeSession, table: DeltaTable, cascade: Cascade, types: Mapping[str, str], values: set[Values]
) -> str:
    columns = {name: f"t.{sql_text.identifier(table.snapshot.columns[name][0])}" for name in cascade.columns}
    kinds = ["string" if types[name] == "binary" else types[name] for name in cascade.columns]
    schema = ", ".join(f"w{index} {kind}" for index, kind in enumerate(kinds))
    rows = [tuple(each.hex().upper() if isinstance(each, bytes) else each for each in row) for row in values]
    session.spark.createDataFrame(sorted(rows, key=repr), schema).createOrReplaceTempView(WANTED_VIEW)
    equal, unsure = [], []
    for index, (name, column) in enumerate(columns.items()):
        equal.append(f"{_coarse_sql(column, types[name])} = w{index}")
        if types[name] == "string":
            unsure.append(f"{column} RLIKE '[^ -~]'")
    there = f"SELECT t.* FROM {sql_text.delta_path(table.path)} AS t"
    alive = f"NOT coalesce(t.{DELETED}, false)" if DELETED in table.snapshot.columns else "true"
    text = f"{there} LEFT SEMI JOIN {WANTED_VIEW} AS w ON {' AND '.join(equal)} WHERE {alive}"
    # Only Python (`coarse`) can compare characters other than printable ASCII, so Spark returns all rows that contain them.
    if unsure:
        sure = " AND ".join(f"NOT ({each})" for each in unsure)
        text += f" AND {sure} UNION ALL {there} WHERE {alive} AND ({' OR '.join(unsure)})"
    return text


def _coarse_sql(column: str, type_name: str) -> str:
    """Returns SQL for the coarse form of a column's values (`play.coarse`). Values that the server may consider equal have the same coarse
    form. The SQL may be wrong for strings with other characters than printable ASCII, so `_select` selects all rows with such strings.
    """
    if type_name == "string":
        return f"lower(rtrim({column}))"
    return f"CAST(regexp_replace(hex({column}), '(00)+$', '') AS string)" if type_name == "binary" else column


def _remaining(rows: list[tuple[dict[str, Any], CascadeRow]]) -> list[CascadeRow]:
    """Returns the rows that exist in a table without a key, with their counts. The Delta table of such a table has one row per change. For
    example, a row that was inserted twice and deleted once has the count 1. Each element of `rows` is a pair: the row of the Delta table,
    and its values as a CascadeRow.
    """
    counts: dict[Any, int] = defaultdict(int)
    kept: dict[Any, CascadeRow] = {}
    gone = {LOG_NAMES[UPDATE_BEFORE], LOG_NAMES[DELETE]}
    for record, row in rows:
        key = tuple(sorted(row.values.items()))
        counts[key] += -1 if record[OPERATION] in gone else 1
        kept[key] = row
    return [dataclasses.replace(row, count=counts[key]) for key, row in kept.items() if counts[key] > 0]
