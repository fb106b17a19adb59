"""Puts quarantined values that can now be decoded back into their rows. `sluice quarantine replay` calls this while no run merges.

A value is put into a row only if the row still has the order key of the value's transaction. If the row changed later, the later change has
set its own value. A value that is older than a rename of the table is not put back, because it belongs to the table that had the name
before. Among the rows of one transaction, the key identifies the row. In a table without a key, all columns except the column of the value
identify it. Rows that are equal in all these columns get their values only if the values are equal too. A repeated call changes nothing.

When `put_back` returns, the values are on disk in the table and in its history, so the caller may remove them from the quarantine.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from sluice.spark_jobs import sql_text
from sluice.spark_jobs.durable_lake import sync_commits
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.merging.fold import parquet_view
from sluice.spark_jobs.session import LakeSession
from sluice.spark_jobs.side_tables.history import KIND, kept_key
from sluice.spark_jobs.side_tables.history_fix import HistoryFix
from sluice.spark_jobs.side_tables.side_table import SideTable, side_app_id_of
from sluice.spark_jobs.staged_batch import COMMIT_TIME, ORDER_KEY, QUARANTINE_KIND, app_id_of
from sluice.spark_jobs.table_owner import Owner, TableRecords, refuse_others
from sluice.spark_jobs.tables.delta_table import DeltaTable
from sluice.spark_jobs.tables.renamed_table import RENAMED_AT
from sluice.spark_jobs.targets.report import TableTarget

VIEW = "sluice_quarantine_replay"
NUMBER_COLUMN, KEY_COLUMN, VALUE_COLUMN, NAMED, OCCURRENCE = "number", "order_key", "value", "named_", "occurrence"
HISTORY_BEHIND = (
    "the history of the table lacks changes that the current-state table has, so the value would get a wrong "
    "period in the history: wait for the next batch of the table, or re-snapshot the table (`sluice snapshot "
    "start`); then start the replay again"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowValues:
    """Values of one column, in a Parquet file, with what is needed to find their rows.

    `names` are the columns that identify a row: the key if `keyed`, or else all columns except that of the values.

    The file has the columns `number` (a number that identifies the value), `order_key` and `value`. The column `named_<k>` has the row's
    value in the column names[k] as text, where bytes are hexadecimal digits. A NULL in `named_<k>` matches any value. `type_name` is the
    value's type in Spark SQL.
    """

    file: Path
    type_name: str
    names: Sequence[str]
    keyed: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayedTable:
    """A table whose rows get quarantined values back. `target` has a current-state table and is not a shard. `records` has the record that
    the last run stored for each table.
    """

    session: LakeSession
    owner: Owner
    target: TableTarget
    records: TableRecords
    storage_options: Mapping[str, str]

    def write(self, statement: str, folder: Path) -> None:
        """Executes a statement that commits to the table once, and updates the table's history from this commit. `folder` is for files
        that Spark reads. Raises TableError if the table has another owner, if its history lacks a batch, or if the log has a commit of
        another writer instead of the statement's commit.
        """
        table = self._opened()
        key = self._key_of_history(table)
        fix = HistoryFix(
            session=self.session,
            folder=folder,
            owner=self.owner,
            target=self.target,
            key=key,
            position=(table.snapshot.applied_order_key, self._newest_us() if key else 0),
            record=json.dumps({"sluice": 1, "kind": QUARANTINE_KIND, "replay": uuid.uuid4().hex}),
            storage_options=self.storage_options,
            records=self.records,
            fence=self.session.fence,
        )
        fix.do(lambda: self._commit(table, statement, fix.record))

    def refuse_gone(self, columns: Sequence[str]) -> None:
        """Raises TableError if the Delta table is missing or has another owner, or if it lacks one of the columns. The replay finds a row
        by the order key of its transaction and by its key columns. Without one of them, a value could be written into another row of the
        same transaction.
        """
        there = self._opened().snapshot.columns
        if gone := [name for name in columns if name.lower() not in there]:
            why = (
                f"the Delta table {self.target.path} has no column {gone[0]}, because the table was removed, or the column was renamed "
                "or dropped: re-snapshot the table instead (`sluice snapshot start`)"
            )
            raise TableError(self.owner.table, why, own=False)

    def _commit(self, table: DeltaTable, statement: str, record: str) -> None:
        """Commits the statement, reads the commit back, and syncs it to disk."""
        before = table.snapshot.version
        self.session.commit_without_version(record)
        self.session.commit(table.name, statement)
        table.refresh()
        table.own_commit(before, record)
        known = self.records.get(table.name)
        # An earlier replay may have committed and ended before its sync, so earlier commits are synced too. Commits up to `known.version`,
        # the version in the table's record, need no sync, because runs have synced them.
        on_disk = min(known.version, before) if known is not None else -1
        try:
            sync_commits(table.path, on_disk, table.snapshot.version)
        except OSError as error:
            why = (
                f"a commit to {table.path} could not be synced to disk: {error}; check the disk of the lake, and "
                "start the replay again"
            )
            raise TableError(table.name, why) from error

    def _key_of_history(self, table: DeltaTable) -> tuple[str, ...]:
        """Returns the key by which the history identifies rows. Returns () if there is no history to which the values must be written:
        conf/ configures none, or the history does not exist yet and will begin with the table's rows. Raises TableError if the history
        lacks changes.
        """
        owner, path = self.owner, self.target.history
        app_id = side_app_id_of(owner.destination, owner.ledger_id, KIND, owner.table)
        history = SideTable(owner.table, path, app_id, self.storage_options).open() if path else None
        if history is None or history.log is None:
            return ()
        key = kept_key(history)
        if not key or history.applied < table.snapshot.applied_order_key:
            raise TableError(owner.table, HISTORY_BEHIND, own=False)
        return key

    def _newest_us(self) -> int:
        """Returns the newest commit time of the table's rows, in µs since 1970."""
        newest = f"SELECT unix_micros(max({COMMIT_TIME})) FROM {sql_text.delta_path(self.target.path)}"
        ((found,),) = self.session.spark.sql(newest).collect()
        return int(found or 0)

    def _opened(self) -> DeltaTable:
        owner = self.owner
        table = DeltaTable(owner.table, self.target.path, app_id_of(owner), self.storage_options)
        table.refresh()
        refuse_others(owner, table.found(None, owner.to_text()))
        return table


def put_back(table: ReplayedTable, column: str, values: RowValues) -> frozenset[int]:
    """Writes each value into `column` of its row. The values have the type of the column. Returns the numbers of the values whose rows were
    found. Raises TableError if the table or its history cannot be written.
    """
    session, target = table.session, sql_text.delta_path(table.target.path)
    table.refuse_gone((column, *(values.names if values.keyed else ())))
    _view(session, values)
    on = _meets(session, target, column, values)
    chosen = _chosen(target, on, values)
    numbers = frozenset(int(row[0]) for row in session.spark.sql(f"SELECT {NUMBER_COLUMN} FROM ({chosen})").collect())
    if numbers:
        source = f"SELECT * FROM ({chosen}) WHERE {OCCURRENCE} = 1"
        assigned = f"UPDATE SET {sql_text.identifier(column)} = s.{VALUE_COLUMN}"
        table.write(
            f"MERGE INTO {target} AS t USING ({source}) AS s ON {on} WHEN MATCHED THEN {assigned}", values.file.parent
        )
    return numbers


def _view(session: LakeSession, values: RowValues) -> None:
    types = {NUMBER_COLUMN: "bigint", KEY_COLUMN: "bigint", VALUE_COLUMN: values.type_name}
    types |= dict.fromkeys(_named(values), "string")
    session.sql(parquet_view(VIEW, session.uploaded.location(values.file), types))


def _named(values: RowValues) -> list[str]:
    return [f"{NAMED}{index}" for index in range(len(values.names))]


def _meets(session: LakeSession, target: str, column: str, values: RowValues) -> str:
    """Returns the join condition, which is true if a quarantined value (`s`) may belong to a row of the table (`t`)."""
    (detail,) = session.spark.sql(f"DESCRIBE DETAIL {target}").collect()
    since = int(detail["properties"].get(RENAMED_AT, -1))
    met = [f"t.{sql_text.identifier(ORDER_KEY)} = s.{KEY_COLUMN}", f"s.{KEY_COLUMN} > {since}L"]
    if not values.keyed:
        quoted = f"t.{sql_text.identifier(column)}"
        met.append(f"({quoted} IS NULL OR {quoted} <=> s.{VALUE_COLUMN})")
    fields = session.spark.sql(f"SELECT * FROM {target}").schema
    types = {field.name.lower(): field.dataType.simpleString() for field in fields}
    for name, text in zip(values.names, _named(values), strict=True):
        if name.lower() in types:
            given = _typed(f"s.{text}", types[name.lower()])
            met.append(f"(s.{text} IS NULL OR t.{sql_text.identifier(name)} <=> {given})")
    return " AND ".join(met)


def _chosen(target: str, on: str, values: RowValues) -> str:
    """Returns the SELECT of the values whose rows can be identified.

    Values with the same order key and equal columns `named_<k>` (the columns that identify the row of a value) form a group. A group is
    selected if it has as many values as there are matching rows, and if all of its values are equal. The first value of a group has
    OCCURRENCE 1.
    """
    alike = f"PARTITION BY {', '.join([KEY_COLUMN, *_named(values)])}"
    ends = (f"{end}({VALUE_COLUMN}) OVER ({alike})" for end in ("min", "max"))
    occurrence = f"row_number() OVER ({alike} ORDER BY {NUMBER_COLUMN}) AS {OCCURRENCE}"
    facts = f"count(*) OVER ({alike}) AS together, {occurrence}, {' <=> '.join(ends)} AS same"
    rows = f"SELECT s.{NUMBER_COLUMN}, count(*) AS rows FROM {VIEW} AS s JOIN {target} AS t ON {on} GROUP BY s.{NUMBER_COLUMN}"
    groups = f"SELECT *, {facts} FROM {VIEW}"
    return f"SELECT g.* FROM ({groups}) AS g JOIN ({rows}) AS r USING ({NUMBER_COLUMN}) WHERE r.rows = g.together AND g.same"


def _typed(text: str, type_name: str) -> str:
    return f"unhex({text})" if type_name == "binary" else f"CAST({text} AS {type_name})"
