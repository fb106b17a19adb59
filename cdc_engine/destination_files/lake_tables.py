"""The Delta tables of a destination as its last run left them: the record `lake-tables.json`. Owned here.

A run writes it after each table, while it holds the run lock; the next run compares. It may be behind the table by the commits of a run
that was killed in between, never ahead. `sluice lake accept` changes it while no run merges.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.records.contract import NOT_THERE
from sluice.cdc_engine.records.location import Location, record_store

NAME = "lake-tables.json"


Kept = dict[str, dict[str, tuple[str, int]]]  # name → MAIN, "log" or "history" → (id, version)
MAIN = ""


class LakeTables:
    """(id, version) of each current-state table, change log and history. Thread-safe within the process that holds the run lock. A table
    without a current-state table has only the others.
    """

    def __init__(self, destination_dir: Location) -> None:
        """Raises MetaError if the record exists and is invalid."""
        self._records = record_store(destination_dir)
        self._lock = threading.Lock()
        self._version = NOT_THERE
        self._tables = self._read()

    def get(self, name: str) -> tuple[str, int] | None:
        """Returns id and version of a current-state table; None if no run has left it yet."""
        return self._tables.get(name, {}).get(MAIN)

    @property
    def tables(self) -> dict[str, tuple[str, int]]:
        """Returns id and version of all current-state tables that runs have left."""
        return {name: kept[MAIN] for name, kept in self._tables.items() if MAIN in kept}

    @property
    def names(self) -> list[str]:
        """Returns the names of all tables of which runs have left something."""
        return sorted(self._tables)

    def beside(self, name: str) -> dict[str, tuple[str, int]]:
        """Returns kind ("log", "history") → id and version, of the change log and history that runs have left."""
        return {kind: kept for kind, kept in self._tables.get(name, {}).items() if kind != MAIN}

    def keep(self, tables: Mapping[str, tuple[str, int]]) -> None:
        """Stores id and version by name. Durable when it returns. Raises MetaError."""
        self._keep({(name, MAIN): kept for name, kept in tables.items()})

    def keep_side_table(self, name: str, kind: str, kept: tuple[str, int]) -> None:
        """Stores id and version of a change log or history. Raises MetaError."""
        self._keep({(name, kind): kept})

    def forget(self, name: str, *, whole: bool = True) -> None:
        """Forgets a table, and its change log and history if `whole`. Raises MetaError."""
        with self._lock:
            kept = self._tables.get(name, {})
            self._leave(name, {} if whole else {kind: each for kind, each in kept.items() if kind != MAIN})

    def forget_side_table(self, name: str, kind: str) -> None:
        """Forgets the change log or the history of a table. Raises MetaError."""
        with self._lock:
            self._leave(name, {other: each for other, each in self._tables.get(name, {}).items() if other != kind})

    def _leave(self, name: str, left: dict[str, tuple[str, int]]) -> None:
        if left != self._tables.get(name, {}):
            others = {other: kept for other, kept in self._tables.items() if other != name}
            self._write({**others, name: left} if left else others)

    def _keep(self, found: Mapping[tuple[str, str], tuple[str, int]]) -> None:
        with self._lock:
            if all(self._tables.get(name, {}).get(kind) == kept for (name, kind), kept in found.items()):
                return
            tables = {name: dict(kept) for name, kept in self._tables.items()}
            for (name, kind), kept in found.items():
                tables.setdefault(name, {})[kind] = kept
            self._write(tables)

    def _write(self, tables: Kept) -> None:
        text = json.dumps({name: _record(kept) for name, kept in sorted(tables.items())}, indent=1) + "\n"
        self._version = self._records.write(NAME, text, version=self._version)
        self._tables = tables

    def _read(self) -> Kept:
        kept = self._records.read(NAME)
        if kept is None:
            return {}
        self._version = kept.version
        return _parsed(kept.text, self._records.where(NAME))


def _record(kept: Mapping[str, tuple[str, int]]) -> dict[str, Any]:
    told = {kind: {"id": table_id, "version": version} for kind, (table_id, version) in sorted(kept.items())}
    main: dict[str, Any] = told.pop(MAIN, {})
    return {**main, "beside": told} if told else main


def _parsed(text: str, where: str) -> Kept:
    try:
        record = json.loads(text)
        return {
            str(name): {
                str(kind): (str(each["id"]), int(each["version"]))
                for kind, each in {**({MAIN: kept} if "id" in kept else {}), **kept.get("beside", {})}.items()
            }
            for name, kept in record.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MetaError(
            f"{where} cannot be read ({error}): put the right record back, or remove it to trust the tables as they are now"
        ) from error
