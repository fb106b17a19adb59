"""Counts the rows of a table that deletion vectors delete. Reads only a few files of the table's log, and lists no folder. `delta_table`
calls this module after a merge.

deltalake would have to read each deletion vector. The log has the counts in Spark's checksum file of a version (`.crc`), in checkpoints,
and in the commits after a checkpoint.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice.spark_jobs.durable_lake import LAST_CHECKPOINT, LOG, SUMMARY, local_table

# If none of this many newest commits has a checkpoint or a checksum file, the number of marked rows is unknown. Usually one has a
# checkpoint, because Sluice creates tables with a checkpoint interval of 50 commits.
COMMITS_MAX = 60
VECTOR = b'"deletionVector"'
COUNT_IN_CHECKPOINT = "add.deletionVector.cardinality"


def marked_rows(path: str, version: int) -> int | None:
    """Returns the number of rows that deletion vectors delete at a version of the table. Returns None if the log is not on this machine,
    or does not have the number.
    """
    table = local_table(path)
    return None if table is None else _marked(table / LOG, version)


def _marked(log: Path, version: int) -> int | None:
    try:
        checkpoint, later = _last_checkpoint(log), 0
        for each in range(version, max(version - COMMITS_MAX, -2), -1):
            base = _known_at(log, each, checkpoint)
            if base is not None:
                return base + later
            later += _change(log / f"{each:020d}.json")
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
        return None  # A file was deleted by the clean-up of the log, or has an unknown format.
    return None


def _known_at(log: Path, version: int, checkpoint: int) -> int | None:
    """Returns how many rows of the whole table the deletion vectors delete at `version`. Returns None if the files of this version do not
    have the number. Returns 0 for the version before the first one. `checkpoint` is the version of the last checkpoint.
    """
    if version < 0:
        return 0
    summary = log / f"{version:020d}{SUMMARY}"
    if summary.is_file():
        return _number(json.loads(summary.read_bytes()).get("numDeletedRecordsOpt"))
    return _in_checkpoint(log / f"{version:020d}.checkpoint.parquet") if version == checkpoint else None


def _last_checkpoint(log: Path) -> int:
    """Returns the version of the last checkpoint, or -1 if there is none."""
    try:
        return int(json.loads((log / LAST_CHECKPOINT).read_bytes())["version"])
    except FileNotFoundError:
        return -1


def _in_checkpoint(file: Path) -> int:
    """Adds up the counts of the deletion vectors in a checkpoint. If the checkpoint has no such column, there are no deletion vectors."""
    with pq.ParquetFile(file) as read:
        leaves = (read.schema.column(number).path for number in range(len(read.schema)))
        if COUNT_IN_CHECKPOINT not in leaves:
            return 0
        adds: Any = read.read(columns=[COUNT_IN_CHECKPOINT])["add"]
    return int(pc.sum(pc.struct_field(adds, ["deletionVector", "cardinality"])).as_py() or 0)


def _change(commit: Path) -> int:
    """Returns how many more rows deletion vectors mark after a commit than before the commit. The number may be negative."""
    content, found = commit.read_bytes(), 0
    for line in content.splitlines() if VECTOR in content else ():
        action = json.loads(line)
        for name, sign in (("add", 1), ("remove", -1)):
            vector = (action.get(name) or {}).get("deletionVector")
            found += sign * int(vector["cardinality"]) if vector else 0
    return found


def _number(value: Any) -> int | None:
    return None if value is None else int(value)
