"""Builds a past state of a table as a separate Delta table: a version of the live table, plus the changes of an interval. A Dagster run
calls this module.

The live table itself does not change. deltalake streams the rows of the new table into one commit, so readers never see a part of the
table.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, QueryBuilder, write_deltalake
from deltalake.exceptions import DeltaError

from sluice.batch_manifest.values import ChangesSegment
from sluice.spark_jobs.durable_lake import sync_commits
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.fence import Fence
from sluice.spark_jobs.merging.fold import INSERT as INSERTED
from sluice.spark_jobs.merging.fold import KEYED_NAMES, UPDATE_AFTER
from sluice.spark_jobs.sql_text import double_quoted
from sluice.spark_jobs.staged_batch import COMMIT_TIME, DELETED, OPERATION, ORDER_KEY
from sluice.spark_jobs.tables.exact_bounds import without_mapping, writer_properties

BATCHES_WAITING_MAX = 4
# The name in the Delta metadata of every past state begins with this prefix. `swap` refuses a Delta table without the prefix.
MARK = "sluice-past"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PastState:
    """A past state of a table, before it is built.

    - `base` is the live table, opened with deltalake at the version before the interval.
    - `images` has the last image of each key in the interval, or is None if the interval has no changes.
    - `key` has the table's key columns. It is empty if the interval has no changes.
    - `path` and `description` are those of the new table.
    - `folder` is for temporary files.
    - `record` is stored as JSON in the new table's commit. The record names the table, ledger, version and position of the past state.
    """

    name: str
    base: Any
    images: ChangesSegment | None
    key: tuple[str, ...]
    path: str
    description: str
    folder: Path
    record: Mapping[str, Any]
    storage_options: Mapping[str, str]


def build(given: PastState, fence: Fence) -> int:
    """Builds the past state as a Delta table and returns the table's number of rows. Raises TableError if a Delta table already exists at
    the path, if the changes have columns that `base` does not have, or if the table cannot be written.
    """
    options = dict(given.storage_options) or None
    if deltalake.DeltaTable.is_deltatable(given.path, storage_options=options):
        raise TableError(
            given.name,
            f"a Delta table exists at {given.path} already: remove that table, or name another table with --into",
        )
    builder = QueryBuilder().register("base", given.base)
    try:
        if given.images is not None:
            builder = builder.register("news", _as_table(given.images, given.folder / "past"))
        schema = _schema(given)
        query = _query(given, schema.names)
        fence.check(given.name)
        write_deltalake(
            given.path,
            pa.RecordBatchReader.from_batches(schema, streamed(builder.execute(query), schema)),
            mode="error",
            name=f"{MARK}/{given.name}",
            description=given.description,
            storage_options=options,
            writer_properties=writer_properties(schema),
            commit_properties=CommitProperties(custom_metadata={"userMetadata": json.dumps(given.record)}),
        )
        made = deltalake.DeltaTable(given.path, storage_options=options)
        sync_commits(given.path, -1, made.version())
    except (DeltaError, OSError) as error:
        raise TableError(
            given.name,
            (
                f"the past state of the table could not be written to {given.path}: {error}; correct the cause and start "
                "the backfill again"
            ),
        ) from error
    files: Any = pa.table(made.get_add_actions(flatten=True))
    return sum(files["num_records"].to_pylist())


def _schema(given: PastState) -> pa.Schema:
    """Returns the schema of the new table: that of `base` without the column that marks rows as deleted. The new table does not need this
    column, because marked rows are not copied. Raises TableError if the changes have columns that `base` lacks.
    """
    there: pa.Schema = pa.schema(given.base.schema().to_arrow())
    schema = without_mapping(pa.schema([field for field in there if field.name != DELETED]))
    known = {field.name.lower() for field in schema}
    lacking = [each.name for each in given.images.columns if each.name.lower() not in known] if given.images else []
    if lacking:
        why = (
            f"the past state is built from version {given.base.version()} of the table, and the changes after this version have "
            f"columns that this version lacks ({', '.join(lacking)})"
        )
        raise TableError(given.name, f"{why}: take a later --from")
    return schema


def _query(given: PastState, names: Sequence[str]) -> str:
    deleted = any(field.name == DELETED for field in given.base.schema().fields)
    alive = f"NOT coalesce(b.{DELETED}, false)" if deleted else "true"
    kept = f"SELECT {', '.join(f'b.{double_quoted(name)}' for name in names)} FROM base AS b"
    if given.images is None:
        return f"{kept} WHERE {alive}"
    spelled = {column.name.lower(): column.name for column in given.images.columns}
    of_base = {name.lower(): name for name in names}
    met = " AND ".join(
        f"b.{double_quoted(of_base[name.lower()])} = n.{double_quoted(spelled[name.lower()])}" for name in given.key
    )
    cases = " ".join(f"WHEN {number} THEN '{name}'" for number, name in KEYED_NAMES.items())
    ours = {ORDER_KEY: f"n.{ORDER_KEY}", COMMIT_TIME: f"n.{COMMIT_TIME}", OPERATION: f"CASE n.{OPERATION} {cases} END"}
    values = [
        ours.get(name) or (f"n.{double_quoted(spelled[name.lower()])}" if name.lower() in spelled else "NULL")
        for name in names
    ]
    came = ", ".join(f"{value} AS {double_quoted(name)}" for value, name in zip(values, names, strict=True))
    return (
        f"{kept} LEFT ANTI JOIN news AS n ON {met} WHERE {alive} UNION ALL "
        f"SELECT {came} FROM news AS n WHERE n.{OPERATION} IN ({INSERTED}, {UPDATE_AFTER})"
    )


def _as_table(images: ChangesSegment, folder: Path) -> deltalake.DeltaTable:
    """Writes the images to a Delta table in `folder` and opens it, because deltalake's query engine accepts only Delta tables."""
    wanted = [OPERATION, ORDER_KEY, COMMIT_TIME, *(column.name for column in images.columns)]
    rows = pq.read_table(images.file, columns=wanted)
    write_deltalake(folder, rows, mode="overwrite", writer_properties=writer_properties(rows.schema))
    return deltalake.DeltaTable(folder)


def streamed(result: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yields the Arrow record batches of a deltalake query, cast to `schema`, for a deltalake writer. The query runs in another thread,
    because deltalake cannot run a query inside the call that writes.
    """
    waiting: queue.Queue[Any] = queue.Queue(BATCHES_WAITING_MAX)
    ended = threading.Event()

    def put(item: Any) -> bool:
        while not ended.is_set():
            with contextlib.suppress(queue.Full):
                waiting.put(item, timeout=1)
                return True
        return False

    def read() -> None:
        try:
            for batch in result:
                if not put(pa.record_batch(batch)):
                    return
            put(None)
        # `streamed` raises this error in the thread of the writer.
        except Exception as error:
            put(error)

    threading.Thread(target=read, name="past state", daemon=True).start()
    try:
        while (item := waiting.get()) is not None:
            if isinstance(item, Exception):
                raise item
            columns = [item.column(at).cast(field.type) for at, field in enumerate(schema)]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
    finally:
        ended.set()
