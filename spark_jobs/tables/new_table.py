"""Creates a Delta table as Spark would, but writes the first commit directly. `small.merge` calls this module for empty tables, and
`snapshot.whole_files` for tables with rows.

Spark's CREATE TABLE takes almost a second, and a table that deltalake creates has a feature that some readers do not support
(`variantType`). A first commit has a protocol, a schema and properties; its format is described in
https://github.com/delta-io/delta/blob/master/PROTOCOL.md. `make_table` works only on file systems of this machine. For object stores,
`table_in_store` writes the text of `first_commit`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from deltalake import exceptions

from sluice.batch_manifest.values import LakeColumn
from sluice.spark_jobs import sql_text
from sluice.spark_jobs.durable_lake import LOG, local_folder, sync
from sluice.spark_jobs.tables.delta_table import LOCAL_TIMES_FEATURE, VECTORS_FEATURE, VECTORS_PROPERTY

LEGACY = {"minReaderVersion": 1, "minWriterVersion": 2}
LEGACY_FEATURES = ["appendOnly", "invariants"]  # The features that writer version 2 includes.
FIRST_COMMIT = f"{0:020d}.json"
ENGINE_INFO = "Sluice"  # The first commit names this as its writer, so that readers see that Spark did not write it.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contents:
    """What the first commit has in addition to protocol, schema and properties: further actions in Delta's form, and the metrics of the
    operation as Spark counts them.
    """

    operation: str = "CREATE TABLE"
    actions: tuple[Mapping[str, Any], ...] = ()
    metrics: Mapping[str, int] = dataclasses.field(default_factory=dict)
    user_metadata: str = ""


def empty(_folder: Path) -> Contents:
    """Returns the contents of a table without rows."""
    return Contents()


def make_table(
    path: str,
    columns: tuple[LakeColumn, ...],
    properties: Mapping[str, str],
    fill: Callable[[Path], Contents] = empty,
    *,
    check: Callable[[], None],
    aside: str = "",
) -> bool:
    """Creates a Delta table at `path`, as a whole or not at all. Returns False if the path is not on this machine, or if something other
    than an empty folder exists there. Raises OSError, or the exceptions of `fill`.

    - `check` checks the fence immediately before the table becomes visible. If `check` raises an exception, no table and no file is left.
    - `fill` writes files into the folder that becomes the table's folder, and syncs them.
    - `aside` is the folder's temporary name, which begins with a dot. If `aside` is empty, a unique name is used. An existing folder with
      the temporary name is removed.

    Does not sync an empty table: `durable_lake` syncs it together with the rows that are merged into it. The caller syncs the directory
    entry of the table's folder.
    """
    folder = local_folder(path)
    if folder is None:
        return False
    folder.parent.mkdir(parents=True, exist_ok=True)
    # The table is written under a temporary name first. A partial table at the final path would make Spark's CREATE TABLE fail.
    made = folder.with_name(aside or f".{folder.name}.{uuid.uuid4().hex}")
    shutil.rmtree(made, ignore_errors=True)
    try:
        (made / LOG).mkdir(parents=True)
        contents = fill(made)
        commit = made / LOG / FIRST_COMMIT
        commit.write_text(first_commit(columns, properties, contents), encoding="utf-8")
        if contents.actions:  # A commit with rows is synced now, because no later step syncs it.
            for each in (commit, commit.parent, made):
                sync(each)
        check()
        made.rename(folder)  # The rename fails if the table's folder already exists and is not empty.
    except OSError:
        if folder.exists():
            return False
        raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return True


def first_commit(columns: tuple[LakeColumn, ...], properties: Mapping[str, str], contents: Contents) -> str:
    """Returns the text of a table's first commit."""
    now = int(time.time() * 1000)
    schema = {"type": "struct", "fields": [_field(column) for column in columns]}
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema, ensure_ascii=False, separators=(",", ":")),
        "partitionColumns": [],
        "configuration": dict(properties),
        "createdTime": now,
    }
    info = {
        "timestamp": now,
        "operation": contents.operation,
        "operationParameters": {},
        "isBlindAppend": True,
        "engineInfo": ENGINE_INFO,
        **(
            {"operationMetrics": {name: str(count) for name, count in contents.metrics.items()}}
            if contents.metrics
            else {}
        ),
        **({"userMetadata": contents.user_metadata} if contents.user_metadata else {}),
    }
    actions = [
        {"commitInfo": info},
        {"metaData": metadata},
        {"protocol": _protocol(columns, properties)},
        *contents.actions,
    ]
    return "".join(json.dumps(action, ensure_ascii=False, separators=(",", ":")) + "\n" for action in actions)


def write_commit(file: Path, text: str) -> None:
    """Writes the file of a commit. Readers see no commit or the whole commit. Raises CommitFailedError if the file exists, because another
    writer made this version.
    """
    temporary = file.with_name(f"_commit_{uuid.uuid4()}.json.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.link(temporary, file)
    except FileExistsError:
        raise exceptions.CommitFailedError(f"version {int(file.stem)} was committed by another writer") from None
    finally:
        temporary.unlink(missing_ok=True)


def _protocol(columns: tuple[LakeColumn, ...], properties: Mapping[str, str]) -> dict[str, Any]:
    """Returns the lowest protocol that the table needs, as Spark would."""
    vectors = [VECTORS_FEATURE] if properties.get(VECTORS_PROPERTY) == "true" else []
    times = [LOCAL_TIMES_FEATURE] if any(column.type == "timestamp_ntz" for column in columns) else []
    if not vectors and not times:
        return LEGACY
    features = [*vectors, *times]
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": features,
        "writerFeatures": [*features, *LEGACY_FEATURES],
    }


def _field(column: LakeColumn) -> dict[str, Any]:
    return {"name": column.name, "type": sql_text.delta_type(column.type), "nullable": True, "metadata": {}}
