"""Generates SQL that folds a segment (the images of one table and one schema version) whose images lack columns (binlog_row_image MINIMAL
or NOBLOB). `merge_sql` calls this module.

The last image of a key decides whether the lake has a row with this key after the fold. Each column of the row gets its value from the last
image of this row that contains the column. If no image of the row contains the column, the value comes from the row in the lake. Presence
bits say which columns of a row have a value: staging writes one bit per column with each image.

If an update in the segment changed the row's key, the row may have another key in the lake. For the images of such rows, staging writes two
more columns. `_sluice_origin_*` is the key that the row had before the segment, or the key with which the segment inserted the row.
`_sluice_birth` is 0 if the lake has the row, and otherwise the number of the image that inserted the row. So chains of key changes, swapped
keys and reused keys need no special case.
"""

from __future__ import annotations

from sluice.batch_manifest.values import ChangesSegment
from sluice.spark_jobs import sql_text
from sluice.spark_jobs.merging import fold
from sluice.spark_jobs.staged_batch import (
    BIRTH,
    COMMIT_TIME,
    GROUP_COLUMNS,
    MOVED,
    OPERATION,
    ORDER_KEY,
    ORIGIN,
    PRESENT,
    ROW,
)

LAST, ROW_OF, SINCE, BORN, STORED, THERE = (
    *("_sluice_last", "_sluice_row_of_", "_sluice_since", "_sluice_born"),
    *("_sluice_stored_", "_sluice_there"),
)


def source(view: str, segment: ChangesSegment, applied_order_key: int, target: str, reach: str) -> str:
    """Returns the SELECT of one row per key, with the columns whose values are known. Presence bits say which columns these are.

    `target` is the Delta table as a relation in SQL. `reach` is a condition on a row `t` of this table. It is true for every row whose key
    may be in the segment and that is not marked as deleted.
    """
    if not fold.needs_fold(segment):
        return fold.images(view, segment, applied_order_key)
    if not segment.moves:
        key = sql_text.identifiers(segment.key)
        return _last_states(fold.images(view, segment, applied_order_key), segment, key, "true", {})
    return _from_origins(_moved_states(view, segment, applied_order_key), segment, target, reach)


def present(segment: ChangesSegment, name: str, prefix: str) -> str:
    """Returns an expression over an image's presence bits. The expression is true if the image has a value for this column."""
    index = [column.name for column in segment.columns].index(name)
    return f"getbit({prefix}{PRESENT}{index // GROUP_COLUMNS}, {index % GROUP_COLUMNS}) = 1"


def whole(segment: ChangesSegment, prefix: str) -> str:
    """Returns an expression that is true if an image has values for all columns of the segment."""
    return " AND ".join(f"{prefix}{name} = {bits}L" for name, bits in _groups(segment).items())


def _groups(segment: ChangesSegment) -> dict[str, int]:
    """Returns, for each column of presence bits, the number in which all bits are set: a row with this number has a value in every
    column that the bits stand for.
    """
    count = len(segment.columns)
    return {
        f"{PRESENT}{group}": (1 << min(GROUP_COLUMNS, count - GROUP_COLUMNS * group)) - 1
        for group in range(-(-count // GROUP_COLUMNS))
    }


def _last_states(rows: str, segment: ChangesSegment, life: str, fresh: str, more: dict[str, str]) -> str:
    """Returns the SELECT of the last image of each key, completed with columns from earlier images of the same row.

    `rows` is the SELECT of the images. The columns `life` identify a row: all images of the row have the same values in them. The
    expression `fresh` is true if the lake lacks the image. `more` has further columns to select, whose expressions may use the window
    `of_row`.
    """
    values = {name: name for name in (OPERATION, ORDER_KEY, COMMIT_TIME)}
    values |= {name: f"bit_or(CASE WHEN {fresh} THEN {name} ELSE 0L END) OVER of_row" for name in _groups(segment)}
    for column in segment.columns:
        name = sql_text.identifier(column.name)
        has_it = f"CASE WHEN {fresh} AND {present(segment, column.name, '')} THEN {ROW} END"
        values[name] = name if column.name in segment.key else f"max_by({name}, {has_it}) OVER of_row"
    values |= more
    key = sql_text.identifiers(segment.key)
    is_last = f"(lead({ROW}) OVER (PARTITION BY {key} ORDER BY {ROW})) IS NULL AND {fresh} AS {LAST}"
    expressions = ", ".join(f"{value} AS {name}" for name, value in values.items())
    windows = f"WINDOW of_row AS (PARTITION BY {life} ORDER BY {ROW} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
    return f"SELECT {', '.join(values)} FROM (SELECT {expressions}, {is_last} FROM ({rows}) {windows}) WHERE {LAST}"


def _moved_states(view: str, segment: ChangesSegment, applied_order_key: int) -> str:
    """Returns the SELECT of the last image of each key, completed from earlier images of the same row. Adds the key under which the lake
    has the row (STORED), and two flags. BORN is true if the segment inserted the row. MOVED is true if BORN is, or if the stored key
    differs from the image's key.

    The segment may begin with images that the lake already has, if an earlier delivery of the batch had another end and was merged. The
    images that the lake has are used only to find the key under which the lake has the row.
    """
    indices = range(len(segment.key))
    names = [sql_text.identifier(name) for name in segment.key]
    origins = [f"CASE WHEN {BIRTH} IS NULL THEN {names[k]} ELSE {ORIGIN}{k} END AS {ROW_OF}{k}" for k in indices]
    rows = f"SELECT *, {', '.join(origins)}, coalesce({BIRTH}, 0L) AS {SINCE} FROM {sql_text.identifier(view)}"
    stored = {f"{STORED}{k}": f"{ROW_OF}{k}" for k in indices}
    fresh, born = "true", f"{SINCE} > 0"
    if applied_order_key >= segment.first_order_key:
        fresh = f"{ORDER_KEY} > {applied_order_key}L"
        known = f"CASE WHEN {ORDER_KEY} <= {applied_order_key}L THEN {ROW} END"
        is_known = f"(max({known}) OVER of_row) IS NOT NULL"
        stored = {
            f"{STORED}{k}": f"CASE WHEN {is_known} THEN max_by({names[k]}, {known}) OVER of_row ELSE {ROW_OF}{k} END"
            for k in indices
        }
        born = f"{SINCE} > 0 AND NOT ({is_known})"
    life = ", ".join([*(f"{ROW_OF}{k}" for k in indices), SINCE])
    states = _last_states(rows, segment, life, fresh, {**stored, BORN: born})
    at_home = " AND ".join(f"{names[k]} <=> {STORED}{k}" for k in indices)
    return f"SELECT *, {BORN} OR NOT ({at_home}) AS {MOVED} FROM ({states})"


def _from_origins(states: str, segment: ChangesSegment, target: str, reach: str) -> str:
    """Returns the SELECT that completes `states`, the last image of each key. If the key of a row changed and its images lack columns, the
    values of these columns come from the lake's row with the old key. If the lake has no such row, the columns stay without values, and the
    MERGE fails unless the image is a delete (`merge_sql`).
    """
    met = " AND ".join(f"o.{sql_text.identifier(name)} <=> f.{STORED}{index}" for index, name in enumerate(segment.key))
    values = [f"f.{name}" for name in (OPERATION, ORDER_KEY, COMMIT_TIME, MOVED)]
    values += [
        f"CASE WHEN o.{THERE} THEN {bits}L ELSE f.{name} END AS {name}" for name, bits in _groups(segment).items()
    ]
    for column in segment.columns:
        name = sql_text.identifier(column.name)
        inherits = f"o.{THERE} AND NOT {present(segment, column.name, 'f.')}"
        is_key = column.name in segment.key
        values.append(f"f.{name}" if is_key else f"CASE WHEN {inherits} THEN o.{name} ELSE f.{name} END AS {name}")
    origins = f"SELECT *, true AS {THERE} FROM {target} AS t WHERE {reach}"
    on = f"f.{MOVED} AND NOT f.{BORN} AND {met}"
    return f"SELECT {', '.join(values)} FROM ({states}) AS f LEFT JOIN ({origins}) AS o ON {on}"
