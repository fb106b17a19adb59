"""Writes and parses the head of a list of tables, which has a digest of all records and the names of the records that were changed last.
Pure functions.

If a reader has cached the list with the head's digest, the reader reads only the head. If the reader has cached an earlier list, it reads
the records that changed since that list, and computes the digest of the result. If this digest differs from the head's digest, because a
write was interrupted or somebody restored a file, the reader reads all records. The digest is a sum over the records, independent of their
order.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from typing import Any

from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.table_meta.table_list import whole
from sluice.cdc_engine.table_meta.table_list.record import AGAIN, UNREADABLE
from sluice.cdc_engine.table_meta.table_list.values import TableList

HEAD = "tables.json"  # Earlier versions stored the whole list in the file with this name.
FORMAT = 3
DIGEST_BITS = 128
# A head names the records that changed last, at most this many. A reader whose copy is older than these changes reads all records.
CHANGED_MAX = 200


def share_of(record: str, text: str) -> int:
    """Returns the number that a record adds to the digest of the list."""
    found = hashlib.sha256(f"{record}\n{text}".encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(found[: DIGEST_BITS // 8], "big")


def digest_of(shares: Iterable[int]) -> str:
    """Returns the digest of a list of tables. `shares` has the result of `share_of` for each record of the list."""
    return f"{sum(shares) % (1 << DIGEST_BITS):0{DIGEST_BITS // 4}x}"


EMPTY_DIGEST = digest_of(())


@dataclasses.dataclass(frozen=True)
class ListChange:
    """A change of the list of tables, in which some records were written or removed. `before` is the list's digest before the change."""

    before: str
    records: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class ListHead:
    """The head of a list of tables. Readers read the head first, to find out which records of the list have changed. `digest` is the digest
    of the whole list, and `count` the number of captured tables. `changes` are the last changes of the list, oldest first.
    """

    digest: str = EMPTY_DIGEST
    count: int = 0
    changes: tuple[ListChange, ...] = ()

    def changed_since(self, digest: str) -> tuple[str, ...] | None:
        """Returns the names of the records that have changed since the list had the digest `digest`, or None if the head does not have all
        changes since then.
        """
        if digest == self.digest:
            return ()
        for number in range(len(self.changes) - 1, -1, -1):
            if self.changes[number].before == digest:
                return tuple({record: None for change in self.changes[number:] for record in change.records})
        return None

    def after(self, digest: str, count: int, records: Iterable[str]) -> ListHead:
        """Returns the head after a change of the list. `digest` and `count` are those of the changed list. `records` are the names of the
        records that changed. Drops the oldest changes if the head would name more than CHANGED_MAX records.
        """
        changes = (*self.changes, ListChange(self.digest, tuple(records)))
        while changes and sum(len(change.records) for change in changes) > CHANGED_MAX:
            changes = changes[1:]
        return ListHead(digest, count, changes)

    def to_text(self) -> str:
        changes = [{"before": each.before, "records": each.records} for each in self.changes]
        return json.dumps({"format": FORMAT, "digest": self.digest, "count": self.count, "changes": changes}) + "\n"


def head_of(text: str, where: str) -> ListHead | TableList:
    """Parses the head of a list of tables. Returns a TableList if an earlier version of Sluice stored the whole list in place of the head.
    `where` is the record's location for messages. Raises MetaError if the text cannot be parsed.
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        raise MetaError(f"the table list {where} cannot be read; {AGAIN}") from error
    try:
        if content["format"] == whole.FORMAT:
            return whole.from_json(content, where)
        if content["format"] != FORMAT:
            raise MetaError(f"the table list {where} has format {content['format']}, not {FORMAT}; {AGAIN}")
        return ListHead(str(content["digest"]), int(content["count"]), _changes(content["changes"]))
    except UNREADABLE as error:
        raise MetaError(f"the table list {where} does not have the form that Sluice writes; {AGAIN}") from error


def _changes(content: Any) -> tuple[ListChange, ...]:
    return tuple(ListChange(str(each["before"]), tuple(map(str, each["records"]))) for each in content)
