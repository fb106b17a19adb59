"""Writes the list of the captured tables of a destination: the records that differ from the stored ones, and then the head. The engine
writes it after a statement that changes a table, `sluice up` before the engine runs.

After a crash between the two, the head is that of the list before. Readers that have this list keep it, and the next start of an engine
writes the head. A list in the form of an earlier version counts until the head replaces it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

from sluice.batch_manifest.values import Cascade
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.errors import MetaError, StaleWriteError
from sluice.cdc_engine.records.contract import NOT_THERE, TRIES_MAX, StoredRecord
from sluice.cdc_engine.records.location import Location, as_location
from sluice.cdc_engine.table_meta.table_list.head import HEAD, ListHead, digest_of, head_of, share_of
from sluice.cdc_engine.table_meta.table_list.reading import list_store
from sluice.cdc_engine.table_meta.table_list.record import FOLDER, record_of, to_text, types_of
from sluice.cdc_engine.table_meta.table_list.values import Comments, ListedTable, listed_tables


@dataclasses.dataclass(frozen=True)
class _Prepared:
    """A table and the record that it gives."""

    listed: ListedTable
    record: str
    share: int


class TableListWriter:
    """Writes the list of one destination. Keeps what the records of each table give, so that a statement costs only the tables that it
    changes. `token`: that of the engine's lease. `fence`: called before a write; raises if this process may not write any more.
    """

    def __init__(self, directory: Location, token: int = 0, fence: Callable[[], None] = lambda: None) -> None:
        self._store = list_store(as_location(directory))
        self._token, self._fence = token, fence
        self._prepared: dict[str, _Prepared] = {}
        self._stored: dict[str, int] | None = None  # Record → share of the digest, as far as this process knows.
        self._digest = ""

    @property
    def names(self) -> frozenset[str]:
        """The "database.table" names of the captured tables in the list that was written last."""
        return frozenset(name for name, each in self._prepared.items() if each.listed.version is not None)

    def write(
        self, tables: Iterable[TableVersion], cascades: Iterable[Cascade] = (), comments: Comments | None = None
    ) -> None:
        """Makes this the list. Writes nothing if it is the list already. Raises MetaError, and StaleWriteError if a later holder of the
        lease has written the list.
        """
        listed = listed_tables(tables, cascades, comments or {}, {})
        self._prepared = {name: self._prepare(each) for name, each in listed.items()}
        count = sum(each.version is not None for each in listed.values())
        for _ in range(TRIES_MAX):
            if self._written(count):
                return
        raise MetaError(f"other processes write {self._store.where(HEAD)} all the time; try again")

    def _written(self, count: int) -> bool:
        """Writes what differs. Returns False if another process has written the head meanwhile."""
        found = self._store.read(HEAD)
        if found is not None and found.token > self._token:
            raise StaleWriteError(f"{self._store.where(HEAD)} is written under a later lease than {self._token}")
        head = self._head(found)
        if self._stored is None or head is None or head.digest != self._digest:
            there = self._store.read_all(f"{FOLDER}/")
            self._stored = {record: share_of(record, each.text) for record, each in there.items()}
        now = {each.record: each.share for each in self._prepared.values()}
        digest = digest_of(now.values())
        if head is not None and now == self._stored and head.digest == digest:
            self._digest = digest
            return True
        self._fence()
        stored, self._stored = self._stored, None  # After an error it is not known which records are written.
        changed = self._write_records(stored, now)
        self._stored = now
        text = (head or ListHead()).after(digest, count, changed).to_text()
        try:
            self._store.write(HEAD, text, version=found.version if found else NOT_THERE, token=self._token)
        except StaleWriteError:
            self._stored = None
            return False
        self._digest = digest
        return True

    def _write_records(self, stored: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
        """Writes the records that differ, and removes those of tables that are not in the list. Returns the records that
        changed.
        """
        texts = {
            each.record: to_text(each.listed)
            for each in self._prepared.values()
            if stored.get(each.record) != each.share
        }
        gone = stored.keys() - now.keys()
        self._store.write_all(texts, token=self._token)
        for record in sorted(gone):
            self._remove(record)
        return sorted({*texts, *gone})

    def _remove(self, record: str) -> None:
        """Removes a record in the version that is read here. Raises StaleWriteError if a later holder of the lease has written it, for
        example because the table exists again.
        """
        there = self._store.read(record)
        if there is not None and there.token > self._token:
            raise StaleWriteError(f"{self._store.where(record)} is written under a later lease than {self._token}")
        if there is not None:
            self._store.remove(record, there.version)

    def _head(self, found: StoredRecord | None) -> ListHead | None:
        """Returns the stored head; None if there is none, if it cannot be read, or if an earlier version stored the list in its place."""
        if found is None:
            return None
        try:
            head = head_of(found.text, self._store.where(HEAD))
        except MetaError:  # It is written again.
            return None
        return head if isinstance(head, ListHead) else None

    def _prepare(self, listed: ListedTable) -> _Prepared:
        there = self._prepared.get(listed.name)
        if there is not None and _is_same(there.listed, listed):
            return there
        typed = listed if listed.version is None else dataclasses.replace(listed, types=types_of(listed.version))
        record = record_of(listed.name)
        return _Prepared(typed, record, share_of(record, to_text(typed)))


def write_tables(
    directory: Location,
    tables: Iterable[TableVersion],
    cascades: Iterable[Cascade] = (),
    comments: Comments | None = None,
) -> None:
    """Makes this the list of a destination. Raises MetaError; then the readers of the earlier list keep it."""
    TableListWriter(directory).write(tables, cascades, comments)


def _is_same(one: ListedTable, other: ListedTable) -> bool:
    """Compares two tables without their types, which follow from the version."""
    return (one.version is other.version or one.version == other.version) and (one.comments, one.cascades) == (
        other.comments,
        other.cascades,
    )
