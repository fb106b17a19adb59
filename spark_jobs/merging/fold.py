"""Generates SQL that folds the row images of a segment by key. `merge` executes the SQL.

The last image of a key in stream order decides whether a row with this key exists. After `insert` and `update_postimage` the row exists;
after `delete` and `update_preimage` it does not. An `update_preimage` is staged only if a key column changed. So the fold turns a changed
key into a delete of the old key and an upsert of the new key. Keys that are swapped within a transaction need no special case.
"""

from __future__ import annotations

from collections.abc import Mapping

from sluice.batch_manifest.values import ChangesSegment
from sluice.spark_jobs import sql_text
from sluice.spark_jobs.object_store import spark_path
from sluice.spark_jobs.staged_batch import COMMIT_TIME, OPERATION, ORDER_KEY, ROW, staged_types
from sluice.spark_jobs.uploaded_files import UploadedFiles

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = 1, 2, 3, 4
KEYED_NAMES = {INSERT: "insert", UPDATE_BEFORE: "delete", UPDATE_AFTER: "update", DELETE: "delete"}
LOG_NAMES = {INSERT: "insert", UPDATE_BEFORE: "update_preimage", UPDATE_AFTER: "update_postimage", DELETE: "delete"}
RANK = "_sluice_rank"


def staged_view(view: str, segment: ChangesSegment, uploaded: UploadedFiles) -> str:
    """Returns the statement that creates a view of a segment's staged file. The view reads the file from the object store, or from the
    folder where Spark can read local files.
    """
    return parquet_view(view, segment.stored or uploaded.location(segment.file), staged_types(segment))


def parquet_view(view: str, location: str, types: Mapping[str, str]) -> str:
    """Returns the statement that creates a view of a Parquet file, or of all Parquet files of a folder. `location` is the path or URL of
    the file or folder. The statement lists the columns (`types`), so that Spark need not read them from the footer of a file.
    """
    columns = ", ".join(f"{sql_text.identifier(name)} {type_name}" for name, type_name in types.items())
    path = sql_text.text(spark_path(location))
    return (
        f"CREATE OR REPLACE TEMPORARY VIEW {sql_text.identifier(view)} ({columns}) USING parquet OPTIONS (path {path})"
    )


def images(view: str, segment: ChangesSegment, applied_order_key: int) -> str:
    """Returns the SELECT of the images that the table lacks: those above the order key of the table's last commit."""
    where = f" WHERE {ORDER_KEY} > {applied_order_key}L" if applied_order_key >= segment.first_order_key else ""
    return f"SELECT * FROM {sql_text.identifier(view)}{where}"


def needs_fold(segment: ChangesSegment) -> bool:
    return not segment.unique_keys or segment.key_changes > 0


def last_images(view: str, segment: ChangesSegment, applied_order_key: int) -> str:
    """Returns the SELECT of the last image of each key, among the images that the table lacks. The row numbers that order the images are
    unique, so Spark gets the same result each time it evaluates the SELECT.
    """
    rows = images(view, segment, applied_order_key)
    if not needs_fold(segment):
        return rows
    columns = (OPERATION, ORDER_KEY, COMMIT_TIME, *(column.name for column in segment.columns))
    key = sql_text.identifiers(segment.key)
    rank = f"row_number() OVER (PARTITION BY {key} ORDER BY {ROW} DESC) AS {RANK}"
    return f"SELECT {sql_text.identifiers(columns)} FROM (SELECT *, {rank} FROM ({rows})) WHERE {RANK} = 1"


def operation_name(names: dict[int, str], prefix: str = "") -> str:
    """Returns an expression that converts an operation's staged number to its name."""
    cases = " ".join(f"WHEN {number} THEN {sql_text.text(name)}" for number, name in names.items())
    return f"CASE {prefix}{OPERATION} {cases} END"


def metadata_values(prefix: str, names: dict[int, str]) -> dict[str, str]:
    """Returns the values of Sluice's columns in the Delta table, as expressions over a staged image."""
    return {
        ORDER_KEY: f"{prefix}{ORDER_KEY}",
        COMMIT_TIME: f"{prefix}{COMMIT_TIME}",
        OPERATION: operation_name(names, prefix),
    }
