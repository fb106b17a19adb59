"""Whose a Delta table is, and whether it is the one that the last run left. Asked before anything is written, and by who watches the
tables between runs (`lake_look`); pure.

A table has one owner: a ledger and the source table that it follows, in the table's property `sluice.owner`. Order keys of two ledgers
cannot be compared, so a second one would lose changes silently. What the last run left (the table's id and version) is remembered beside
the ledger: a table that is gone, replaced or restored does not have what the ledger believes it has.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from spark_jobs.errors import TableError

OWNER_PROPERTY = "sluice.owner"
TABLE_OWNED, TABLE_UNOWNED, TABLE_MISSING = "TABLE_OWNED", "TABLE_UNOWNED", "TABLE_MISSING"
TABLE_REPLACED, TABLE_RESTORED, TABLE_AHEAD = "TABLE_REPLACED", "TABLE_RESTORED", "TABLE_AHEAD"
REWRITES = ("RESTORE", "CREATE OR REPLACE", "REPLACE", "CLONE")  # operations that take a table to another content


@dataclasses.dataclass(frozen=True, kw_only=True)
class Owner:
    """A ledger and the source table, "database.table"."""

    ledger_id: str
    destination: str
    table: str

    def to_text(self) -> str:
        """The value of the table's property."""
        return json.dumps({"ledger": self.ledger_id, "destination": self.destination, "table": self.table})

    @classmethod
    def from_text(cls, text: str) -> Owner:
        """Inverse of `to_text`; of a text that is not one, an owner that is nobody's."""
        try:
            record = json.loads(text)
            return cls(
                ledger_id=str(record["ledger"]), destination=str(record["destination"]), table=str(record["table"])
            )
        except (ValueError, KeyError, TypeError):
            return cls(ledger_id="", destination=text, table="")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableRecord:
    """A table as a run left it: `table_id` from its metadata, and its version."""

    table_id: str
    version: int


class TableRecords(Protocol):
    """What earlier runs of the destination left, by "database.table"; kept on disk before the batch counts as merged.

    `beside`: what is beside it, by kind. `forget_mirror`: it has none any more.
    """

    def get(self, name: str) -> TableRecord | None: ...
    def keep(self, name: str, record: TableRecord) -> None: ...
    def keep_all(self, records: Mapping[str, TableRecord]) -> None: ...
    def beside(self, name: str, kind: str) -> TableRecord | None: ...
    def keep_beside(self, name: str, kind: str, record: TableRecord) -> None: ...
    def forget_mirror(self, name: str) -> None: ...


class NoRecords:
    """`TableRecords` that knows and keeps nothing: for a merge by hand."""

    def get(self, name: str) -> TableRecord | None:  # noqa: ARG002
        return None

    def keep(self, name: str, record: TableRecord) -> None:
        """Nothing is kept."""

    def keep_all(self, records: Mapping[str, TableRecord]) -> None:
        """Nothing is kept."""

    def beside(self, name: str, kind: str) -> TableRecord | None:  # noqa: ARG002
        return None

    def keep_beside(self, name: str, kind: str, record: TableRecord) -> None:
        """Nothing is kept."""

    def forget_mirror(self, name: str) -> None:
        """Nothing was kept."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """A table as it is now. `commits`: the record's version and those after it, as Delta's history tells them.

    `applied_epoch`: of the last change merged, -1 where there is none. `written_before`: it has columns that only Sluice gives a table.
    `confined`: only the rows of a shard are meant, of which `owner` is the owner. `mismatch`: why those cannot be told apart, or empty.
    """

    exists: bool
    path: str
    table_id: str = ""
    version: int = -1
    owner: str = ""
    applied_epoch: int = -1
    written_before: bool = False
    commits: Iterable[Mapping[str, Any]] = ()
    confined: bool = False
    mismatch: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Writer:
    """Who wants to write: the owner that the table is to have, and the batch's epoch, delivery, start and end (as in the manifest)."""

    owner: Owner
    epoch: int
    delivery: int
    start: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    end: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def refuse_unless_ours(writer: Writer, record: TableRecord | None, found: Found) -> None:
    """Raises TableError with a state and what to do where the table is not the one this ledger left."""
    for state, why in (
        *_missing(record, found),
        *_owned(writer, found),
        *_unowned(record, found),
        *_changed(writer.owner, record, found),
        *_ahead(writer, found),
    ):
        sentence = f"{why}, or take it as it is with {_accept(writer.owner)}"
        raise TableError(writer.owner.table, sentence, state=state, for_good=True)


def refuse_others(owner: Owner, found: Found) -> None:
    """Raises TableError where a table is another's, or of nobody and not ours for sure: it is not to be made anew from our rows."""
    writer = Writer(owner=owner, epoch=0, delivery=0)
    for state, why in (*_owned(writer, found), *_unowned(None, found)):
        raise TableError(owner.table, f"{why}, or take it as it is with {_accept(owner)}", state=state, for_good=True)


def behind_our_back(owner: Owner, record: TableRecord, found: Found) -> str:
    """What another hand did to a table since a run left it, a sentence with the ways out; empty where nothing that matters."""
    for state, why in (*_missing(record, found), *_changed(owner, record, found)):
        return f"{owner.table} is {state}: {why}, or take it as it is with {_accept(owner)}"
    return ""


def _accept(owner: Owner) -> str:
    return f"`sluice lake accept {owner.destination} {owner.table}`"


def _missing(record: TableRecord | None, found: Found) -> Iterable[tuple[str, str]]:
    if record is not None and not found.exists:
        yield (
            TABLE_MISSING,
            (
                f"the Delta table {found.path} was there (version {record.version}) and is gone: a new one would lack all rows "
                "from before. Bring it back (is a disk not mounted, was the path changed?)"
            ),
        )


def _owned(writer: Writer, found: Found) -> Iterable[tuple[str, str]]:
    if found.exists and found.mismatch:
        yield TABLE_OWNED, found.mismatch
    if not found.exists or not found.owner:
        return
    owner = Owner.from_text(found.owner)
    what = "this shard of the Delta table" if found.confined else "the Delta table"
    way = "shard another `name`" if found.confined else "one another path"
    if owner != writer.owner:
        yield (
            TABLE_OWNED,
            (
                f"{what} {found.path} belongs to the destination {owner.destination} (ledger {owner.ledger_id}, table {owner.table}), not "
                f"to ledger {writer.owner.ledger_id}: two writers would lose changes silently. Give this {way} in conf/"
            ),
        )


def _unowned(record: TableRecord | None, found: Found) -> Iterable[tuple[str, str]]:
    """A copy: CREATE TABLE AS SELECT and the like keep columns and rows, and neither the owner nor what was merged already."""
    if record is None and found.exists and not found.owner and found.written_before:
        yield (
            TABLE_UNOWNED,
            (
                f"the Delta table {found.path} has rows that Sluice wrote, and says neither for whom nor up to where: it was copied or "
                "written anew by someone, and what comes now may be in it already. Give this one another path in conf/, or move the "
                "table away to have it made anew"
            ),
        )


def _changed(owner: Owner, record: TableRecord | None, found: Found) -> Iterable[tuple[str, str]]:
    if record is None or not found.exists:
        return
    commits = [commit for commit in found.commits if not _of_a_shard(commit)]
    later = (commit for commit in commits if _version(commit) > record.version)
    renamed = any(_rewrites(commit) and _is_by(owner, commit) for commit in later)
    if found.table_id != record.table_id and not renamed:
        yield (
            TABLE_REPLACED,
            (
                f"the Delta table {found.path} has the id {found.table_id} and had {record.table_id}: another table stands in its place. "
                "Put the former one back"
            ),
        )
    if found.version < record.version:
        yield (
            TABLE_RESTORED,
            (
                f"the Delta table {found.path} is at version {found.version} and was at {record.version}: an older copy stands in its "
                "place. Put the newer one back"
            ),
        )
    if (commit := _rewritten_by(owner, record, commits)) is not None:
        yield (
            TABLE_RESTORED,
            (
                f"version {commit.get('version')} of the Delta table {found.path} is a {commit.get('operation')} by another hand: "
                "what it took away does not come again by itself. Restore the version before it"
            ),
        )


def _rewritten_by(owner: Owner, record: TableRecord, commits: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The commit after the record by which the table lost what a merge left in it; None where it has all of it, or has it again.

    A RESTORE to a version that had all, past nothing that was merged since, is whole.
    """
    why: dict[int, Mapping[str, Any] | None] = {record.version: None}  # version → by which commit it is not whole
    merged, last = record.version, record.version
    for commit in sorted(commits, key=_version):
        version = _version(commit)
        if version <= record.version:
            continue
        if not _rewrites(commit) or _is_by(owner, commit):
            why[version] = why[last]
            merged = version if our_record(commit) else merged
        else:
            back = _restored_version(commit)
            why[version] = why.get(back, commit) if back >= merged else commit
        last = version
    return why[last]


def _version(commit: Mapping[str, Any]) -> int:
    return int(commit.get("version", 0))


def _restored_version(commit: Mapping[str, Any]) -> int:
    """The version that a RESTORE went to; -1 where it does not say one."""
    text = str((commit.get("operationParameters") or {}).get("version") or "")
    return int(text) if text.isdigit() and str(commit.get("operation", "")).startswith("RESTORE") else -1


def _rewrites(commit: Mapping[str, Any]) -> bool:
    operation, parameters = str(commit.get("operation", "")), commit.get("operationParameters") or {}
    overwrites = operation == "WRITE" and str(parameters.get("mode", "")).lower() == "overwrite"
    return overwrites or operation.startswith(REWRITES)


def _of_a_shard(commit: Mapping[str, Any]) -> bool:
    """Whether Sluice wrote rows of one shard anew, which says which it was in its predicate."""
    return bool(our_record(commit) and (commit.get("operationParameters") or {}).get("predicate"))


def _is_by(owner: Owner, commit: Mapping[str, Any]) -> bool:
    """Whether the owner wrote it: a merge that broke before it could remember that it gave the table another one's rows (RENAME)."""
    theirs = our_record(commit)
    return theirs.get("ledger") == owner.ledger_id and theirs.get("table") == owner.table


def _ahead(writer: Writer, found: Found) -> Iterable[tuple[str, str]]:
    newest = "put the newest meta.json back"
    if found.applied_epoch > writer.epoch:
        yield (
            TABLE_AHEAD,
            (
                f"the Delta table {found.path} has changes of epoch {found.applied_epoch}, this batch is of epoch {writer.epoch} and would "
                f"be taken for merged already: the ledger is an older one than the table knows; {newest}"
            ),
        )
    for commit in found.commits:
        theirs = our_record(commit)
        ours = theirs.get("ledger") == writer.owner.ledger_id
        if found.confined and theirs.get("table") != writer.owner.table:  # another shard has come to a place of its own
            continue
        if ours and _is_ahead(theirs, writer):
            yield (
                TABLE_AHEAD,
                (
                    f"the Delta table {found.path} has delivery {theirs['delivery']} of this very ledger, up to "
                    f"{_text(theirs.get('end') or {})}, and this is delivery {writer.delivery} from {_text(writer.start)}: "
                    f"the ledger was restored from a copy, or a copy of it is at work; {newest}"
                ),
            )


def _is_ahead(theirs: Mapping[str, Any], writer: Writer) -> bool:
    """A later delivery, or another batch under the very same one; or what comes again under the keys of a later epoch."""
    delivery, end = int(theirs.get("delivery", 0)), theirs.get("end") or {}
    if delivery != writer.delivery:
        return delivery > writer.delivery or (_epoch(end) < _epoch(writer.end) and _lies_after(end, writer.start))
    return _text(end) != _text(writer.end)


def _lies_after(place: Mapping[str, Any], start: Mapping[str, Any]) -> bool:
    """Whether a place of the epoch in which a batch starts lies after that start."""
    if _epoch(place) != _epoch(start):
        return _epoch(place) > _epoch(start)
    return _within(place) > _within(start)


def _within(place: Mapping[str, Any]) -> tuple[int, str, int]:
    """Orders the places of one epoch: a number grows a digit when it has to."""
    file = str(place.get("file") or "")
    return len(file), file, int(place.get("offset") or 0)


def _epoch(place: Mapping[str, Any]) -> int:
    return int(place.get("epoch") or 0)


def _text(place: Mapping[str, Any]) -> str:
    return f"{place.get('file')}:{place.get('offset')}@{place.get('epoch')}"


def our_record(commit: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a merge or a publication wrote into a commit; empty for another's."""
    try:
        record = json.loads(str(commit.get("userMetadata") or "{}"))
    except ValueError:
        return {}
    return record if isinstance(record, dict) and record.get("sluice") else {}
