"""Reads the list of the captured tables of a destination, from its records. Opens no connection to the source.

A process keeps what it has read. While the head is the same, a look costs the head; after a change, also the records that it names. Used by
the console, by ticks and runs, and by the definitions of assets.
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

KEPT_MAX = 128  # The number of destinations whose list a process keeps.


@dataclasses.dataclass(frozen=True)
class _ReadList:
    """What a process has read. `digest`: of these records. `records`: record → its share of the digest, and the table. `whole`: whether a
    head had this digest.
    """

    digest: str
    records: Mapping[str, tuple[int, ListedTable]]
    tables: TableList
    whole: bool = False


_NOTHING = _ReadList("", {}, TableList())
_read: dict[LedgerLocation, _ReadList] = {}  # Entries are replaced as a whole, so that threads and forks need no lock.


@functools.lru_cache(maxsize=KEPT_MAX)
def _files_of(location: LedgerLocation) -> FileRecordStore:
    return FileRecordStore(location.directory)


def list_store(location: LedgerLocation) -> RecordStore:
    """Returns the store of the list. If the ledger is in memory, the list is in files nevertheless, because other processes show it."""
    return record_store(location) if location.is_shared else _files_of(location)


def read_list(directory: Location) -> TableList:
    """Returns the current list; an empty one before the first connection to the source. Raises MetaError, which says what to do."""
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
        return known.tables  # A write is under way, or its writer was killed: the engine's next start completes it.
    if len(_read) >= KEPT_MAX:
        _read.clear()
    # Records that no head had are read again at each look. Otherwise a removed record would hide all later statements from this process.
    _read[location] = dataclasses.replace(now, whole=whole)
    return now.tables


def read_table(directory: Location, name: str) -> ListedTable | None:
    """Returns what the list has of one "database.table", and reads only its record. Raises MetaError."""
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
    """Returns a digest of the list, or an empty text if it has no table. Reads the head only. Raises MetaError."""
    return _fact(directory)[0]


def count_of_list(directory: Location) -> int | None:
    """Returns the number of captured tables, or None if there is no list yet. Reads the head only. Raises MetaError."""
    return _fact(directory)[1]


def _fact(directory: Location) -> tuple[str, int | None]:
    head, version = _head_in(list_store(as_location(directory)))
    if head is None:
        return "", None
    digest, count = (str(version), len(head.tables)) if isinstance(head, TableList) else (head.digest, head.count)
    return digest if count else "", count


def read_tables(directory: Location) -> tuple[TableVersion, ...]:
    """Returns the captured tables, sorted by name. Raises MetaError."""
    return read_list(directory).tables


def read_cascades(directory: Location) -> tuple[Cascade, ...]:
    """Returns the foreign keys that change rows of captured tables without row events. Raises MetaError."""
    return read_list(directory).cascades


def read_comments(directory: Location) -> Comments:
    """Returns the comments of the source's tables and columns. Raises MetaError."""
    return read_list(directory).comments


def _head_in(store: RecordStore) -> tuple[ListHead | TableList | None, int]:
    """Returns the stored head, or the list itself in the form of an earlier version, with the version of the record. None if there is no
    list.
    """
    found = store.read(HEAD)
    return (None, NOT_THERE) if found is None else (_parsed_head(found.text, store.where(HEAD)), found.version)


_parsed_head = functools.lru_cache(maxsize=KEPT_MAX)(head_of)


def _changed(store: RecordStore, head: ListHead, known: _ReadList) -> _ReadList | None:
    """Reads the records that have changed since `known`. Returns None if that does not result in the list of the head."""
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
    """Reads all records. Parses those that `known` does not have."""
    records = dict[str, tuple[int, ListedTable]]()
    for record, each in store.read_all(f"{FOLDER}/").items():
        share, there = share_of(record, each.text), known.records.get(record)
        records[record] = there if there and there[0] == share else (share, parsed(each.text, store.where(record)))
    own = {record: each for record, each in records.items() if _is_own(record, each[1])}
    return _read_list(digest_of(share for share, _ in own.values()), own)


def _read_list(digest: str, records: Mapping[str, tuple[int, ListedTable]]) -> _ReadList:
    return _ReadList(digest, records, list_of(listed for _, listed in records.values()))


def _is_own(record: str, listed: ListedTable) -> bool:
    """Returns whether a record has the name that it was written with. A copy would be a second version of the table, which no write
    changes.
    """
    return record == record_of(listed.name)
