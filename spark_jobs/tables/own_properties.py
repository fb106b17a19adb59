"""Sets properties of Sluice in a Delta table, and changes nothing else. `sluice lake accept` and `sluice position set` call this module.

deltalake's `set_table_properties` adds the feature `variantType` to every table with named features, and refuses tables with clustering,
widened columns or in-commit timestamps. So this module writes the commit itself: it has the table's present metadata with other properties.
The format is described in https://github.com/delta-io/delta/blob/master/PROTOCOL.md.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from deltalake.exceptions import CommitFailedError

from sluice.object_stores.errors import StoreError
from sluice.object_stores.folder import StoreFolder
from sluice.spark_jobs.durable_lake import LOG, commit_file, local_folder
from sluice.spark_jobs.tables.new_table import ENGINE_INFO, write_commit
from sluice.spark_jobs.targets.ways import FEATURED_WRITER

# If a table has one of these features, deltalake writes the commit, because the commit must have more than this module writes.
DEMANDING = frozenset({"catalogManaged", "coordinatedCommits-preview", "catalogOwned-preview"})
# With this property, each commit has a time in its first action, and each time is later than that of the commit before.
IN_COMMIT_TIMES, IN_COMMIT_TIME = "delta.enableInCommitTimestamps", "inCommitTimestamp"


def set_own_properties(
    log: Any,
    path: str,
    properties: Mapping[str, str],
    storage_options: Mapping[str, str],
    *,
    check: Callable[[], None],
) -> None:
    """Sets properties whose names begin with "sluice.", in one commit. `log` is the newest version of the table at `path`, opened with
    deltalake. `check` checks the fence immediately before the commit. Raises CommitFailedError if another program committed first, and
    DeltaError or OSError if the commit cannot be written.
    """
    protocol = log.protocol()
    if protocol.min_writer_version != FEATURED_WRITER or DEMANDING & {*(protocol.writer_features or ())}:
        check()
        log.alter.set_table_properties(dict(properties), raise_if_not_exists=False)
        return
    version, text = log.version() + 1, _commit_text(log, properties)
    check()
    folder = local_folder(path)
    if folder is not None:
        write_commit(commit_file(folder, version), text)
        return
    name, store = f"{LOG}/{version:020d}.json", StoreFolder(path, storage_options)
    try:
        # The store's client may have repeated the request after a lost answer. The commit then exists with this text.
        if not store.put_new(name, text.encode()) and store.read(name) != text.encode():
            raise CommitFailedError(f"version {version} was committed by another writer")
    except StoreError as error:
        raise OSError(str(error)) from error


def _commit_text(log: Any, properties: Mapping[str, str]) -> str:
    now, there = int(time.time() * 1000), log.metadata()
    metadata = {
        "id": str(there.id),
        "name": there.name,
        "description": there.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": log.schema().to_json(),
        "partitionColumns": list(there.partition_columns),
        "configuration": {**there.configuration, **properties},
        "createdTime": there.created_time,
    }
    info = {
        **_in_commit_time(log, now),
        "timestamp": now,
        "operation": "SET TBLPROPERTIES",
        "operationParameters": {"properties": json.dumps(dict(properties))},
        "engineInfo": ENGINE_INFO,
    }
    actions = [
        {"commitInfo": info},
        {"metaData": {name: value for name, value in metadata.items() if value is not None}},
    ]
    return "".join(json.dumps(action, ensure_ascii=False, separators=(",", ":")) + "\n" for action in actions)


def _in_commit_time(log: Any, now: int) -> dict[str, int]:
    """Returns the time that a commit after the version of `log` must contain, in milliseconds since 1970, or {} if it needs none."""
    if log.metadata().configuration.get(IN_COMMIT_TIMES, "").lower() != "true":
        return {}
    newest: Mapping[str, Any] = next(iter(log.history(1)), {})
    return {IN_COMMIT_TIME: max(now, int(newest.get(IN_COMMIT_TIME, 0)) + 1)}
