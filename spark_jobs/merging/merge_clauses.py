"""Generates the WHEN clauses of a MERGE: what a folded image (`s`) does to a row of the table (`t`). `merge_sql` calls this module."""

from __future__ import annotations

import re

from sluice.batch_manifest.values import ChangesSegment
from sluice.spark_jobs import sql_text
from sluice.spark_jobs.merging import fold, fold_partial
from sluice.spark_jobs.staged_batch import COMMIT_TIME, DELETED, MOVED, OPERATION, ORDER_KEY

# Every clause has this condition. An image must not change a row of the table that is newer, whichever commit wrote the row.
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


def unknown_row(text: str) -> str:
    """Returns the message UNKNOWN_ROW with its order key if the text of an error contains it, otherwise ""."""
    found = re.search(re.escape(UNKNOWN_ROW) + r"\d+", text)
    return found[0] if found else ""


def whole(values: dict[str, str], *, soft: bool, guard: str = NEWER) -> str:
    """Returns the clauses for images with all columns. `values` has an expression over the image for each column of the table. `guard` is
    the condition under which an image may change the row.
    """
    if soft:
        # A delete image has the row's last values, so it is written like any other image, also if the row was inserted in the same batch.
        marked = {**values, DELETED: REMOVES}
        return f"WHEN MATCHED AND {guard} THEN {_update(marked)} WHEN NOT MATCHED THEN {_insert(marked)}"
    return (
        f"WHEN MATCHED AND {guard} AND {REMOVES} THEN DELETE "
        f"WHEN MATCHED AND {guard} THEN {_update(values)} "
        f"WHEN NOT MATCHED AND {LEAVES} THEN {_insert(values)}"
    )


def again(values: dict[str, str], *, soft: bool) -> str:
    """Returns the clauses for images that have the current rows of their keys (`ChangesSegment.again`). A delete image has no values, so
    with soft deletes the row keeps its values and is only marked.
    """
    if not soft:
        return whole(values, soft=False, guard=NOT_OLDER)
    marks = {name: values[name] for name in (ORDER_KEY, COMMIT_TIME, OPERATION)} | {DELETED: "true"}
    there = {**values, DELETED: "false"}
    return (
        f"WHEN MATCHED AND {NOT_OLDER} AND {REMOVES} AND NOT coalesce(t.{DELETED}, false) THEN {_update(marks)} "
        f"WHEN MATCHED AND {NOT_OLDER} AND {LEAVES} THEN {_update(there)} "
        f"WHEN NOT MATCHED AND {LEAVES} THEN {_insert(there)}"
    )


def partial(segment: ChangesSegment, values: dict[str, str], *, soft: bool) -> str:
    """Returns the clauses for images that may lack columns. In these columns the table's row keeps its values. If an update's row is
    missing in the table, the MERGE fails with UNKNOWN_ROW.

    If the row of an incomplete delete image is missing in the table, nothing is written, even with soft deletes, because the row's values
    are unknown.
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
