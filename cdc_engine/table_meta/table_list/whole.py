"""Reads and writes a copy of the list of captured tables as one file. A code server and its runs build their definitions from the same
copy, so that the definitions have the same tables. Earlier versions of Sluice stored an engine's list in this form.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

from sluice.cdc_engine.durable_files import FileStamp, stamp_of
from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.table_meta.table_list.record import AGAIN, UNREADABLE, cascade_of, table_of, table_to_json
from sluice.cdc_engine.table_meta.table_list.values import TableList, list_of, listed_tables

FORMAT = 2
# A process caches this many parsed files; a further file replaces the least recently used file.
PARSED_MAX = 4


def to_text(tables: TableList) -> str:
    """Returns the list as the text of a file."""
    content = {
        "format": FORMAT,
        "cascades": [dataclasses.asdict(cascade) for cascade in tables.cascades],
        "comments": tables.comments,
        "tables": [table_to_json(table) for table in tables.tables],
        "types": {each.name: each.types for each in tables.by_name.values() if each.types},
    }
    return json.dumps(content, default=dict) + "\n"


def read_whole(path: Path) -> TableList:
    """Returns the list in the file, or an empty list if there is no file. Parses the file only if it was replaced since the last call.
    Raises MetaError if the file cannot be read.
    """
    stamp = stamp_of(path)
    return _read(path) if stamp is None else _read_at(path, stamp)


def from_json(content: Any, where: str) -> TableList:
    """Converts the parsed JSON of the file to a list. Raises MetaError if the JSON has another structure."""
    try:
        tables = tuple(table_of(table) for table in content["tables"])
        cascades = tuple(cascade_of(cascade) for cascade in content["cascades"])
        found = listed_tables(tables, cascades, content.get("comments", {}), content.get("types", {}))
    except UNREADABLE as error:
        raise MetaError(f"the table list {where} does not have the form that Sluice writes; {AGAIN}") from error
    return list_of(found.values())


@functools.lru_cache(maxsize=PARSED_MAX)
def _read_at(path: Path, stamp: FileStamp) -> TableList:  # noqa: ARG001  only part of the cache's key
    return _read(path)


def _read(path: Path) -> TableList:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return TableList()
    except (OSError, ValueError) as error:
        raise MetaError(f"the table list {path} cannot be read ({error}); {AGAIN}") from error
    return from_json(content, str(path))
