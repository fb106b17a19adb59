"""`lake-tables.json`: the Delta tables of a destination as its last run left them, by "database.table". Owned here.

A run writes it after each table, holding the run lock; the next one compares. What it says may be older than the table by the commits of a
run that was killed in between, never newer. `sluice lake accept` changes it, while no run merges.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path

from cdc_engine.durable_files import keep_file
from cdc_engine.errors import MetaError

FILE_NAME = "lake-tables.json"


class LakeTables:
    """Each table's (id, version). Its methods may be called from any thread of one process, the holder of the run lock."""

    def __init__(self, destination_dir: Path) -> None:
        """Raises MetaError where the file is there and cannot be understood."""
        self._path = destination_dir / FILE_NAME
        self._lock = threading.Lock()
        self._tables = _read(self._path)

    def get(self, name: str) -> tuple[str, int] | None:
        """Id and version; None where no run has left the table yet."""
        return self._tables.get(name)

    @property
    def tables(self) -> dict[str, tuple[str, int]]:
        """Id and version of all that runs have left."""
        return dict(self._tables)

    def keep(self, tables: Mapping[str, tuple[str, int]]) -> None:
        """Id and version by name; on disk when it returns. Raises MetaError."""
        with self._lock:
            if any(self._tables.get(name) != kept for name, kept in tables.items()):
                self._write({**self._tables, **tables})

    def forget(self, name: str) -> None:
        """As if no run had left the table. Raises MetaError."""
        with self._lock:
            if name in self._tables:
                self._write({other: kept for other, kept in self._tables.items() if other != name})

    def _write(self, tables: dict[str, tuple[str, int]]) -> None:
        record = {name: {"id": table_id, "version": version} for name, (table_id, version) in sorted(tables.items())}
        keep_file(self._path, json.dumps(record, indent=1) + "\n")
        self._tables = tables


def _read(path: Path) -> dict[str, tuple[str, int]]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): (str(kept["id"]), int(kept["version"])) for name, kept in record.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise MetaError(
            f"{path} cannot be read ({error}): put the right file back, or remove it to trust the tables as they are now"
        ) from error
