"""The statement that makes a table from rows that were read and changes that were held meanwhile, as text. `publish` runs it.

Of a key that has held changes the last one decides; every other key has its row as it was read. A table without a key is a log of its
changes: the rows that were read, as inserts, and the images held after the place at which they were read.

Where images lack columns, each column is the last one that an image of the same row has, else the one that was read: a row that was there
before the first held image and still is was read, and no change of a column that no image has can have come between.
"""

from __future__ import annotations

import dataclasses

from spark_jobs import sql_text
from spark_jobs.merging import fold
from spark_jobs.merging.fold import DELETE, INSERT, RANK, UPDATE_AFTER, UPDATE_BEFORE
from spark_jobs.staged_batch import (
    COMMIT_TIME,
    DELETED,
    GROUP_COLUMNS,
    OPERATION,
    ORDER_KEY,
    PRESENT,
    ROW,
    STAGED_TYPES,
    Column,
)

READ = "snapshot"  # the operation of a row that was read, beside insert, update and delete
CHUNKS_VIEW, CHANGES_VIEW = "sluice_chunks", "sluice_held"
NUMBER, SINCE, HAS = "_sluice_number", "_sluice_since", "_sluice_has_"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """What a table is made of. `label`: the order key of rows that were read; `read_at_us`: their commit time, µs since 1970.

    `held_after`: of a table without a key, the order key up to which the rows that were read have its changes. `changes`: are any held.
    `partial`: do some of them lack columns.
    """

    columns: tuple[Column, ...]
    key: tuple[str, ...]
    label: int
    read_at_us: int
    held_after: int = -1
    changes: bool = True
    soft_deletes: bool = False
    partial: bool = False


def chunk_types(columns: tuple[Column, ...]) -> dict[str, str]:
    """Columns of a chunk's file."""
    return {column.name: column.type for column in columns}


def change_types(columns: tuple[Column, ...], *, partial: bool = False) -> dict[str, str]:
    """Columns of a held file. `partial`: with which columns an image has; of a file that does not say it, each has all."""
    groups = range(-(-len(columns) // GROUP_COLUMNS)) if partial else ()
    return {**STAGED_TYPES, **chunk_types(columns), **{f"{PRESENT}{group}": "bigint" for group in groups}}


def selection(rows: Rows) -> str:
    """All rows of the table, with our columns last. Of a row that went while images lacked columns nothing is kept, not even a mark."""
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
    images = f"SELECT {_image_values(rows, 'l.', fold.LOG_NAMES)} FROM {CHANGES_VIEW} AS l WHERE l.{ORDER_KEY} > {rows.held_after}L"
    return f"{read} UNION ALL {images}"


def _last_images(rows: Rows) -> str:
    """One image a key. Row numbers count within a batch and order keys across them."""
    names = (OPERATION, ORDER_KEY, COMMIT_TIME, *(column.name for column in rows.columns))
    rank = f"row_number() OVER (PARTITION BY {sql_text.identifiers(rows.key)} ORDER BY {ORDER_KEY} DESC, {ROW} DESC) AS {RANK}"
    return f"SELECT {sql_text.identifiers(names)} FROM (SELECT *, {rank} FROM {CHANGES_VIEW}) WHERE {RANK} = 1"


def incomplete(rows: Rows) -> str:
    """How many rows are there in the end of which a column is nowhere."""
    lives = f"{OPERATION} IN ({INSERT}, {UPDATE_AFTER})"
    known = " AND ".join(f"{HAS}{place}" for place in range(len(rows.columns)))
    return (
        f"SELECT count(*) FROM ({_states(rows)}) AS l LEFT ANTI JOIN {CHUNKS_VIEW} AS c ON l.{SINCE} = 0 AND {_same_key(rows)} "
        f"WHERE {lives} AND NOT ({known})"
    )


def _completed(rows: Rows) -> str:
    """As `_last_images`, with what an image lacks from the row that was read."""
    names = [sql_text.identifier(column.name) for column in rows.columns]
    values = [f"if(l.{HAS}{place}, l.{name}, c.{name}) AS {name}" for place, name in enumerate(names)]
    ours = ", ".join(f"l.{name}" for name in (OPERATION, ORDER_KEY, COMMIT_TIME))
    return (
        f"SELECT {ours}, {', '.join(values)} FROM ({_states(rows)}) AS l LEFT JOIN {CHUNKS_VIEW} AS c "
        f"ON l.{SINCE} = 0 AND {_same_key(rows)}"
    )


def _states(rows: Rows) -> str:
    """One row a key: the last image, the newest value of each column since the row began, and whether an image has it.

    `SINCE`: the number of the image that the row began or ended with, 0 where it was there before all of them.
    """
    keys = {name.lower() for name in rows.key}  # conf/ may spell them otherwise than the table
    key = sql_text.identifiers(tuple(column.name for column in rows.columns if column.name.lower() in keys))
    number = f"row_number() OVER (PARTITION BY {key} ORDER BY {ORDER_KEY}, {ROW}) AS {NUMBER}"
    begins = (
        f"max(CASE WHEN {OPERATION} <> {UPDATE_AFTER} THEN {NUMBER} ELSE 0 END) OVER (PARTITION BY {key}) AS {SINCE}"
    )
    numbered = f"SELECT *, {begins} FROM (SELECT *, {number} FROM {CHANGES_VIEW})"
    found = [f"max_by({name}, {NUMBER}) AS {name}" for name in (OPERATION, ORDER_KEY, COMMIT_TIME)]
    for place, column in enumerate(rows.columns):
        name, has_it = sql_text.identifier(column.name), _present(place)
        is_key = column.name.lower() in keys
        if not is_key:
            found.append(f"max_by({name}, {NUMBER}) FILTER (WHERE {has_it}) AS {name}")
        found.append(f"true AS {HAS}{place}" if is_key else f"bool_or({has_it}) AS {HAS}{place}")
    return (
        f"SELECT {key}, {SINCE}, {', '.join(found)} FROM ({numbered}) WHERE {NUMBER} >= {SINCE} GROUP BY {key}, {SINCE}"
    )


def _present(place: int) -> str:
    group = f"{PRESENT}{place // GROUP_COLUMNS}"
    return f"({group} IS NULL OR getbit({group}, {place % GROUP_COLUMNS}) = 1)"


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
