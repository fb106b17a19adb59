"""Appends rows to a Delta table in a folder: writes one Parquet file with pyarrow, and the commit that adds it. `small.merge` calls this
module.

deltalake's own append plans and executes a query, and reads the log again. For a few rows, this takes ten times as long. This module writes
the same commit in the same way as deltalake on a disk: first to a file with a temporary name, to which it then makes a hard link with the
commit's name. The link fails if the commit exists. If a commit fails, the file with the rows stays until VACUUM removes it, as with
deltalake.
"""

from __future__ import annotations

import dataclasses
import json
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sluice.batch_manifest.values import LakeColumn
from sluice.spark_jobs.durable_lake import commit_file, local_folder
from sluice.spark_jobs.tables.delta_table import MAPPING_PROPERTY, STATISTICS_COLUMNS, DeltaTable
from sluice.spark_jobs.tables.exact_bounds import is_long
from sluice.spark_jobs.tables.file_statistics import statistics
from sluice.spark_jobs.tables.new_table import ENGINE_INFO, write_commit
from sluice.spark_jobs.targets.ways import BYTES_MAX, FEATURED_WRITER, FEATURES, PLAIN_WRITER, ROWS_MAX

# The table property with the number of leading columns that have statistics. -1 means all columns.
INDEXED_PROPERTY = "delta.dataSkippingNumIndexedCols"
INDEXED_NAMES_PROPERTY = "delta.dataSkippingStatsColumns"
# A file with fewer rows gets no dictionary in Parquet, because writing a dictionary takes longer than it saves.
DICTIONARY_ROWS = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Appended:
    """What the commit of an append has besides the rows: its Delta transaction (`app_id`, with `order_key` as the version), and its
    metadata.
    """

    app_id: str
    order_key: int
    user_metadata: str


def can_append(table: DeltaTable, rows: pa.Table) -> bool:
    """Returns whether `append` supports the table and the number of rows. If not, the caller appends with deltalake. `append` does not
    support these cases:

    - Only deltalake can read the table's log.
    - The table has column mapping, so its files have other column names.
    - An operator chose the columns with statistics by name.
    - There are so many rows that deltalake divides them into several files.
    - The table has partitions, or has features, constraints or generated columns that `append` ignores, so its commit would be invalid.
      `targets.ways` has already checked this, but another program may have changed the table since then. deltalake does this check
      itself.
    """
    snapshot = table.snapshot
    properties = snapshot.properties
    plain = properties.get(MAPPING_PROPERTY, "none") == "none" and INDEXED_NAMES_PROPERTY not in properties
    known = snapshot.writer_version <= PLAIN_WRITER or snapshot.writer_version == FEATURED_WRITER
    known = known and snapshot.features <= FEATURES and not snapshot.ruled and not snapshot.partitions
    return plain and known and table.is_read_quickly and rows.num_rows <= ROWS_MAX and rows.nbytes <= BYTES_MAX


def append(table: DeltaTable, rows: pa.Table, appended: Appended) -> None:
    """Commits the rows as the next version of the table. Makes the commit even if there are no rows. `rows` have all columns of the table,
    with the table's types. `can_append` must have returned True. Raises OSError, or CommitFailedError if another writer made this version
    first.
    """
    folder = Path(str(local_folder(table.path)))
    adds = [_write(table, folder, rows)] if rows.num_rows else []
    counts = {"numFiles": len(adds), "numOutputRows": rows.num_rows, "numOutputBytes": sum(add["size"] for add in adds)}
    now = int(time.time() * 1000)
    info = {
        "timestamp": now,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append"},
        "engineInfo": ENGINE_INFO,
        "operationMetrics": {name: str(count) for name, count in counts.items()},  # Delta stores the counts as text.
        "userMetadata": appended.user_metadata,
    }
    transaction = {"appId": appended.app_id, "version": appended.order_key, "lastUpdated": now}
    actions = [{"commitInfo": info}, *({"add": add} for add in adds), {"txn": transaction}]
    text = "".join(json.dumps(action, ensure_ascii=False, separators=(",", ":")) + "\n" for action in actions)
    write_commit(commit_file(folder, table.snapshot.version + 1), text)


def _write(table: DeltaTable, folder: Path, rows: pa.Table) -> Mapping[str, Any]:
    """Writes a file with the rows, under a name of the form that Spark uses. Returns the action `add` with which a commit adds the file.
    Does not sync the file, because `durable_lake` syncs it after the commit.
    """
    name = f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"
    footers, few = list[pq.FileMetaData](), rows.num_rows < DICTIONARY_ROWS
    pq.write_table(rows, folder / name, compression="snappy", use_dictionary=not few, metadata_collector=footers)
    found, indexed = (folder / name).stat(), _indexed(table, rows.schema)
    return {
        "path": name,
        "partitionValues": {},
        "size": found.st_size,
        "modificationTime": round(found.st_mtime * 1000),
        "dataChange": True,
        "stats": statistics(footers[0], indexed, len(indexed)),
    }


def _indexed(table: DeltaTable, schema: pa.Schema) -> list[LakeColumn]:
    """Returns the columns that get statistics: the leading columns, up to the number in the table's property. Long decimals are left out,
    as in files that deltalake writes, because deltalake would round their bounds.
    """
    wanted = int(table.snapshot.properties.get(INDEXED_PROPERTY, STATISTICS_COLUMNS))
    columns = [LakeColumn(name=name, type=type_name) for name, type_name in table.snapshot.schema]
    leading = columns if wanted < 0 else columns[:wanted]
    return [column for column in leading if not is_long(schema.field(column.name).type)]
