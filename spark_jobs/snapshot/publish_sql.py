"""The statement that makes a table from rows that were read and changes that were held meanwhile, as text. `publish` runs it.

Of a key that has held changes the last one decides; every other key has its row as it was read. A table without a key is a log of its
changes: the rows that were read, as inserts, and the images held after the place at which they were read.
"""

from __future__ import annotations

import dataclasses

from spark_jobs import sql_text
from spark_jobs.merging import fold
from spark_jobs.merging.fold import DELETE, INSERT, RANK, UPDATE_AFTER, UPDATE_BEFORE
from spark_jobs.staged_batch import COMMIT_TIME, DELETED, OPERATION, ORDER_KEY, ROW, STAGED_TYPES, Column

READ = "snapshot"  # the operation of a row that was read, beside insert, update and delete
CHUNKS_VIEW, CHANGES_VIEW = "sluice_chunks", "sluice_held"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """What a table is made of. `label`: the order key of rows that were read; `read_at_us`: their commit time, µs since 1970.

    `held_after`: of a table without a key, the order key up to which the rows that were read have its changes. `changes`: are any held.
    """

    columns: tuple[Column, ...]
    key: tuple[str, ...]
    label: int
    read_at_us: int
    held_after: int = -1
    changes: bool = True
    soft_deletes: bool = False


def chunk_types(columns: tuple[Column, ...]) -> dict[str, str]:
    """Columns of a chunk's file."""
    return {column.name: column.type for column in columns}


def change_types(columns: tuple[Column, ...]) -> dict[str, str]:
    """Columns of a held file."""
    return {**STAGED_TYPES, **chunk_types(columns)}


def selection(rows: Rows) -> str:
    """All rows of the table, with our columns last."""
    if not rows.key:
        return _appended(rows)
    if not rows.changes:
        return f"SELECT {_read_values(rows, 'c.')} FROM {CHUNKS_VIEW} AS c"
    equal = " AND ".join(_equal(rows, name) for name in rows.key)
    kept = "" if rows.soft_deletes else f" WHERE l.{OPERATION} IN ({INSERT}, {UPDATE_AFTER})"
    return (
        f"WITH l AS ({_last_images(rows)}) SELECT {_image_values(rows, 'l.', fold.KEYED_NAMES)} FROM l{kept} UNION ALL "
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
