"""Records the id and the version that each Delta table of a destination had after the last run, in `lake-tables/NN.json`.

A run writes the entry of a Delta table after the table's commit, while it holds the run lock. The next run compares the entry with the
table, to find out whether another writer changed the table. If a run is killed after the commit and before the entry is written, the entry
is older than the table. An entry is never newer than its table. `sluice lake accept` changes entries while no run merges.

The entries are divided among RECORDS records, by a digest of the tables' names. So the merge of one table rewrites few entries, and no
record comes near the megabyte that ZooKeeper allows. With one record per table, a batch would need one write per table. A record is read
only when one of its tables is needed.

Earlier versions of Sluice stored all entries in `lake-tables.json`. As long as this record exists, it is read instead of the other
records. The first process that changes an entry divides the content of `lake-tables.json` among the other records, and then removes
`lake-tables.json`.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Collection, Mapping
from typing import Any

from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.records.contract import NOT_THERE, StoredRecord
from sluice.cdc_engine.records.location import Location, record_store

FOLDER = "lake-tables"
RECORDS = 64
ALL_RECORDS = tuple(f"{FOLDER}/{number:02d}.json" for number in range(RECORDS))
UNDIVIDED = "lake-tables.json"  # The record in which earlier versions stored all tables.


# Name of a table → kind of Delta table (MAIN, "log" or "history") → (id, version).
Kept = dict[str, dict[str, tuple[str, int]]]
MAIN = ""
SIDE_TABLES = "side_tables"  # The JSON key of a table's change log and history.
KEYS = {"id", "version", SIDE_TABLES}


class LakeTables:
    """The recorded id and version of each Delta table of a destination: current-state tables, change logs and histories. Thread-safe. Only
    the process that holds the run lock may change the records.

    A source table may have a change log or a history without a current-state table. Methods raise MetaError if a record cannot be read or
    written.
    """

    def __init__(self, destination_dir: Location) -> None:
        self._records = record_store(destination_dir)
        self._lock = threading.RLock()
        self._versions: dict[str, int] = {}
        self._tables: Kept = {}
        self._names: dict[str, set[str]] = {}  # Record → names of its tables. Has only the records that were read.
        undivided = self._records.read(UNDIVIDED)
        self._undivided = undivided is not None
        if undivided is not None:
            self._names = {record: set() for record in ALL_RECORDS}
            self._remember(_parsed(undivided.text, self._records.where(UNDIVIDED)))

    def get(self, name: str) -> tuple[str, int] | None:
        """Returns the id and version of a current-state table, or None if no run has recorded it."""
        return self.kept(name).get(MAIN)

    @property
    def tables(self) -> dict[str, tuple[str, int]]:
        """The id and version of each recorded current-state table, by name."""
        return {name: kept[MAIN] for name, kept in self._all().items() if MAIN in kept}

    @property
    def names(self) -> list[str]:
        """The names of all recorded tables."""
        return sorted(self._all())

    def kept(self, name: str) -> Mapping[str, tuple[str, int]]:
        """Returns the id and version of a source table's current-state table, change log and history, by kind. Reads the record that
        contains the table if the record was not read before.
        """
        with self._lock:
            record = _record_of(name)
            if record not in self._names:
                self._load(record, self._records.read(record))
            return self._tables.get(name, {})

    def side_tables(self, name: str) -> dict[str, tuple[str, int]]:
        """Returns the id and version of a table's change log and history, by kind ("log", "history")."""
        return {kind: kept for kind, kept in self.kept(name).items() if kind != MAIN}

    def keep(self, tables: Mapping[str, tuple[str, int]]) -> None:
        """Records the id and version of current-state tables, by name, durably. The tables may be in several records, so after a crash, the
        entries of some tables may be unchanged.
        """
        with self._lock:
            self._store({name: {**self.kept(name), MAIN: kept} for name, kept in tables.items()})

    def keep_side_table(self, name: str, kind: str, kept: tuple[str, int]) -> None:
        """Records the id and version of a table's change log or history."""
        with self._lock:
            self._store({name: {**self.kept(name), kind: kept}})

    def forget(self, name: str, *, whole: bool = True) -> None:
        """Removes a current-state table from the records. With `whole`, removes the table's change log and history too."""
        with self._lock:
            kept = self.kept(name)
            self._store({name: {} if whole else {kind: each for kind, each in kept.items() if kind != MAIN}})

    def forget_side_table(self, name: str, kind: str) -> None:
        """Removes the change log or the history of a table from the records."""
        with self._lock:
            self._store({name: {other: each for other, each in self.kept(name).items() if other != kind}})

    def _all(self) -> Kept:
        """Returns the entries of all tables. Reads the records that were not read before."""
        with self._lock:
            if len(self._names) < RECORDS:
                there = self._records.read_all(f"{FOLDER}/")
                for record in sorted({*there, *ALL_RECORDS} - self._names.keys()):
                    self._load(record, there.get(record))
            return self._tables

    def _load(self, record: str, there: StoredRecord | None) -> None:
        if there is not None:
            found = _parsed(there.text, where := self._records.where(record))
            _refuse_records_of_others(record, found, where)
            self._versions[record] = there.version
            self._remember(found)
        self._names.setdefault(record, set())

    def _store(self, changed: Kept) -> None:
        """Writes the entries in `changed` that differ from the recorded entries. Rewrites only the records that contain these entries."""
        new = {name: kept for name, kept in changed.items() if kept != self.kept(name)}
        if not new:
            return
        self._divide()
        for record in sorted({_record_of(name) for name in new}):
            here = {name: kept for name, kept in new.items() if _record_of(name) == record}
            self._write(record, here)

    def _write(self, record: str, changed: Kept) -> None:
        names = (self._names.get(record, set()) | changed.keys()) - {name for name, kept in changed.items() if not kept}
        self._put(record, {name: changed.get(name) or self._tables[name] for name in names})
        self._names[record] = names
        for name, kept in changed.items():
            if kept:
                self._tables[name] = kept
            else:
                self._tables.pop(name, None)

    def _put(self, record: str, tables: Kept) -> None:
        text = json.dumps({name: _to_json(kept) for name, kept in sorted(tables.items())}, indent=1) + "\n"
        self._versions[record] = self._records.write(record, text, version=self._versions.get(record, NOT_THERE))

    def _divide(self) -> None:
        """Divides the entries of UNDIVIDED, the record of an earlier version of Sluice, among the other records. Then removes UNDIVIDED.
        Until the removal, readers read only UNDIVIDED, so a crash before the removal loses nothing.
        """
        if not self._undivided:
            return
        there = self._records.read_all(f"{FOLDER}/")
        self._versions = {record: each.version for record, each in there.items()}
        for record in sorted({*there, *(record for record, names in self._names.items() if names)}):
            self._put(record, {name: self._tables[name] for name in self._names.get(record, ())})
        self._records.remove(UNDIVIDED)
        self._undivided = False

    def _remember(self, tables: Kept) -> None:
        self._tables.update(tables)
        for name in tables:
            self._names.setdefault(_record_of(name), set()).add(name)


def _record_of(name: str) -> str:
    """Returns the name of the record that contains a table."""
    return ALL_RECORDS[hashlib.sha256(name.encode()).digest()[0] % RECORDS]


def _refuse_records_of_others(record: str, tables: Collection[str], where: str) -> None:
    """Raises MetaError if a record has tables that belong to other records. Such a record is a copy of another record. Sluice would read
    the copy but never update it.
    """
    if others := sorted(name for name in tables if _record_of(name) != record):
        raise MetaError(
            f"{where} has {', '.join(others[:3])}, which belong to other records, so this record is a copy of "
            "another one: remove this record"
        )


def _to_json(kept: Mapping[str, tuple[str, int]]) -> dict[str, Any]:
    side_tables = {kind: {"id": table_id, "version": version} for kind, (table_id, version) in sorted(kept.items())}
    main: dict[str, Any] = side_tables.pop(MAIN, {})
    return {**main, SIDE_TABLES: side_tables} if side_tables else main


def _parsed_table(kept: Mapping[str, Any]) -> dict[str, tuple[str, int]]:
    if unknown := sorted(kept.keys() - KEYS):
        raise ValueError(f"unknown key {unknown[0]}")
    tables = {**({MAIN: kept} if "id" in kept else {}), **kept.get(SIDE_TABLES, {})}
    return {str(kind): (str(each["id"]), int(each["version"])) for kind, each in tables.items()}


def _parsed(text: str, where: str) -> Kept:
    try:
        return {str(name): _parsed_table(kept) for name, kept in json.loads(text).items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MetaError(
            f"{where} cannot be read ({error}): restore the record, or remove it so that Sluice accepts the "
            "tables as they are now"
        ) from error
