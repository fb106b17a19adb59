"""Makes a Delta table as Spark makes it, with a first commit of our own. `small_merge` calls it, for tables on this machine's file systems.

Spark's CREATE TABLE costs most of a second, and deltalake's gives a feature that readers need not know (`variantType`). A first commit is
a protocol, a schema and properties, and Delta's protocol says how they are written: https://github.com/delta-io/delta/blob/master/PROTOCOL.md.
"""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Mapping
from typing import Any

from spark_jobs import sql_text
from spark_jobs.durable_lake import LOG, local_folder
from spark_jobs.staged_batch import Column
from spark_jobs.tables.delta_table import LOCAL_TIMES_FEATURE, VECTORS_FEATURE, VECTORS_PROPERTY

LEGACY = {"minReaderVersion": 1, "minWriterVersion": 2}
LEGACY_FEATURES = ["appendOnly", "invariants"]  # what writer version 2 means, by name
FIRST_COMMIT = f"{0:020d}.json"


def make_table(path: str, columns: tuple[Column, ...], properties: Mapping[str, str]) -> bool:
    """Makes the table whole, or not at all: False where the place is taken, or not on this machine. Raises OSError.

    It is not on disk yet when it returns: that is for `durable_lake`, with what is written into it.
    """
    place = local_folder(path)
    if place is None:
        return False
    place.parent.mkdir(parents=True, exist_ok=True)
    # half a table must not lie where Spark's CREATE TABLE would stumble over it
    made = place.with_name(f".{place.name}.{uuid.uuid4().hex}")
    try:
        (made / LOG).mkdir(parents=True)
        (made / LOG / FIRST_COMMIT).write_text(_commit(columns, properties), encoding="utf-8")
        made.rename(place)  # fails where a folder is that has anything in it
    except OSError:
        if place.exists():
            return False
        raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return True


def _commit(columns: tuple[Column, ...], properties: Mapping[str, str]) -> str:
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
        "operation": "CREATE TABLE",
        "operationParameters": {},
        "isBlindAppend": True,
        "engineInfo": "Sluice",
    }
    actions = [{"commitInfo": info}, {"metaData": metadata}, {"protocol": _protocol(columns, properties)}]
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
