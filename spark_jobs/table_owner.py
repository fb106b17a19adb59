"""Checks who owns a Delta table, and whether the table is as the last run left it. Merges call this module before they write anything.
Between runs, `lake_look` calls it. Pure functions.

The table property `sluice.owner` names the owner: a ledger and the source table. Order keys of two ledgers cannot be compared, so with two
owners changes would be lost silently. After each run the ledger stores the table's id and version. If the table is missing later, or was
replaced or restored, it no longer has the rows that the ledger assumes.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.sql_text import delta_path

OWNER_PROPERTY = "sluice.owner"
TABLE_OWNED, TABLE_UNOWNED, TABLE_MISSING = "TABLE_OWNED", "TABLE_UNOWNED", "TABLE_MISSING"
TABLE_REPLACED, TABLE_RESTORED, TABLE_AHEAD = "TABLE_REPLACED", "TABLE_RESTORED", "TABLE_AHEAD"
# With this property, Delta forgets transactions (`txn`) that are older than the property's value.
FORGETTING = "delta.setTransactionRetentionDuration"
# Delta operations that replace the content of a table.
REWRITES = ("RESTORE", "CREATE OR REPLACE", "REPLACE", "CLONE")
# Delta operation that removes a column name → the operation's parameter with the name, or with a JSON list of names.
REMOVALS = {"DROP COLUMNS": "columns", "RENAME COLUMN": "oldColumnPath"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Owner:
    """The owner of a Delta table: a ledger of a destination, and a source table, "database.table"."""

    ledger_id: str
    destination: str
    table: str

    def to_text(self) -> str:
        """Returns the value of the table property `sluice.owner`."""
        return json.dumps({"ledger": self.ledger_id, "destination": self.destination, "table": self.table})

    @classmethod
    def from_text(cls, text: str) -> Owner:
        """Parses a text that `to_text` returned. If the text is not valid, returns an owner that equals no real owner."""
        try:
            record = json.loads(text)
            return cls(
                ledger_id=str(record["ledger"]), destination=str(record["destination"]), table=str(record["table"])
            )
        except (ValueError, KeyError, TypeError):
            return cls(ledger_id="", destination=text, table="")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableRecord:
    """The state of a Delta table after a run: the id in its metadata, and its version."""

    table_id: str
    version: int


class TableRecords(Protocol):
    """Stores the records of a destination's tables, by "database.table". A merge is complete only when the record is on disk.

    `side_table` and `keep_side_table` are for the records of change log and history (`kind`). `forget_current_state_table` removes the
    record of a table that no longer has a current-state table.
    """

    def get(self, name: str) -> TableRecord | None: ...
    def keep(self, name: str, record: TableRecord) -> None: ...
    def keep_all(self, records: Mapping[str, TableRecord]) -> None: ...
    def side_table(self, name: str, kind: str) -> TableRecord | None: ...
    def keep_side_table(self, name: str, kind: str, record: TableRecord) -> None: ...
    def forget_current_state_table(self, name: str) -> None: ...


class NoRecords:
    """Stores no records. Used for merges from the command line."""

    def get(self, name: str) -> TableRecord | None:  # noqa: ARG002
        return None

    def keep(self, name: str, record: TableRecord) -> None:
        """Does nothing, because no records are stored."""

    def keep_all(self, records: Mapping[str, TableRecord]) -> None:
        """Does nothing, because no records are stored."""

    def side_table(self, name: str, kind: str) -> TableRecord | None:  # noqa: ARG002
        return None

    def keep_side_table(self, name: str, kind: str, record: TableRecord) -> None:
        """Does nothing, because no records are stored."""

    def forget_current_state_table(self, name: str) -> None:
        """Does nothing, because no records are stored."""


NO_RECORDS = NoRecords()


@dataclasses.dataclass(frozen=True, kw_only=True)
class FoundTable:
    """The present state of a Delta table.

    - `commits` has Delta's history since the version that the last run recorded (`TableRecord`).
    - `applied_epoch` is the epoch of the last merged change. `applied_epoch` is -1 if no change was merged.
    - `written_before` is true if the table has columns that only Sluice creates.
    - `confined` is true if the other fields describe only the rows of one shard, whose owner is `owner`.
    - `mismatch` says why the rows of shards cannot be distinguished, and is empty if they can be distinguished.
    - `columns` are the lower-case names of the table's columns. A field of a struct is named "struct.field".
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
    columns: Collection[str] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LakeWriter:
    """Who wants to write a table: the owner that the table must have, and the epoch, delivery, start and end in the batch's manifest.

    `columns` are the lower-case names of columns that the Delta table must have: Sluice's own columns, and those that the source's table
    has and that no alteration of the batch has just added. The write is refused if another program has removed one of them.
    """

    owner: Owner
    epoch: int
    delivery: int
    start: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    end: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    columns: Collection[str] = ()


def refuse_unless_ours(writer: LakeWriter, record: TableRecord | None, found: FoundTable) -> None:
    """Raises TableError if the Delta table is missing although it has a record, belongs to another owner, or is a copy of a table that
    Sluice wrote. Also raises TableError if another program replaced the table, restored it or removed columns from it since the last run,
    or if the table has later changes than the ledger. The error has a table state and says what to do.
    """
    _refuse_mismatch(writer.owner, found)
    for state, why in (
        *_missing(record, found),
        *_owned(writer, found),
        *_unowned(record, found),
        *_changed(writer.owner, record, found),
        *_without_columns(writer, record, found),
        *_ahead(writer, found),
    ):
        raise TableError(writer.owner.table, f"{why}, or {take_it_over(writer.owner)}", state=state, for_good=True)


def _refuse_mismatch(owner: Owner, found: FoundTable) -> None:
    """Raises TableError if the rows of shards cannot be distinguished. The error does not advise to take the table over, because a new
    owner does not change the rows that are already in the table.
    """
    if found.exists and found.mismatch:
        raise TableError(owner.table, found.mismatch, state=TABLE_OWNED, for_good=True)


def refuse_others(owner: Owner, found: FoundTable) -> None:
    """Raises TableError if the table has another owner, or is a copy of a table that Sluice wrote. The rows of such a table must not be
    replaced.
    """
    _refuse_mismatch(owner, found)
    writer = LakeWriter(owner=owner, epoch=0, delivery=0)
    for state, why in (*_owned(writer, found), *_unowned(None, found)):
        raise TableError(owner.table, f"{why}, or {take_it_over(owner)}", state=state, for_good=True)


def refuse_forgetting(name: str, path: str, properties: Collection[str]) -> None:
    """Raises TableError if Delta forgets which changes were merged into a table. `properties` are the names of the table's properties."""
    if FORGETTING in properties:
        raise TableError(
            name,
            f"the Delta table {path} has the property {FORGETTING}, with which Delta forgets which changes Sluice has merged, so Sluice "
            f"could merge changes twice. Remove the property: ALTER TABLE {delta_path(path)} UNSET TBLPROPERTIES ('{FORGETTING}')",
        )


def refuse_without_columns(writer: LakeWriter, record: TableRecord | None, found: FoundTable, instead: str) -> None:
    """Raises TableError if another program removed one of the writer's columns from the table since the last run. `instead` says in the
    error what an operator may do instead of restoring the table.
    """
    for state, why in _without_columns(writer, record, found):
        raise TableError(writer.owner.table, f"{why}, or {instead}", state=state, for_good=True)


def behind_our_back(owner: Owner, record: TableRecord, found: FoundTable) -> str:
    """Returns how another program changed a table since the last run, and what to do. Returns "" if nothing relevant changed."""
    for state, why in (*_missing(record, found), *_changed(owner, record, found)):
        return f"{owner.table} is {state}: {why}, or {take_it_over(owner)}"
    return ""


def take_it_over(owner: Owner) -> str:
    """Returns the advice with which all refusals end, except those of `_refuse_mismatch`."""
    return f"take the table over and re-snapshot it with `sluice lake accept {owner.destination} {shlex.quote(owner.table)}`"


def _missing(record: TableRecord | None, found: FoundTable) -> Iterable[tuple[str, str]]:
    if record is not None and not found.exists:
        yield (
            TABLE_MISSING,
            (
                f"the Delta table {found.path} had version {record.version} and is missing: a new table would "
                "lack all earlier rows. If a disk is not mounted or the path was changed, correct that; otherwise restore the Delta table"
            ),
        )


def _owned(writer: LakeWriter, found: FoundTable) -> Iterable[tuple[str, str]]:
    if not found.exists or not found.owner:
        return
    owner = Owner.from_text(found.owner)
    what = "this shard of the Delta table" if found.confined else "the Delta table"
    way = "shard another `name`" if found.confined else "table another path"
    if owner != writer.owner:
        yield (
            TABLE_OWNED,
            (
                f"{what} {found.path} belongs to the destination {owner.destination} (ledger {owner.ledger_id}, table {owner.table}), not "
                f"to ledger {writer.owner.ledger_id}: two writers would lose changes silently. Give this {way} in conf/"
            ),
        )


def _unowned(record: TableRecord | None, found: FoundTable) -> Iterable[tuple[str, str]]:
    """Yields the table state and the reason if the table is a copy. CREATE TABLE AS SELECT and similar statements copy columns and rows,
    but not the owner and the last order key.
    """
    if record is None and found.exists and not found.owner and found.written_before:
        yield (
            TABLE_UNOWNED,
            (
                f"the Delta table {found.path} has rows that Sluice wrote, but neither their owner nor their "
                "position: it was copied or rewritten by another program, and may already contain changes "
                "that this batch would apply again. Set another path for this table in conf/, or move the "
                "Delta table away; Sluice then creates a new one"
            ),
        )


def _changed(owner: Owner, record: TableRecord | None, found: FoundTable) -> Iterable[tuple[str, str]]:
    if record is None or not found.exists:
        return
    commits = [commit for commit in found.commits if not of_a_shard(commit)]
    if was_replaced(owner, record, found):
        yield (
            TABLE_REPLACED,
            (
                f"the Delta table {found.path} has the id {found.table_id} instead of {record.table_id}: "
                f"another table has replaced the Delta table. Restore the table with the id {record.table_id}"
            ),
        )
    if found.version < record.version:
        yield (
            TABLE_RESTORED,
            (
                f"the Delta table {found.path} is at version {found.version} and was at version "
                f"{record.version}: an older copy has replaced the Delta table. Restore the copy with version "
                f"{record.version}"
            ),
        )
    if (commit := rewritten_by(owner, record, commits)) is not None:
        yield (
            TABLE_RESTORED,
            (
                f"version {commit.get('version')} of the Delta table {found.path} is a "
                f"{commit.get('operation')} by another program: Sluice does not write rows again that this "
                "commit removed. Restore the version before this commit"
            ),
        )


def _without_columns(writer: LakeWriter, record: TableRecord | None, found: FoundTable) -> Iterable[tuple[str, str]]:
    """Yields the table state and the reason if another program dropped or renamed a column since the last run, after `record.version`. The
    merge would add the column again, and earlier rows would have NULL in it.
    """
    if record is None or not found.exists:
        return
    missing = set(writer.columns).difference(found.columns)
    removed = removed_columns(record, found.commits, missing)
    if gone := sorted(missing & removed.keys()):
        commit = removed[gone[0]]
        yield (
            TABLE_RESTORED,
            (
                f"version {commit.get('version')} of the Delta table {found.path} is a {commit.get('operation')} by another program, "
                f"and Sluice still needs {', '.join(gone)}: Sluice does not write the values of earlier rows again. Restore "
                "the version before this commit"
            ),
        )


def may_lack_columns(record: TableRecord, found: FoundTable, needed: Iterable[str]) -> bool:
    """Returns whether the table lacks one of the columns `needed`, and a commit after the record dropped or renamed columns. `needed` are
    the lower-case names of the columns that the source has and that Sluice adds.
    """
    return not set(needed) <= set(found.columns) and bool(removed_columns(record, found.commits, {""}))


def removed_columns(
    record: TableRecord, commits: Iterable[Mapping[str, Any]], missing: Collection[str] = ()
) -> dict[str, Mapping[str, Any]]:
    """Returns lower-case column name → commit for each column that a commit after the record dropped or renamed. Some commits of Sluice
    that alter a table have no metadata, so they are in the result, too. Some programs, for example Trino, do not write the names of the
    columns into the commit. Such a commit may have removed each of the columns `missing`.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for commit in commits:
        if _version(commit) > record.version and str(commit.get("operation", "")) in REMOVALS:
            found |= dict.fromkeys(_removed_names(commit) or missing, commit)
    return found


def _removed_names(commit: Mapping[str, Any]) -> list[str]:
    text = str((commit.get("operationParameters") or {}).get(REMOVALS[str(commit.get("operation"))]) or "")
    try:
        names = json.loads(text)
    except ValueError:
        names = text
    return [str(name).replace("`", "").lower() for name in (names if isinstance(names, list) else [text]) if name]


def was_replaced(owner: Owner, record: TableRecord, found: FoundTable) -> bool:
    """Returns whether another table is now at the path. A new id alone does not prove this. A commit of this owner that renames the table
    or converts columns also changes the id, and the run may have ended after this commit and before it stored the new id.
    """
    later = (commit for commit in found.commits if _version(commit) > record.version and not of_a_shard(commit))
    return found.table_id != record.table_id and not any(rewrites(each) and is_by(owner, each) for each in later)


def rewritten_by(owner: Owner, record: TableRecord, commits: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Returns the commit of another program in which the table lost merged rows that it still lacks. The version before this commit has
    these rows. Returns None if the table has all merged rows, or lost them and got them back. Ignores commits up to `record.version`.
    """
    later = sorted((each for each in commits if _version(each) > record.version), key=_version)
    # For each version of the table, the versions whose merges it has. `record.version` stands for all merges up to this version.
    has = {record.version: frozenset({record.version})}
    merged = content = has[record.version]
    for commit in later:
        version = _version(commit)
        if rewrites(commit) and not is_by(owner, commit):
            content = has.get(restored_version(commit), frozenset())
        elif our_record(commit):
            merged, content = merged | {version}, content | {version}
        has[version] = content
    lost, found = merged - content, None
    for commit in reversed(later):
        version = _version(commit)
        if not any(each <= version and each not in has[version] for each in lost):
            break
        found = commit
    return found


def _version(commit: Mapping[str, Any]) -> int:
    return int(commit.get("version", 0))


def restored_version(commit: Mapping[str, Any]) -> int:
    """Returns the version that a RESTORE restored. Returns -1 if the version is unknown, or if the commit is not a RESTORE."""
    text = str((commit.get("operationParameters") or {}).get("version") or "")
    return int(text) if text.isdigit() and str(commit.get("operation", "")).startswith("RESTORE") else -1


def rewrites(commit: Mapping[str, Any]) -> bool:
    """Returns whether a commit replaces the content of the table. The commit may be restricted to the rows of one shard (`of_a_shard`)."""
    operation, parameters = str(commit.get("operation", "")), commit.get("operationParameters") or {}
    overwrites = operation == "WRITE" and str(parameters.get("mode", "")).lower() == "overwrite"
    return overwrites or operation.startswith(REWRITES)


def of_a_shard(commit: Mapping[str, Any]) -> bool:
    """Returns whether Sluice replaced only the rows of one shard in this commit. A predicate of the commit alone does not prove this,
    because a MERGE by deltalake has one too.
    """
    return bool(rewrites(commit) and our_record(commit) and (commit.get("operationParameters") or {}).get("predicate"))


def is_by(owner: Owner, commit: Mapping[str, Any]) -> bool:
    """Returns whether a run of this owner made the commit. This can be true for a commit that is newer than the table's record, if the run
    failed after its commit and before it stored the record.
    """
    theirs = our_record(commit)
    return theirs.get("ledger") == owner.ledger_id and theirs.get("table") == owner.table


def _ahead(writer: LakeWriter, found: FoundTable) -> Iterable[tuple[str, str]]:
    newest = "restore the newest copy of meta.json"
    if found.applied_epoch > writer.epoch:
        yield (
            TABLE_AHEAD,
            (
                f"the Delta table {found.path} has changes of epoch {found.applied_epoch}, and this batch is "
                f"of epoch {writer.epoch}, so the batch's changes would be skipped as merged already: the ledger is "
                f"older than the table; {newest}"
            ),
        )
    for commit in found.commits:
        theirs = our_record(commit)
        ours = theirs.get("ledger") == writer.owner.ledger_id
        # Each shard has its own position, so the position of another shard's commit is irrelevant.
        if found.confined and theirs.get("table") != writer.owner.table:
            continue
        if ours and _is_ahead(theirs, writer):
            yield (
                TABLE_AHEAD,
                (
                    f"the Delta table {found.path} already has delivery {theirs['delivery']} of this ledger, which ends at "
                    f"{_text(theirs.get('end') or {})}, but the batch to merge is delivery {writer.delivery}, which begins at "
                    f"{_text(writer.start)}: the ledger was restored from a copy, or another engine uses a "
                    f"copy of the ledger; {newest}"
                ),
            )


def _is_ahead(theirs: Mapping[str, Any], writer: LakeWriter) -> bool:
    """Returns whether a commit in the table shows that the table is ahead of the writer's batch. `theirs` is the commit's metadata. The
    table is ahead in three cases:

    - The commit is of a later delivery.
    - The commit has the same delivery number, and another end.
    - The commit is of an earlier epoch and ends after the start of the batch. The batch then contains changes of the commit again, under
      order keys of a later epoch.
    """
    delivery, end = int(theirs.get("delivery", 0)), theirs.get("end") or {}
    if delivery != writer.delivery:
        return delivery > writer.delivery or (_epoch(end) < _epoch(writer.end) and _lies_after(end, writer.start))
    return _text(end) != _text(writer.end)


def _lies_after(position: Mapping[str, Any], start: Mapping[str, Any]) -> bool:
    """Returns whether a position is after the start of a batch."""
    if _epoch(position) != _epoch(start):
        return _epoch(position) > _epoch(start)
    return _within(position) > _within(start)


def _within(position: Mapping[str, Any]) -> tuple[int, str, int]:
    """Returns a sort key for positions of one epoch. The length of the file name comes first, because file numbers may
    get one more digit.
    """
    file = str(position.get("file") or "")
    return len(file), file, int(position.get("offset") or 0)


def _epoch(position: Mapping[str, Any]) -> int:
    return int(position.get("epoch") or 0)


def _text(position: Mapping[str, Any]) -> str:
    return f"{position.get('file')}:{position.get('offset')}@{position.get('epoch')}"


def our_record(commit: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the metadata that Sluice stored in a commit. Returns {} if Sluice did not make the commit."""
    try:
        record = json.loads(str(commit.get("userMetadata") or "{}"))
    except ValueError:
        return {}
    return record if isinstance(record, dict) and record.get("sluice") else {}
