"""Writes the list of captured tables of a destination: first the records of tables that have changed, then the head, a record with a
digest of the records of all tables. The engine writes the list after a statement that changes a table, and `sluice up` writes it before the
engine runs.

If a crash prevents the write of the head, the stored head belongs to the earlier list. Readers that have cached the earlier list continue
to use it, and the next start of the engine writes the head. Earlier versions of Sluice stored the whole list instead of the head. Such a
list is valid until a head replaces it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Set

from sluice.batch_manifest.values import Cascade
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.errors import MetaError, StaleWriteError
from sluice.cdc_engine.records.contract import NOT_THERE, TRIES_MAX, StoredRecord, written_later
from sluice.cdc_engine.records.location import Location, as_location
from sluice.cdc_engine.table_meta.table_list.head import HEAD, ListHead, digest_of, head_of, share_of
from sluice.cdc_engine.table_meta.table_list.reading import list_store
from sluice.cdc_engine.table_meta.table_list.record import FOLDER, record_of, to_text, types_of
from sluice.cdc_engine.table_meta.table_list.values import Comments, ListedTable, listed_tables


@dataclasses.dataclass(frozen=True)
class _Prepared:
    """A table of the list, with the name of its record, and `share`, the number that the record adds to the digest of the list."""

    listed: ListedTable
    record: str
    share: int


class TableListWriter:
    """Writes the list of captured tables of one destination. Caches the record of each table, so that after a statement only the records of
    changed tables are computed.

    `token` is the token of the engine's lease. `fence` is called before each write, and raises an error if this process has lost its lease.
    """

    def __init__(self, directory: Location, token: int = 0, fence: Callable[[], None] = lambda: None) -> None:
        self._store = list_store(as_location(directory))
        self._token, self._fence = token, fence
        self._prepared: Mapping[str, _Prepared] = {}  # Replaced as a whole, because other threads read `names`.
        # `_sum`: the sum of the prepared tables' `share`, from which the digest of the list is made. `_count`: the number of captured ones.
        self._sum = self._count = 0
        # The name of each stored record → the number that it adds to the digest of the list (`share_of`). None if it is unknown which
        # records are stored.
        self._stored: dict[str, int] | None = None
        # All records that may differ from the stored ones: record name → the table to write, or None if the record must be removed.
        self._unwritten = dict[str, _Prepared | None]()
        self._digest = ""

    @property
    def names(self) -> frozenset[str]:
        """The captured tables, as "database.table", of the list that was written last."""
        return frozenset(name for name, each in self._prepared.items() if each.listed.version is not None)

    def write(
        self,
        tables: Iterable[TableVersion],
        cascades: Iterable[Cascade] = (),
        comments: Comments | None = None,
        only: Set[str] | None = None,
    ) -> None:
        """Replaces the list by these tables. With `only`, replaces only the tables with these names. Writes nothing if nothing changes.

        Raises MetaError if the list cannot be written, and StaleWriteError if a later holder of the lease has written the list.
        """
        listed = listed_tables(tables, cascades, comments or {}, {})
        changed = {name: self._prepare(each) for name, each in listed.items()}
        self._replace(changed, gone=(self._prepared.keys() if only is None else only) - changed.keys())
        for _ in range(TRIES_MAX):
            if self._written():
                return
        raise MetaError(
            f"the list of tables was not written, because other processes write {self._store.where(HEAD)} at the same time; try again"
        )

    def _replace(self, changed: Mapping[str, _Prepared], gone: Set[str]) -> None:
        prepared = dict(self._prepared)
        for name in {*changed, *gone}:
            before, now = prepared.pop(name, None), changed.get(name)
            if now is not None:
                prepared[name] = now
            if before is not now:
                self._unwritten[record_of(name)] = now
                self._sum += (now.share if now else 0) - (before.share if before else 0)
                self._count += _captured(now) - _captured(before)
        self._prepared = prepared

    def _written(self) -> bool:
        """Writes the changed records, and then the head of the list. Returns False if another process has written the head during this
        call; the caller then tries again. Raises StaleWriteError if a later holder of the lease has written the list.
        """
        found = self._store.read(HEAD)
        if found is not None and found.token > self._token:
            raise written_later(self._store.where(HEAD), self._token)
        head = self._head(found)
        if self._stored is None or head is None or head.digest != self._digest:
            there = self._store.read_all(f"{FOLDER}/")
            self._stored = {record: share_of(record, each.text) for record, each in there.items()}
            own = {each.record: each for each in self._prepared.values()}
            self._unwritten = {record: own.get(record) for record in {*own, *there}}
        stored, digest = self._stored, digest_of([self._sum])
        changed = {
            record: each
            for record, each in self._unwritten.items()
            if stored.get(record) != (None if each is None else each.share)
        }
        if changed or head is None or head.digest != digest:
            self._fence()
            self._stored = None  # After an error it is unknown which records were written.
            self._write_records(changed)
            text = (head or ListHead()).after(digest, self._count, sorted(changed)).to_text()
            try:
                self._store.write(HEAD, text, version=found.version if found else NOT_THERE, token=self._token)
            except StaleWriteError:
                return False
        for record, each in changed.items():
            if each is None:
                del stored[record]
            else:
                stored[record] = each.share
        self._stored, self._digest = stored, digest
        self._unwritten.clear()
        return True

    def _write_records(self, changed: Mapping[str, _Prepared | None]) -> None:
        """Writes the changed records, and removes the records of tables that are no longer in the list."""
        texts = {record: to_text(each.listed) for record, each in changed.items() if each is not None}
        self._store.write_all(texts, token=self._token)
        for record in sorted(changed.keys() - texts.keys()):
            self._remove(record)

    def _remove(self, record: str) -> None:
        """Removes a table's record. Raises StaleWriteError if a later holder of the lease has written the record, for example because the
        table exists again.
        """
        there = self._store.read(record)
        if there is not None and there.token > self._token:
            raise written_later(self._store.where(record), self._token)
        if there is not None:
            self._store.remove(record, there.version)

    def _head(self, found: StoredRecord | None) -> ListHead | None:
        """Returns the stored head, or None if no head is stored, if the head cannot be read, or if an earlier version of Sluice stored the
        whole list in place of the head.
        """
        if found is None:
            return None
        try:
            head = head_of(found.text, self._store.where(HEAD))
        except MetaError:  # The head is written again.
            return None
        return head if isinstance(head, ListHead) else None

    def _prepare(self, listed: ListedTable) -> _Prepared:
        there = self._prepared.get(listed.name)
        if there is not None and _is_same(there.listed, listed):
            return there
        typed = listed if listed.version is None else dataclasses.replace(listed, types=types_of(listed.version))
        record = record_of(listed.name)
        return _Prepared(typed, record, share_of(record, to_text(typed)))


def _captured(prepared: _Prepared | None) -> bool:
    return prepared is not None and prepared.listed.version is not None


def write_tables(
    directory: Location,
    tables: Iterable[TableVersion],
    cascades: Iterable[Cascade] = (),
    comments: Comments | None = None,
) -> None:
    """Replaces the list of a destination by these tables. If the list cannot be written, raises MetaError, and readers continue to use the
    earlier list.
    """
    TableListWriter(directory).write(tables, cascades, comments)


def _is_same(one: ListedTable, other: ListedTable) -> bool:
    """Returns whether two tables are equal. The types of the columns are not compared, because the versions determine the types."""
    return (one.version is other.version or one.version == other.version) and (one.comments, one.cascades) == (
        other.comments,
        other.cascades,
    )
