"""Makes a Delta table as Spark makes it, with a first commit of our own, on this machine's file systems.

`small.merge` makes tables that are empty, `snapshot.whole_files` those that are full at once.

Spark's CREATE TABLE costs most of a second, and deltalake's gives a feature that readers need not know (`variantType`). A first commit is
a protocol, a schema and properties, and Delta's protocol says how they are written: https://github.com/delta-io/delta/blob/master/PROTOCOL.md.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from spark_jobs import sql_text
from spark_jobs.durable_lake import LOG, local_folder, sync
from spark_jobs.staged_batch import Column
from spark_jobs.tables.delta_table import LOCAL_TIMES_FEATURE, VECTORS_FEATURE, VECTORS_PROPERTY

LEGACY = {"minReaderVersion": 1, "minWriterVersion": 2}
LEGACY_FEATURES = ["appendOnly", "invariants"]  # what writer version 2 means, by name
FIRST_COMMIT = f"{0:020d}.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contents:
    """What the first commit brings beside the table itself. `actions`: of Delta; `metrics`: as Spark counts them."""

    operation: str = "CREATE TABLE"
    actions: tuple[Mapping[str, Any], ...] = ()
    metrics: Mapping[str, int] = dataclasses.field(default_factory=dict)
    user_metadata: str = ""


def empty(_folder: Path) -> Contents:
    """Of a table without rows."""
    return Contents()


def make_table(
    path: str,
    columns: tuple[Column, ...],
    properties: Mapping[str, str],
    fill: Callable[[Path], Contents] = empty,
    *,
    check: Callable[[], None],
    aside: str = "",
) -> bool:
    """Makes the table whole, or not at all: False where the place is taken, or not on this machine. Raises OSError, or what `fill` does.

    `check`: asks the fence, right before the table is there; what it raises leaves nothing.
    `fill`: puts files into the folder that becomes the table's, and syncs them. `aside`: the name of that folder until then, which is
    beside the table's and begins with a dot: what is there is removed. An empty table is not on disk yet when this returns: that is for
    `durable_lake`, with what is written into it.
    """
    place = local_folder(path)
    if place is None:
        return False
    place.parent.mkdir(parents=True, exist_ok=True)
    # half a table must not lie where Spark's CREATE TABLE would stumble over it
    made = place.with_name(aside or f".{place.name}.{uuid.uuid4().hex}")
    shutil.rmtree(made, ignore_errors=True)
    try:
        (made / LOG).mkdir(parents=True)
        contents = fill(made)
        commit = made / LOG / FIRST_COMMIT
        commit.write_text(_commit(columns, properties, contents), encoding="utf-8")
        if contents.actions:  # a table whose rows nobody writes a second time may not be there with half a commit
            for each in (commit, commit.parent, made):
                sync(each)
        check()
        made.rename(place)  # fails where a folder is that has anything in it
    except OSError:
        if place.exists():
            return False
        raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return True


def _commit(columns: tuple[Column, ...], properties: Mapping[str, str], contents: Contents) -> str:
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
        "engineInfo": "Sluice",
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


def _protocol(columns: tuple[Column, ...], properties: Mapping[str, str]) -> dict[str, Any]:
    """The least that the table needs, as Spark chooses it."""
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


def _field(column: Column) -> dict[str, Any]:
    return {"name": column.name, "type": sql_text.delta_type(column.type), "nullable": True, "metadata": {}}
