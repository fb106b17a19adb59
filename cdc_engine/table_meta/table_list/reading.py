"""Reads the list of the captured tables of a destination from its records. Opens no connection to the source.

A process caches the list that it has read. While the list is unchanged, a further call reads only the head, which is the record with the
digest of the list. After a change, the call also reads the changed records, which the head names. The console, ticks, runs and the
definitions of assets use this module.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from sluice.batch_manifest.values import Cascade
from sluice.cdc_engine.contracts import LedgerLocation, TableVersion
from sluice.cdc_engine.records.contract import NOT_THERE, RecordStore
from sluice.cdc_engine.records.files import FileRecordStore
from sluice.cdc_engine.records.location import Location, as_location, record_store
from sluice.cdc_engine.table_meta.table_list.head import HEAD, ListHead, digest_of, head_of, share_of
from sluice.cdc_engine.table_meta.table_list.record import FOLDER, parsed, record_of
from sluice.cdc_engine.table_meta.table_list.values import Comments, ListedTable, TableList, list_of

# A process caches the lists of this many destinations. For a further destination, it first empties the cache.
KEPT_MAX = 128


@dataclasses.dataclass(frozen=True)
class _ReadList:
    """A process's cached copy of a list: its records, and the list that they form.

    `digest` is the digest of the records. `records` maps the name of each record to the number that the record adds to the digest, and to
    the record's table. `whole` is True if the list's head (`ListHead`) had the same digest when it was read, so that the cached
    list is complete.
    """

    digest: str
    records: Mapping[str, tuple[int, ListedTable]]
    tables: TableList
    whole: bool = False


_NOTHING = _ReadList("", {}, TableList())
# Entries are replaced as a whole, so threads and forks need no lock.
_read: dict[LedgerLocation, _ReadList] = {}


@functools.lru_cache(maxsize=KEPT_MAX)
def _files_of(location: LedgerLocation) -> FileRecordStore:
    return FileRecordStore(location.directory)


def list_store(location: LedgerLocation) -> RecordStore:
    """Returns the record store of the list. If the ledger is in memory, the list is in files instead, because other processes read it."""
    return record_store(location) if location.is_shared else _files_of(location)


def read_list(directory: Location) -> TableList:
    """Returns the current list of captured tables. The list is empty before the first connection to the source. Raises MetaError if a
    record of the list cannot be read.
    """
    location = as_location(directory)
    store = list_store(location)
    known, (head, _) = _read.get(location, _NOTHING), _head_in(store)
    if head is None:
        return TableList()
    if isinstance(head, TableList):
        return head
    if known.digest == head.digest:
        return known.tables
    now = _changed(store, head, known) or _all(store, known)
    whole = now.digest == head.digest
    if known.whole and not whole:
        # Returns the cached list, because the records are newer than the head. The writer writes the head next, or was killed; after a
        # kill, the engine writes the head at its next start.
        return known.tables
    if len(_read) >= KEPT_MAX:
        _read.clear()
    # If the records do not have the head's digest, for example because somebody removed a record, `whole` is False. Then the next call
    # reads all records again, so that this process sees later changes.
    _read[location] = dataclasses.replace(now, whole=whole)
    return now.tables


def read_table(directory: Location, name: str) -> ListedTable | None:
    """Returns the table `name` ("database.table") of the list, or None if the list does not have the table. Reads at most two records: the
    list's head, which has the digest of the list, and the table's record. Raises MetaError if a record cannot be read.
    """
    location = as_location(directory)
    store = list_store(location)
    head, _ = _head_in(store)
    if head is None:
        return None
    if isinstance(head, TableList):
        return head.by_name.get(name)
    known = _read.get(location, _NOTHING)
    if known.digest == head.digest:
        return known.tables.by_name.get(name)
    text = store.get(record_of(name))
    return None if text is None else parsed(text, store.where(record_of(name)))


def digest_of_list(directory: Location) -> str:
    """Returns the digest of the list, or "" if the list has no table. Reads only the head, the record that contains the digest. If an
    earlier version of Sluice wrote the list, returns the version number of its record instead. Raises MetaError if the head cannot be read.
    """
    return _fact(directory)[0]


def count_of_list(directory: Location) -> int | None:
    """Returns the number of captured tables, or None if there is no list yet. Reads only the head, the record that contains this number.
    Raises MetaError if the head cannot be read.
    """
    return _fact(directory)[1]


def _fact(directory: Location) -> tuple[str, int | None]:
    head, version = _head_in(list_store(as_location(directory)))
    if head is None:
        return "", None
    digest, count = (str(version), len(head.tables)) if isinstance(head, TableList) else (head.digest, head.count)
    return digest if count else "", count


def read_tables(directory: Location) -> tuple[TableVersion, ...]:
    """Returns the captured tables, sorted by name. Raises MetaError if the list cannot be read."""
    return read_list(directory).tables


def read_cascades(directory: Location) -> tuple[Cascade, ...]:
    """Returns the foreign keys that change rows of captured tables without row events. Raises MetaError if the list cannot be read."""
    return read_list(directory).cascades


def read_comments(directory: Location) -> Comments:
    """Returns the comments of the source's tables and columns. Raises MetaError if the list cannot be read."""
    return read_list(directory).comments


def _head_in(store: RecordStore) -> tuple[ListHead | TableList | None, int]:
    """Returns the stored head and the version of its record. Returns a TableList instead of the head if an earlier version of Sluice stored
    the whole list, and None if there is no list.
    """
    found = store.read(HEAD)
    return (None, NOT_THERE) if found is None else (_parsed_head(found.text, store.where(HEAD)), found.version)


_parsed_head = functools.lru_cache(maxsize=KEPT_MAX)(head_of)


def _changed(store: RecordStore, head: ListHead, known: _ReadList) -> _ReadList | None:
    """Reads the records that have changed since the cached list `known`, and returns the updated list. Returns None if the head does not
    name the changes since `known`, or if the digest of the updated list is not the head's digest.
    """
    changed = head.changed_since(known.digest)
    if changed is None:
        return None
    records, total = dict(known.records), int(known.digest, 16)
    for record in changed:
        before, text = records.pop(record, None), store.get(record)
        now = None if text is None else (share_of(record, text), parsed(text, store.where(record)))
        if now is not None and _is_own(record, now[1]):
            records[record] = now
            total += now[0]
        total -= before[0] if before else 0
    digest = digest_of([total])
    return _read_list(digest, records) if digest == head.digest else None


def _all(store: RecordStore, known: _ReadList) -> _ReadList:
    """Reads all records. Parses only the records that `known` does not have."""
    records = dict[str, tuple[int, ListedTable]]()
    for record, each in store.read_all(f"{FOLDER}/").items():
        share, there = share_of(record, each.text), known.records.get(record)
        records[record] = there if there and there[0] == share else (share, parsed(each.text, store.where(record)))
    own = {record: each for record, each in records.items() if _is_own(record, each[1])}
    return _read_list(digest_of(share for share, _ in own.values()), own)


def _read_list(digest: str, records: Mapping[str, tuple[int, ListedTable]]) -> _ReadList:
    return _ReadList(digest, records, list_of(listed for _, listed in records.values()))


def _is_own(record: str, listed: ListedTable) -> bool:
    """Returns whether a record is stored under the name of its table. A copy of a record under another name would be a second version of
    the table, which no write would change.
    """
    return record == record_of(listed.name)
