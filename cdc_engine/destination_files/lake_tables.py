"""The Delta tables of a destination as its last run left them: `lake-tables.json`, or beside a ledger that is elsewhere. Owned here.

A run writes it after each table, holding the run lock; the next one compares. What it says may be older than the table by the commits of a
run that was killed in between, never newer. `sluice lake accept` changes it, while no run merges.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path

from cdc_engine.documents.contract import NOT_THERE
from cdc_engine.documents.places import Place, as_place, documents_of
from cdc_engine.durable_files import keep_file
from cdc_engine.errors import MetaError

FILE_NAME, DOCUMENT = "lake-tables.json", "lake-tables"


class LakeTables:
    """Each table's (id, version). Its methods may be called from any thread of one process, the holder of the run lock."""

    def __init__(self, destination_dir: Place) -> None:
        """Raises MetaError where the record is there and cannot be understood."""
        place = as_place(destination_dir)
        self._path = place.directory / FILE_NAME
        self._documents = documents_of(place)
        self._lock = threading.Lock()
        self._version = NOT_THERE
        self._tables = self._read()

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
        text = json.dumps(record, indent=1) + "\n"
        if self._documents is None:
            keep_file(self._path, text)
        else:
            self._version = self._documents.write(DOCUMENT, text, version=self._version)
        self._tables = tables

    def _read(self) -> dict[str, tuple[str, int]]:
        if self._documents is None:
            return _read(self._path)
        kept = self._documents.read(DOCUMENT)
        if kept is None:
            return {}
        self._version = kept.version
        return _parsed(kept.text, f"{DOCUMENT} in {self._documents}")


def _read(path: Path) -> dict[str, tuple[str, int]]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _unreadable(str(path), error) from error
    return _parsed(text, str(path))


def _parsed(text: str, where: str) -> dict[str, tuple[str, int]]:
    try:
        record = json.loads(text)
        return {str(name): (str(kept["id"]), int(kept["version"])) for name, kept in record.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(where, error) from error


def _unreadable(where: str, error: Exception) -> MetaError:
    return MetaError(
        f"{where} cannot be read ({error}): put the right file back, or remove it to trust the tables as they are now"
    )
