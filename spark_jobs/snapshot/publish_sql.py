"""Generates the SQL statement that creates a table from the rows that a snapshot read and the buffered changes. `publish` executes it.

The last buffered change of a key determines its row. A key without buffered changes gets the row that was read. A table without a key gets
the rows that were read, as inserts, and one row for each image after the position at which the rows were read.

If images lack columns, each column gets the last value among the images of the same row, or else the value that the snapshot
read. The value that the snapshot read is still correct: no image has the column, so the column has not changed. The snapshot has read the
row, because the row existed before its first buffered image and still exists.
"""

from __future__ import annotations

import dataclasses

from sluice.batch_manifest.values import LakeColumn
from sluice.spark_jobs import sql_text
from sluice.spark_jobs.merging import fold
from sluice.spark_jobs.merging.fold import DELETE, INSERT, RANK, UPDATE_AFTER, UPDATE_BEFORE
from sluice.spark_jobs.staged_batch import (
    COMMIT_TIME,
    DELETED,
    GROUP_COLUMNS,
    OPERATION,
    ORDER_KEY,
    PRESENT,
    ROW,
    STAGED_TYPES,
)

# The value of the column OPERATION for a row that the snapshot read, in a table with a key. For a row of a buffered change, the value is
# insert, update or delete.
READ = "snapshot"
CHUNKS_VIEW, CHANGES_VIEW = "sluice_chunks", "sluice_buffered"
NUMBER, SINCE, HAS = "_sluice_number", "_sluice_since", "_sluice_has_"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """The input from which a table is created.

    - `label` is the order key of the rows that the snapshot read, except rows that a buffered change replaces. `read_at_us` is the commit
      time of these rows in µs since 1970.
    - `buffered_after` is for a table without a key: the order key up to which the rows of the snapshot contain the table's changes.
    - `changes` says whether there are buffered changes. `partial` says whether a buffered change may lack columns.
    """

    columns: tuple[LakeColumn, ...]
    key: tuple[str, ...]
    label: int
    read_at_us: int
    buffered_after: int = -1
    changes: bool = True
    soft_deletes: bool = False
    partial: bool = False


def chunk_types(columns: tuple[LakeColumn, ...]) -> dict[str, str]:
    """Returns the type of each column in the files of chunks."""
    return {column.name: column.type for column in columns}


def change_types(columns: tuple[LakeColumn, ...], *, partial: bool = False) -> dict[str, str]:
    """Returns the type of each column in files with buffered changes. With `partial`, adds the columns with presence bits, which show which
    columns an image has. In a file without presence bits, every image has all columns.
    """
    groups = range(-(-len(columns) // GROUP_COLUMNS)) if partial else ()
    return {**STAGED_TYPES, **chunk_types(columns), **{f"{PRESENT}{group}": "bigint" for group in groups}}


def selection(rows: Rows) -> str:
    """Returns the SELECT of all rows of the table, with Sluice's columns last. If images lack columns, deleted rows are left out even with
    soft deletes, because their values may be unknown.
    """
    if not rows.key:
        return _appended(rows)
    if not rows.changes:
        return f"SELECT {_read_values(rows, 'c.')} FROM {CHUNKS_VIEW} AS c"
    equal = _same_key(rows)
    kept = "" if rows.soft_deletes and not rows.partial else f" WHERE l.{OPERATION} IN ({INSERT}, {UPDATE_AFTER})"
    last = _completed(rows) if rows.partial else _last_images(rows)
    return (
        f"WITH l AS ({last}) SELECT {_image_values(rows, 'l.', fold.KEYED_NAMES)} FROM l{kept} UNION ALL "
        f"SELECT {_read_values(rows, 'c.')} FROM {CHUNKS_VIEW} AS c LEFT ANTI JOIN l ON {equal}"
    )


def _appended(rows: Rows) -> str:
    read = f"SELECT {_read_values(rows, 'c.')} FROM {CHUNKS_VIEW} AS c"
    if not rows.changes:
        return read
    images = f"SELECT {_image_values(rows, 'l.', fold.LOG_NAMES)} FROM {CHANGES_VIEW} AS l WHERE l.{ORDER_KEY} > {rows.buffered_after}L"
    return f"{read} UNION ALL {images}"


def _last_images(rows: Rows) -> str:
    """Returns the SELECT of the last image of each key. Images are ordered by order key. Images with the same order key are ordered by row
    number.
    """
    names = (OPERATION, ORDER_KEY, COMMIT_TIME, *(column.name for column in rows.columns))
    rank = f"row_number() OVER (PARTITION BY {sql_text.identifiers(rows.key)} ORDER BY {ORDER_KEY} DESC, {ROW} DESC) AS {RANK}"
    return f"SELECT {sql_text.identifiers(names)} FROM (SELECT *, {rank} FROM {CHANGES_VIEW}) WHERE {RANK} = 1"


def incomplete(rows: Rows) -> str:
    """Returns the query that counts the rows that are not deleted and have an unknown value. A value is unknown if neither an image nor the
    row that the snapshot read has the column.
    """
    lives = f"{OPERATION} IN ({INSERT}, {UPDATE_AFTER})"
    known = " AND ".join(f"{HAS}{index}" for index in range(len(rows.columns)))
    return (
        f"SELECT count(*) FROM ({_states(rows)}) AS l LEFT ANTI JOIN {CHUNKS_VIEW} AS c ON l.{SINCE} = 0 AND {_same_key(rows)} "
        f"WHERE {lives} AND NOT ({known})"
    )


def _completed(rows: Rows) -> str:
    """Returns the SELECT of the last image of each key. Columns that the images lack get their value from the row that the snapshot
    read, unless an image inserted or deleted the row (`SINCE` is not 0).
    """
    names = [sql_text.identifier(column.name) for column in rows.columns]
    values = [f"if(l.{HAS}{index}, l.{name}, c.{name}) AS {name}" for index, name in enumerate(names)]
    ours = ", ".join(f"l.{name}" for name in (OPERATION, ORDER_KEY, COMMIT_TIME))
    return (
        f"SELECT {ours}, {', '.join(values)} FROM ({_states(rows)}) AS l LEFT JOIN {CHUNKS_VIEW} AS c "
        f"ON l.{SINCE} = 0 AND {_same_key(rows)}"
    )


def _states(rows: Rows) -> str:
    """Returns the SELECT that combines the images of each key, which may lack columns, to one image. `SINCE` is the number of the image
    that last inserted or deleted the row, or 0 if no image did. Images before this image are ignored. For each column, the SELECT has the
    newest value among the remaining images, and whether any of them has the column (`HAS`).
    """
    # Case is ignored, because conf/ may spell the key columns differently from the table.
    keys = {name.lower() for name in rows.key}
    key = sql_text.identifiers(tuple(column.name for column in rows.columns if column.name.lower() in keys))
    number = f"row_number() OVER (PARTITION BY {key} ORDER BY {ORDER_KEY}, {ROW}) AS {NUMBER}"
    begins = (
        f"max(CASE WHEN {OPERATION} <> {UPDATE_AFTER} THEN {NUMBER} ELSE 0 END) OVER (PARTITION BY {key}) AS {SINCE}"
    )
    numbered = f"SELECT *, {begins} FROM (SELECT *, {number} FROM {CHANGES_VIEW})"
    found = [f"max_by({name}, {NUMBER}) AS {name}" for name in (OPERATION, ORDER_KEY, COMMIT_TIME)]
    for index, column in enumerate(rows.columns):
        name, has_it = sql_text.identifier(column.name), _present(index)
        is_key = column.name.lower() in keys
        if not is_key:
            found.append(f"max_by({name}, {NUMBER}) FILTER (WHERE {has_it}) AS {name}")
        found.append(f"true AS {HAS}{index}" if is_key else f"bool_or({has_it}) AS {HAS}{index}")
    return (
        f"SELECT {key}, {SINCE}, {', '.join(found)} FROM ({numbered}) WHERE {NUMBER} >= {SINCE} GROUP BY {key}, {SINCE}"
    )


def _present(index: int) -> str:
    group = f"{PRESENT}{index // GROUP_COLUMNS}"
    return f"({group} IS NULL OR getbit({group}, {index % GROUP_COLUMNS}) = 1)"


def _same_key(rows: Rows) -> str:
    return " AND ".join(_equal(rows, name) for name in rows.key)


def _equal(rows: Rows, name: str) -> str:
    nullable = any(column.nullable for column in rows.columns if column.name.lower() == name.lower())
    quoted = sql_text.identifier(name)
    return f"c.{quoted} {'<=>' if nullable else '='} l.{quoted}"


def _read_values(rows: Rows, prefix: str) -> str:
    ours = {
        ORDER_KEY: f"{rows.label}L",
        COMMIT_TIME: sql_text.timestamp_us(rows.read_at_us),
        OPERATION: sql_text.text(READ if rows.key else fold.LOG_NAMES[INSERT]),
        **({DELETED: "false"} if rows.soft_deletes else {}),
    }
    return _values(rows, prefix, ours)


def _image_values(rows: Rows, prefix: str, names: dict[int, str]) -> str:
    ours = {
        **fold.metadata_values(prefix, names),
        **({DELETED: f"{prefix}{OPERATION} IN ({UPDATE_BEFORE}, {DELETE})"} if rows.soft_deletes else {}),
    }
    return _values(rows, prefix, ours)


def _values(rows: Rows, prefix: str, ours: dict[str, str]) -> str:
    theirs = [prefix + sql_text.identifier(column.name) for column in rows.columns]
    return ", ".join([*theirs, *(f"{value} AS {sql_text.identifier(name)}" for name, value in ours.items())])
