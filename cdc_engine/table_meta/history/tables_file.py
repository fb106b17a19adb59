"""`tables.json`: the captured tables with columns and keys, written by the instance, read where asset definitions are made.

Reading it opens no connection. It is replaced as a whole: written beside, synced, renamed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cdc_engine.contracts import Column, TableVersion
from cdc_engine.durable_files import keep_file
from cdc_engine.errors import MetaError

FORMAT = 1


def write_tables(path: Path, tables: Iterable[TableVersion]) -> None:
    """Replaces the file. Raises MetaError when it cannot be written; the old one is then untouched."""
    record = {"format": FORMAT, "tables": [dataclasses.asdict(table) for table in tables]}
    keep_file(path, json.dumps(record, indent=1))


def read_tables(path: Path) -> tuple[TableVersion, ...]:
    """The tables of the file; none where there is no file yet. Raises MetaError when it cannot be understood."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        raise MetaError(f"the table list {path} cannot be read; delete it, the engine writes it anew") from error
    try:
        if record["format"] != FORMAT:
            raise MetaError(
                f"the table list {path} has format {record['format']}, not {FORMAT}; delete it, the engine writes it anew"
            )
        return tuple(_table(table) for table in record["tables"])
    except (KeyError, TypeError) as error:
        raise MetaError(f"the table list {path} has another shape; delete it, the engine writes it anew") from error


def _table(record: dict[str, Any]) -> TableVersion:
    columns = tuple(_column(column) for column in record["columns"])
    return TableVersion(**{**record, "columns": columns, "key": tuple(record["key"])})


def _column(record: dict[str, Any]) -> Column:
    return Column(**{**record, **{name: tuple(record.get(name, ())) for name in ("labels", "default")}})
