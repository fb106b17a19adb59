"""Generates the SQL statements that apply one segment to one Delta table. `merge` executes them, each as one commit.

In a MERGE, `t` is a row of the table, and `s` is a folded image, the last one of its key.
"""

from __future__ import annotations

import re

from sluice.batch_manifest.values import ChangesSegment, SchemaSegment, TruncateSegment
from sluice.spark_jobs import sql_text
from sluice.spark_jobs.merging import fold, fold_partial
from sluice.spark_jobs.staged_batch import COMMIT_TIME, DELETED, MOVED, OPERATION, ORDER_KEY
from sluice.spark_jobs.targets import shards
from sluice.spark_jobs.targets.report import TableTarget

# Each WHEN MATCHED clause of a MERGE has one of the next two conditions, so that an image never replaces a newer row. NOT_OLDER also lets
# an image replace a row with the same order key. Only the clauses for the rows of a repair (`again_clauses`) use NOT_OLDER.
NEWER = f"(t.{ORDER_KEY} IS NULL OR s.{ORDER_KEY} > t.{ORDER_KEY})"
NOT_OLDER = f"(t.{ORDER_KEY} IS NULL OR s.{ORDER_KEY} >= t.{ORDER_KEY})"
REMOVES = f"s.{OPERATION} IN ({fold.UPDATE_BEFORE}, {fold.DELETE})"
LEAVES = f"s.{OPERATION} IN ({fold.INSERT}, {fold.UPDATE_AFTER})"
UNKNOWN_ROW = (
    "an update whose image lacks columns (binlog_row_image is not FULL) belongs to a row that the Delta "
    "table does not have, so the missing values are unknown; re-snapshot the table with `sluice snapshot "
    "start`, or move the Delta table away and set binlog_row_image=FULL to continue with new changes. Order "
    "key of the image: "
)


def apply_changes(
    view: str, segment: ChangesSegment, target: TableTarget, applied_order_key: int, left: tuple[str, ...] = ()
) -> str:
    """Returns the statement that applies a segment: a MERGE for a table with a key, and an INSERT of every image for a table without a key.
    The lake still has the columns `left`, which the source dropped: written rows get NULL in these columns.
    """
    if not segment.key:
        return append(view, segment, target, applied_order_key)
    relation = sql_text.delta_path(target.path)
    values = {**_source_values(segment, "s."), **fold.metadata_values("s.", fold.KEYED_NAMES)}
    values |= dict.fromkeys(left, "NULL")
    if segment.partial:
        source = fold_partial.source(view, segment, applied_order_key, relation, _reach(segment, target))
        clauses = partial_clauses(segment, values, soft=target.deletes == "soft")
    else:
        source = fold.last_images(view, segment, applied_order_key)
        clauses_of = again_clauses if segment.again else whole_clauses
        clauses = clauses_of(values, soft=target.deletes == "soft")
    return f"MERGE INTO {relation} AS t USING ({source}) AS s ON {condition(segment)} {clauses}"


def append_new(
    view: str, segment: ChangesSegment, target: TableTarget, applied_order_key: int, left: tuple[str, ...] = ()
) -> str:
    """Returns an INSERT that does not read the table, and has the same result as the MERGE if the table has none of the segment's keys."""
    values = {**_source_values(segment, "s."), **fold.metadata_values("s.", fold.KEYED_NAMES)}
    values |= dict.fromkeys(left, "NULL")
    soft = target.deletes == "soft"
    values |= {DELETED: REMOVES} if soft else {}
    kept = "" if soft else f" WHERE {LEAVES}"
    source = fold.last_images(view, segment, applied_order_key)
    names = sql_text.identifiers(tuple(values))
    into = f"INSERT INTO {sql_text.delta_path(target.path)} ({names})"
    return f"{into} SELECT {', '.join(values.values())} FROM ({source}) AS s{kept}"


def append(view: str, segment: ChangesSegment, target: TableTarget, applied_order_key: int) -> str:
    """Returns the INSERT of every image with its operation, for a table without a key. Such a table has a row per change, like a change
    log.
    """
    values = {**_source_values(segment, ""), **fold.metadata_values("", fold.LOG_NAMES)}
    source = fold.images(view, segment, applied_order_key)
    names = sql_text.identifiers(tuple(values))
    return (
        f"INSERT INTO {sql_text.delta_path(target.path)} ({names}) SELECT {', '.join(values.values())} FROM ({source})"
    )


def truncate(segment: TruncateSegment, target: TableTarget, *, marks: bool) -> str:
    """Returns the statement that deletes every row of the table or the shard, or marks the rows as deleted if `marks` is true."""
    relation = sql_text.delta_path(target.path)
    if not marks:
        return f"DELETE FROM {relation}{shards.where(target.shard)}"
    return (
        f"UPDATE {relation} SET {DELETED} = true, {OPERATION} = 'delete', {ORDER_KEY} = {segment.order_key}L, "
        f"{COMMIT_TIME} = {sql_text.timestamp_us(segment.commit_time_us)} WHERE NOT coalesce({DELETED}, false)"
        f"{shards.where(target.shard, after='AND')}"
    )


def fill_values(segment: SchemaSegment) -> dict[str, str]:
    """Returns, for each new column, the expression of its value in existing rows. In the manifest, binary values are hexadecimal."""
    types = {column.name: column.type for column in segment.columns}
    return {
        name: f"unhex({sql_text.text(value)})"
        if types[name] == "binary"
        else f"CAST({sql_text.text(value)} AS {types[name]})"
        for name, value in segment.fills
    }


def assign(values: dict[str, str], order_key: int, target: TableTarget) -> str:
    """Returns the statement that sets columns in all rows that were written before the schema change."""
    pairs = [f"{sql_text.identifier(name)} = {value}" for name, value in values.items()]
    before = f"{ORDER_KEY} < {order_key}L{shards.where(target.shard, after='AND')}"
    return f"UPDATE {sql_text.delta_path(target.path)} SET {', '.join(pairs)} WHERE {before}"


def nothing(target: TableTarget) -> str:
    """Returns a statement whose commit has no rows and only stores a transaction in the log."""
    return f"INSERT INTO {sql_text.delta_path(target.path)} ({ORDER_KEY}) SELECT CAST(NULL AS bigint) WHERE false"


def _reach(segment: ChangesSegment, target: TableTarget) -> str:
    """Returns a condition that is true for each row `t` of the table whose key may be in the segment and that is not marked as deleted."""
    nullable = {column.name for column in segment.columns if column.nullable}
    alive = [f"NOT coalesce(t.{DELETED}, false)"] if target.deletes == "soft" else []
    return " AND ".join([*alive, *_bounds(segment, nullable)]) or "true"


def condition(segment: ChangesSegment) -> str:
    """Returns the join condition of a MERGE: the keys are equal, and they are within the segment's bounds. The bounds are literals, so
    Delta can skip files by their statistics.
    """
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


def _source_values(segment: ChangesSegment, prefix: str) -> dict[str, str]:
    return {column.name: prefix + sql_text.identifier(column.name) for column in segment.columns}


def unknown_row(text: str) -> str:
    """Returns the message UNKNOWN_ROW with the order key after it, if the text of an error contains this message. Otherwise returns ""."""
    found = re.search(re.escape(UNKNOWN_ROW) + r"\d+", text)
    return found[0] if found else ""


def whole_clauses(values: dict[str, str], *, soft: bool, guard: str = NEWER) -> str:
    """Returns the WHEN clauses of a MERGE for images with all columns. `values` has an expression over the image for each column of the
    table. With `soft`, a delete marks the row as deleted. `guard` is the condition under which an image may change the row.
    """
    if soft:
        # A delete image has the row's last values. So the row is written with these values and marked as deleted, even if the batch also
        # inserted it.
        marked = {**values, DELETED: REMOVES}
        return f"WHEN MATCHED AND {guard} THEN {_update(marked)} WHEN NOT MATCHED THEN {_insert(marked)}"
    return (
        f"WHEN MATCHED AND {guard} AND {REMOVES} THEN DELETE "
        f"WHEN MATCHED AND {guard} THEN {_update(values)} "
        f"WHEN NOT MATCHED AND {LEAVES} THEN {_insert(values)}"
    )


def again_clauses(values: dict[str, str], *, soft: bool) -> str:
    """Returns the WHEN clauses of a MERGE for the rows that a repair writes (`ChangesSegment.again`). A delete image of a repair has no
    values: with soft deletes, the table's row keeps its values and is only marked.
    """
    if not soft:
        return whole_clauses(values, soft=False, guard=NOT_OLDER)
    marks = {name: values[name] for name in (ORDER_KEY, COMMIT_TIME, OPERATION)} | {DELETED: "true"}
    there = {**values, DELETED: "false"}
    return (
        f"WHEN MATCHED AND {NOT_OLDER} AND {REMOVES} AND NOT coalesce(t.{DELETED}, false) THEN {_update(marks)} "
        f"WHEN MATCHED AND {NOT_OLDER} AND {LEAVES} THEN {_update(there)} "
        f"WHEN NOT MATCHED AND {LEAVES} THEN {_insert(there)}"
    )


def partial_clauses(segment: ChangesSegment, values: dict[str, str], *, soft: bool) -> str:
    """Returns the WHEN clauses of a MERGE for images that may lack columns. In these columns the table's row keeps its values. If the
    table lacks the row of an incomplete insert or update image, the MERGE fails with UNKNOWN_ROW.

    If the table lacks the row of an incomplete delete image, nothing is written, even with soft deletes, because the row's values are
    unknown.
    """
    kept = {column.name: column.name for column in segment.columns if column.name not in segment.key}
    values = {**values, **({DELETED: REMOVES} if soft else {})}
    updated = {name: _kept(segment, name, value) if name in kept else value for name, value in values.items()}
    is_whole = f"({fold_partial.whole(segment, 's.')})"
    unknown = f"raise_error(concat({sql_text.text(UNKNOWN_ROW)}, s.{ORDER_KEY}))"
    fails = {ORDER_KEY: f"CAST({unknown} AS bigint)"}
    lost = f"WHEN MATCHED AND {NEWER} AND s.{MOVED} AND NOT {is_whole} THEN {_update(fails)} " if segment.moves else ""
    return (
        ("" if soft else f"WHEN MATCHED AND {NEWER} AND {REMOVES} THEN DELETE ")
        + f"{lost}WHEN MATCHED AND {NEWER} THEN {_update(updated)} "
        + f"WHEN NOT MATCHED AND {LEAVES} AND NOT {is_whole} THEN {_insert(fails)} "
        + f"WHEN NOT MATCHED AND {is_whole if soft else LEAVES} THEN {_insert(values)}"
    )


def _kept(segment: ChangesSegment, name: str, value: str) -> str:
    return f"CASE WHEN {fold_partial.present(segment, name, 's.')} THEN {value} ELSE t.{sql_text.identifier(name)} END"


def _update(values: dict[str, str]) -> str:
    return "UPDATE SET " + ", ".join(f"t.{sql_text.identifier(name)} = {value}" for name, value in values.items())


def _insert(values: dict[str, str]) -> str:
    return f"INSERT ({sql_text.identifiers(tuple(values))}) VALUES ({', '.join(values.values())})"
