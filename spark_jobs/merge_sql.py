"""The statements that apply one segment to one Delta table, as text. `merge` runs them, each as one commit."""

from __future__ import annotations

from spark_jobs import fold, sql_text
from spark_jobs.report import TableTarget
from spark_jobs.staged_batch import (
    COMMIT_TIME,
    DELETED,
    OPERATION,
    ORDER_KEY,
    ChangesSegment,
    SchemaSegment,
    TruncateSegment,
)

# the position guard: an image older than the row never changes it, whatever brought the row there
NEWER = f"(t.{ORDER_KEY} IS NULL OR s.{ORDER_KEY} > t.{ORDER_KEY})"
REMOVES = f"s.{OPERATION} IN ({fold.UPDATE_BEFORE}, {fold.DELETE})"
LEAVES = f"s.{OPERATION} IN ({fold.INSERT}, {fold.UPDATE_AFTER})"


def apply_changes(view: str, segment: ChangesSegment, target: TableTarget, applied_order_key: int) -> str:
    """MERGE for a table with a key, INSERT of every image for one without."""
    if not segment.key:
        return append(view, segment, target, applied_order_key)
    source = fold.last_images(view, segment, applied_order_key)
    clauses = _soft_clauses(segment) if target.deletes == "soft" else _hard_clauses(segment)
    return f"MERGE INTO {sql_text.delta_path(target.path)} AS t USING ({source}) AS s ON {condition(segment)} {clauses}"


def append(view: str, segment: ChangesSegment, target: TableTarget, applied_order_key: int) -> str:
    """A table without a key is a log of its changes: every image, with what it is."""
    values = {**_source_values(segment, ""), **fold.metadata_values("", fold.LOG_NAMES)}
    source = fold.images(view, segment, applied_order_key)
    names = sql_text.identifiers(tuple(values))
    return (
        f"INSERT INTO {sql_text.delta_path(target.path)} ({names}) SELECT {', '.join(values.values())} FROM ({source})"
    )


def truncate(segment: TruncateSegment, target: TableTarget, *, marks: bool) -> str:
    """Every row goes, or with `marks` is marked as deleted."""
    relation = sql_text.delta_path(target.path)
    if not marks:
        return f"DELETE FROM {relation}"
    return (
        f"UPDATE {relation} SET {DELETED} = true, {OPERATION} = 'delete', {ORDER_KEY} = {segment.order_key}L, "
        f"{COMMIT_TIME} = {sql_text.timestamp_us(segment.commit_time_us)} WHERE NOT coalesce({DELETED}, false)"
    )


def fill(segment: SchemaSegment, target: TableTarget) -> str:
    """The value of a new column in every row there is; none of them is younger than the column."""
    types = {column.name: column.type for column in segment.columns}
    values = [
        f"{sql_text.identifier(name)} = CAST({sql_text.text(value)} AS {types[name]})" for name, value in segment.fills
    ]
    return f"UPDATE {sql_text.delta_path(target.path)} SET {', '.join(values)} WHERE {ORDER_KEY} < {segment.order_key}L"


def condition(segment: ChangesSegment) -> str:
    """Equal keys, and the keys' bounds as literals, by which Delta leaves out files before it reads any."""
    nullable = {column.name for column in segment.columns if column.nullable}
    equal = [
        f"t.{sql_text.identifier(name)} {'<=>' if name in nullable else '='} s.{sql_text.identifier(name)}"
        for name in segment.key
    ]
    return " AND ".join([*equal, *_bounds(segment, nullable)])


def _bounds(segment: ChangesSegment, nullable: set[str]) -> list[str]:
    types = {column.name: column.type for column in segment.columns}
    bounds = []
    for name, low, high in zip(segment.key, segment.key_min, segment.key_max, strict=False):
        low_text, high_text = (sql_text.typed_literal(value, types[name]) for value in (low, high))
        if low_text is None or high_text is None:
            continue
        column = f"t.{sql_text.identifier(name)}"
        bound = f"{column} >= {low_text} AND {column} <= {high_text}"
        bounds.append(f"({column} IS NULL OR ({bound}))" if name in nullable else bound)
    return bounds


def _hard_clauses(segment: ChangesSegment) -> str:
    values = _keyed_values(segment)
    return (
        f"WHEN MATCHED AND {NEWER} AND {REMOVES} THEN DELETE "
        f"WHEN MATCHED AND {NEWER} THEN UPDATE SET {_assignments(values)} "
        f"WHEN NOT MATCHED AND {LEAVES} THEN {_insert(values)}"
    )


def _soft_clauses(segment: ChangesSegment) -> str:
    """A delete image holds the row's last values, so it is written like any other, also where the row came and went within a batch."""
    values = {**_keyed_values(segment), DELETED: REMOVES}
    return f"WHEN MATCHED AND {NEWER} THEN UPDATE SET {_assignments(values)} WHEN NOT MATCHED THEN {_insert(values)}"


def _keyed_values(segment: ChangesSegment) -> dict[str, str]:
    return {**_source_values(segment, "s."), **fold.metadata_values("s.", fold.KEYED_NAMES)}


def _source_values(segment: ChangesSegment, prefix: str) -> dict[str, str]:
    return {column.name: prefix + sql_text.identifier(column.name) for column in segment.columns}


def _assignments(values: dict[str, str]) -> str:
    return ", ".join(f"t.{sql_text.identifier(name)} = {value}" for name, value in values.items())


def _insert(values: dict[str, str]) -> str:
    return f"INSERT ({sql_text.identifiers(tuple(values))}) VALUES ({', '.join(values.values())})"
