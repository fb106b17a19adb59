"""Opens a change log or a history with deltalake, checks its owner, and commits to it under its own app id.

The app id is also the table's name in Delta's metadata. `open` refuses a table with another name, so two source tables, or two ledgers,
never write the same table. A commit without changes of the stream, such as the rows of a snapshot, has a separate app id, `<app
id>#<kind>`.

A commit succeeds only as the next version of the table. If another program has made this version, the table is read again before the next
attempt, because the other commit may have the same changes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import deltalake
import pyarrow as pa
from deltalake import CommitProperties, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import PrimitiveType

from sluice.batch_manifest.values import StagedTable
from sluice.spark_jobs import sql_text
from sluice.spark_jobs.conflicts import COMMIT_TRIES_MAX, CommitConflicts
from sluice.spark_jobs.durable_lake import before_checkpoint, sync_commits
from sluice.spark_jobs.errors import LostCommitError, TableError, unreadable_log
from sluice.spark_jobs.fence import READ_ONLY, Fence
from sluice.spark_jobs.side_tables.columns import SOURCE, MappedColumns, sources_of
from sluice.spark_jobs.staged_batch import StagedBatch, epoch_of
from sluice.spark_jobs.table_owner import (
    TABLE_OWNED,
    FoundTable,
    Owner,
    TableRecord,
    behind_our_back,
    refuse_forgetting,
)

CHECKPOINT_COMMITS = 50
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
CLEANING_PROPERTY = "delta.enableExpiredLogCleanup"
# Matches deltalake's errors for a table with Delta features that it does not support, or to which it cannot add columns because of column
# mapping.
FEATURES = re.compile(
    r"(?:(?:unsupported|unknown)[^\n]{0,80}features?|column mapping is not supported|schema evolution on column-mapped)[^\n]{0,200}",
    re.IGNORECASE,
)


def side_app_id(batch: StagedBatch, staged: StagedTable, kind: str) -> str:
    """Returns the app id under which a change log or history (`kind`) stores its last order key."""
    return side_app_id_of(batch.destination, batch.ledger_id, kind, staged.name)


def side_app_id_of(destination: str, ledger_id: str, kind: str, name: str) -> str:
    return f"sluice/{destination}/{ledger_id}/{kind}/{name}"


def is_side_table(name: str, kind: str) -> bool:
    """Returns whether a table with this Delta name is a change log or history (`kind`) that Sluice created."""
    parts = name.split("/", 4)
    return len(parts) == 5 and (parts[0], parts[3]) == ("sluice", kind)


@dataclasses.dataclass
class SideTable:
    """A change log or history.

    - `name` is the "database.table" of the source.
    - `log` is the table, opened with deltalake, or None if the table does not exist.
    - `app_id` identifies the owner. `txn_id` is the app id of the next commits. If `txn_id` is empty, the commits use `app_id`.
    - `fence` is the fence of the run that writes. Without a fence, the table is read-only.
    - `conflicts` counts how often another writer committed first.
    """

    name: str
    path: str
    app_id: str
    storage_options: Mapping[str, str]
    log: Any = None
    txn_id: str = ""
    fence: Fence = READ_ONLY
    conflicts: CommitConflicts = dataclasses.field(default_factory=CommitConflicts)

    def aside(self, kind: str) -> SideTable:
        """Returns the same table for commits of another `kind`, such as a commit of a snapshot's rows. Commits of this kind have their own
        app id, so their order keys are stored separately.
        """
        return dataclasses.replace(self, txn_id=f"{self.app_id}#{kind}")

    def open(self) -> SideTable:
        """Reads the table's newest version. Sets `log` to None if the table does not exist. Raises TableError if the table has another
        owner or cannot be read, or if Delta forgets its transactions.
        """
        try:
            self.log = deltalake.DeltaTable(self.path, storage_options=dict(self.storage_options) or None)
        except TableNotFoundError:
            self.log = None
            return self
        except (DeltaError, OSError) as error:
            raise TableError(self.name, unreadable_log(self.path, error)) from error
        if self.log.metadata().name != self.app_id:
            why = (
                f"the Delta table {self.path} is not the table that {self.app_id} wrote; move that table "
                "away, and Sluice creates a new one (a history with the rows of the current-state table); or "
                "use `sluice lake accept` for the source table, which also accepts its change log and history"
            )
            raise TableError(self.name, why, state=TABLE_OWNED, for_good=True)
        refuse_forgetting(self.name, self.path, self.log.metadata().configuration)
        return self

    @property
    def applied(self) -> int:
        """The order key in the table's newest Delta transaction with the app id `txn_id`, or with `app_id` if `txn_id` is empty. It is -1
        if there is no such transaction.
        """
        found = None if self.log is None else self.log.transaction_version(self.txn_id or self.app_id)
        return -1 if found is None else int(found)

    @property
    def version(self) -> int:
        return -1 if self.log is None else int(self.log.version())

    @property
    def record(self) -> TableRecord:
        """The id and version of the table. A run stores them as the table's record."""
        return TableRecord(table_id=str(self.log.metadata().id), version=self.version)

    def found(self, owner: Owner, record: TableRecord | None) -> FoundTable:
        """Returns the table's state in the form that `table_owner` checks. `owner` is the table's owner, as `open` has checked. `record` is
        the record that the last run stored.
        """
        if self.log is None:
            return FoundTable(exists=False, path=self.path)
        later = self.version - record.version if record else 0
        return FoundTable(
            exists=True,
            path=self.path,
            table_id=self.record.table_id,
            version=self.version,
            owner=owner.to_text(),
            applied_epoch=epoch_of(self.applied) if self.applied >= 0 else -1,
            commits=self.log.history(later) if later > 0 else (),
            columns=frozenset(_names(self.log.schema().fields)),
        )

    def was_restored(self, owner: Owner, record: TableRecord | None) -> bool:
        """Returns whether another program has restored or overwritten the table since `record` was stored. The table's Delta transactions
        do not show this. Returns False if the table of `record` was moved away and this is a new table.
        """
        if record is None or self.log is None or record.table_id != self.record.table_id:
            return False
        return bool(behind_our_back(owner, record, self.found(owner, record)))

    @property
    def columns(self) -> dict[str, str]:
        """The columns with Spark's names of their types."""
        return {} if self.log is None else types_of(self.log.schema().fields)

    def make(self, schema: pa.Schema, properties: Mapping[str, str], comment: str) -> None:
        """Creates the table without rows. If another run has created the table meanwhile, opens that table. `comment` describes the
        table for users.
        """
        self.fence.check(self.name)
        # Ignores the error. If another run has created the table meanwhile, `open` checks the table's owner. After any other failure the
        # table does not exist, and the code below raises an error.
        with contextlib.suppress(DeltaError):
            deltalake.DeltaTable.create(
                self.path,
                schema,
                name=self.app_id,
                description=comment,
                configuration={"delta.checkpointInterval": str(CHECKPOINT_COMMITS), **properties},
                storage_options=dict(self.storage_options) or None,
                raise_if_key_not_exists=False,
            )
        if self.open().log is None:
            raise TableError(
                self.name,
                (f"the Delta table {self.path} could not be created; check whether the folder contains other files"),
            )

    @property
    def sources(self) -> dict[str, str]:
        """The recorded column of the source for each column that has another name than this column."""
        return {} if self.log is None else sources_of(self.log.schema().fields)

    def add(self, mapped: MappedColumns) -> None:
        """Adds the columns `mapped.added`, and records `mapped.sources`, the columns of the source, in the metadata of the table's columns.
        Raises LostCommitError if a commit of another writer replaced one of these commits.
        """
        columns, sources, before = mapped.added, mapped.sources, self.version
        if columns:
            fields = [
                deltalake.Field(
                    each.name,
                    PrimitiveType(sql_text.delta_type(each.type)),
                    metadata={SOURCE: sources[each.name]} if each.name in sources else None,
                )
                for each in columns
            ]
            self.fence.check(self.name)
            self.log.alter.add_columns(fields)
            self.open()
            if not {each.name for each in columns} <= self.columns.keys():
                raise LostCommitError(self.name, self.path, before)
        for ours in sources.keys() - {each.name for each in columns}:
            self.fence.check(self.name)
            self.log.alter.set_column_metadata(ours, {SOURCE: sources[ours]})
            self.open()
        if sources and not sources.items() <= self.sources.items():
            raise LostCommitError(self.name, self.path, before)

    def keep(self, properties: Mapping[str, str]) -> None:
        """Sets table properties, in a commit without a Delta transaction. Raises LostCommitError if a commit of another writer replaced
        this commit.
        """
        before = self.version
        self.fence.check(self.name)
        self.log.alter.set_table_properties(dict(properties), raise_if_not_exists=False)
        self.open()
        if not properties.items() <= self.log.metadata().configuration.items():
            raise LostCommitError(self.name, self.path, before)

    def properties(self, order_key: int, user_metadata: str) -> CommitProperties:
        """Returns the properties of a commit whose transaction stores this order key."""
        return CommitProperties(
            custom_metadata={"userMetadata": user_metadata},
            max_commit_retries=0,
            app_transactions=[Transaction(self.txn_id or self.app_id, order_key, int(time.time() * 1000))],
        )

    def commit(self, order_key: int, write: Callable[[], object]) -> bool:
        """Commits by calling `write`, and returns True. If the table already stores this or a higher order key, returns False
        without calling `write`.

        If another program commits first, reads the table again and makes another attempt, up to COMMIT_TRIES_MAX attempts in total. Raises
        TableError after the last attempt, or if deltalake does not support a feature of the table. Raises LostCommitError if a commit of
        another writer replaced this commit.
        """
        for tried in range(1, COMMIT_TRIES_MAX + 1):
            if self.applied >= order_key:
                return False
            before = self.version
            self.fence.check(self.name)
            try:
                write()
            except CommitFailedError as error:
                if refused := self.too_new(error):
                    raise refused from error
                self.conflicts.add(self.name)
                self.open()
                if tried == COMMIT_TRIES_MAX:
                    why = (
                        f"other writers committed to the Delta table {self.path} before each attempt ({error}); "
                        "Sluice tries again"
                    )
                    raise TableError(self.name, why) from error
                continue
            self.open()
            self.require_own(before, order_key)
            self._checkpoint(before)
            break
        return True

    def require_own(self, before: int, order_key: int) -> None:
        """Raises LostCommitError if commits followed the version `before`, but none of them has the transaction of this order key."""
        if self.version > before and self.applied < order_key:
            raise LostCommitError(self.name, self.path, before)

    def mark(self, order_key: int, user_metadata: str) -> None:
        """Makes a commit without rows, which stores that the table has all changes up to the order key.

        The commit sets the table's description to its present value. Setting a property instead would add the feature `variantType` to a
        table that has timestamps without a time zone, and Delta before 4.0 could no longer read the table.
        """
        self.commit(
            order_key,
            lambda: self.log.alter.set_table_description(
                self.log.metadata().description or "",
                commit_properties=self.properties(order_key, user_metadata),
                post_commithook_properties=NO_HOOKS,
            ),
        )

    def too_new(self, error: object) -> TableError | None:
        """Returns a TableError if `error` names a Delta feature that deltalake does not support. Otherwise returns None. Another attempt
        would fail too, so the TableError stops the table (`for_good`).
        """
        found = FEATURES.search(str(error))
        if found is None:
            return None
        why = f"deltalake cannot write to the Delta table {self.path} ({found[0].strip()})"
        return TableError(
            self.name, f"{why}; drop the feature, or move the table away: Sluice then creates a new one", for_good=True
        )

    def keep_on_disk(self, since_seconds: float) -> None:
        """Syncs all commits since `since_seconds` (by the file system's clock) to disk, including those of earlier attempts. All these
        commits must be on disk before the batch is acked. Raises TableError if the sync fails.
        """
        try:
            sync_commits(self.path, self.version, self.version, since_seconds=since_seconds)
        except OSError as error:
            why = f"a commit to {self.path} could not be synced to disk: {error}; Sluice tries again"
            raise TableError(self.name, why) from error

    def _checkpoint(self, before: int) -> None:
        if before // CHECKPOINT_COMMITS < self.version // CHECKPOINT_COMMITS:
            before_checkpoint(self.path)
            self.log.create_checkpoint()
            if self.log.metadata().configuration.get(CLEANING_PROPERTY, "true") == "true":
                self.log.cleanup_metadata()


def _names(fields: Any) -> Iterator[str]:
    for field in fields:
        yield field.name.lower()
        yield from (f"{field.name}.{inner.name}".lower() for inner in getattr(field.type, "fields", ()))


def types_of(fields: Any) -> dict[str, str]:
    """Returns Spark's type name for each of these fields of deltalake."""
    return {field.name: sql_text.spark_type(field.type) for field in fields}
