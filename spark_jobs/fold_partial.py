"""As `fold`, for a segment whose images lack columns (binlog_row_image MINIMAL or NOBLOB). Text only; `merge_sql` calls it.

The rule: a key's images since its last whole one say what becomes of it, each column the last one that has it. What none of them has is in
the lake: under the key itself, or where an update changed the key, under the key it had before (`moved`). Staging cuts segments so that the
row under that key is the one of before the segment. A row that has all columns then is *whole*.
"""

from __future__ import annotations

from spark_jobs import fold, sql_text
from spark_jobs.staged_batch import (
    COMMIT_TIME,
    GROUP_COLUMNS,
    MOVED,
    OPERATION,
    ORDER_KEY,
    ORIGIN,
    PRESENT,
    ChangesSegment,
)

LIFE, THERE = "_sluice_life", "_sluice_there"


def source(view: str, segment: ChangesSegment, applied_order_key: int, target: str, reach: str) -> str:
    """One row a key, with the presence bits of what is known of it. `target`: the table as a relation, of live rows.

    `reach`: a condition on rows `t` of it that all rows with a key of the segment meet.
    """
    rows = fold.images(view, segment, applied_order_key)
    folded = _last_values(rows, segment) if fold.needs_fold(segment) else rows
    return _with_origins(folded, segment, target, reach) if segment.moves else folded


def present(segment: ChangesSegment, name: str, prefix: str) -> str:
    """Whether a row has this column of the table."""
    place = [column.name for column in segment.columns].index(name)
    return f"getbit({prefix}{PRESENT}{place // GROUP_COLUMNS}, {place % GROUP_COLUMNS}) = 1"


def whole(segment: ChangesSegment, prefix: str) -> str:
    """Whether a row has all columns of the table."""
    return " AND ".join(f"{prefix}{name} = {bits}L" for name, bits in _groups(segment).items())


def _groups(segment: ChangesSegment) -> dict[str, int]:
    """Column of presence bits → all bits it may have."""
    count = len(segment.columns)
    return {
        f"{PRESENT}{group}": (1 << min(GROUP_COLUMNS, count - GROUP_COLUMNS * group)) - 1
        for group in range(-(-count // GROUP_COLUMNS))
    }


def _last_values(rows: str, segment: ChangesSegment) -> str:
    """Of each key the last value of every column since the image that began the row, if one did, and what it is of all."""
    key = sql_text.identifiers(segment.key)
    began = f"max(CASE WHEN {MOVED} OR {whole(segment, '')} THEN {ORDER_KEY} END) OVER (PARTITION BY {key})"
    values = [f"max_by({name}, {ORDER_KEY}) AS {name}" for name in (OPERATION, COMMIT_TIME)] + [
        f"max({ORDER_KEY}) AS {ORDER_KEY}",
        f"bool_or({MOVED}) AS {MOVED}",
    ]
    values += [f"bit_or({name}) AS {name}" for name in _groups(segment)]
    for column in segment.columns:
        if column.name not in segment.key:
            name = sql_text.identifier(column.name)
            values.append(
                f"max_by({name}, CASE WHEN {present(segment, column.name, '')} THEN {ORDER_KEY} END) AS {name}"
            )
    for index in range(len(segment.key)):
        values.append(f"max_by({ORIGIN}{index}, CASE WHEN {MOVED} THEN {ORDER_KEY} END) AS {ORIGIN}{index}")
    since = f"SELECT * FROM (SELECT *, {began} AS {LIFE} FROM ({rows})) WHERE {LIFE} IS NULL OR {ORDER_KEY} >= {LIFE}"
    return f"SELECT {key}, {', '.join(values)} FROM ({since}) GROUP BY {key}"


def _with_origins(folded: str, segment: ChangesSegment, target: str, reach: str) -> str:
    """Rows that moved get what they lack from the row under the key they had; where that is not there, they stay as they are."""
    met = " AND ".join(f"o.{sql_text.identifier(name)} <=> f.{ORIGIN}{index}" for index, name in enumerate(segment.key))
    values = [f"f.{name}" for name in (OPERATION, ORDER_KEY, COMMIT_TIME, MOVED)]
    values += [
        f"CASE WHEN o.{THERE} THEN {bits}L ELSE f.{name} END AS {name}" for name, bits in _groups(segment).items()
    ]
    for column in segment.columns:
        name = sql_text.identifier(column.name)
        inherits = f"o.{THERE} AND NOT {present(segment, column.name, 'f.')}"
        values.append(f"CASE WHEN {inherits} THEN o.{name} ELSE f.{name} END AS {name}")
    origins = f"SELECT *, true AS {THERE} FROM {target} AS t WHERE {reach}"
    return f"SELECT {', '.join(values)} FROM ({folded}) AS f LEFT JOIN ({origins}) AS o ON f.{MOVED} AND {met}"
