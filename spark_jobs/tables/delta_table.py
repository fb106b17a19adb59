"""Reads the state of a Delta table from its log, and generates the statements that create the table and add columns. `merge` uses this
module.

deltalake reads the log in milliseconds. Spark would need a separate job for each question.
"""

from __future__ import annotations

import contextlib
import dataclasses
import decimal
from collections.abc import Iterable, Mapping
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import exceptions

from sluice.batch_manifest.values import LakeColumn
from sluice.spark_jobs import sql_text
from sluice.spark_jobs.errors import LostCommitError, TableError, unreadable_log
from sluice.spark_jobs.staged_batch import COMMIT_TIME, DELETED, OPERATION, ORDER_KEY, epoch_of
from sluice.spark_jobs.table_owner import FoundTable, TableRecord
from sluice.spark_jobs.tables.commit_record import CommitCounts, counts_of, is_another_try, own_commit
from sluice.spark_jobs.tables.local_log import PHYSICAL_NAME, LocalLog, parsed_log, read_local_log
from sluice.spark_jobs.tables.marked_rows import marked_rows
from sluice.spark_jobs.targets import layout, shards
from sluice.spark_jobs.targets.report import TableTarget
from sluice.spark_jobs.targets.shards import Shard

METADATA_COLUMNS = (
    LakeColumn(name=ORDER_KEY, type="bigint"),
    LakeColumn(name=COMMIT_TIME, type="timestamp"),
    LakeColumn(name=OPERATION, type="string"),
)
DELETED_COLUMN = LakeColumn(name=DELETED, type="boolean")
VECTORS_PROPERTY = "delta.enableDeletionVectors"
MAPPING_PROPERTY = "delta.columnMapping.mode"
MAPPING_METADATA = "delta.columnMapping."
VECTORS_FEATURE = "deletionVectors"
# Delta's feature for timestamps without a time zone. A table without this feature must get it before it gets such a column.
LOCAL_TIMES_FEATURE = "timestampNtz"
# Delta accepts these characters in column names only if columns are mapped by name.
UNMAPPED_CHARACTERS = frozenset(" ,;{}()\n\t=")
STATISTICS_COLUMNS = 32  # By default Delta stores the minimum and maximum of this many leading columns.
# A checkpoint is made after this many commits. Spark makes a checkpoint in a separate job, so Delta's default of 10 would cost too much for
# small commits.
CHECKPOINT_COMMITS = 50


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeltaSnapshot:
    """The state of a table at one version.

    - `columns` has a pair of name and Spark type for each lower-case name, because Spark ignores the case of names.
    - `ruled` are columns with generated values or constraints. With such columns, Spark merges the table, not `deltalake`.
    - `physical` has the physical name of each column, by lower-case name. Statistics use physical names. If the table has no column
      mapping, `physical` is empty.
    """

    version: int
    columns: Mapping[str, tuple[str, str]]
    properties: Mapping[str, str]
    applied_order_key: int
    table_id: str = ""
    features: frozenset[str] = frozenset()
    partitions: tuple[str, ...] = ()
    writer_version: int = 0
    ruled: tuple[str, ...] = ()
    physical: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def exists(self) -> bool:
        return self.version >= 0

    @property
    def schema(self) -> tuple[tuple[str, str], ...]:
        return tuple(self.columns.values())


NO_TABLE = DeltaSnapshot(version=-1, columns={}, properties={}, applied_order_key=-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reach:
    """The number of files of a table that a merge may read, and the rows and bytes in these files. `rows` includes rows that deletion
    vectors delete, but not the rows of files whose row count is unknown.
    """

    files: int = 0
    rows: int = 0
    bytes: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableSize:
    """The size of a table according to its log. `rows` does not include rows that deletion vectors delete, and is None if the log does not
    have the number.
    """

    rows: int | None
    bytes: int


class DeltaTable:
    """One table of the lake, read from its log. `app_id` is the app id of the table's transactions. `shard` is the shard that the caller
    writes, if the table has shards. With `quick`, the module `local_log` reads the log if it can, and deltalake opens the table only when
    `log` is needed.
    """

    def __init__(
        self,
        name: str,
        path: str,
        app_id: str,
        storage_options: Mapping[str, str],
        shard: Shard | None = None,
        *,
        quick: bool = False,
    ) -> None:
        self.name, self.path, self.shard = name, path, shard
        self._app_id = app_id
        self.storage_options = dict(storage_options)
        self._log: Any = None
        self._parsed_log = parsed_log(path) if quick else None
        self._reader: Any = None  # A LocalLog, or deltalake's table.
        self._read: tuple[int, Any] = (-1, None)
        self.snapshot = NO_TABLE

    def refresh(self) -> DeltaSnapshot:
        """Reads what was committed since the last call. Returns the newest snapshot."""
        read = read_local_log(self._parsed_log) if self._parsed_log else None
        if read is None and not self._refresh_log():
            return self.snapshot
        self._reader = read or self._log
        self.snapshot = _snapshot(self._reader, self._app_id)
        return self.snapshot

    def _refresh_log(self) -> bool:
        """Opens the newest version with deltalake. Returns whether the table exists."""
        try:
            if self._log is None:
                self._log = deltalake.DeltaTable(self.path, storage_options=self.storage_options or None)
            else:
                self._log.update_incremental()
        except exceptions.TableNotFoundError:
            return False
        except (exceptions.DeltaError, OSError) as error:
            raise TableError(self.name, unreadable_log(self.path, error)) from error
        return True

    def before(self, order_key: int) -> DeltaSnapshot:
        """Returns the newest version whose last merged order key is below `order_key`, or `NO_TABLE` if there is none.

        The last merged order key never falls. So few versions are read: first backwards from the newest version in growing steps, then by
        bisection.
        """
        if not self.snapshot.exists or self.snapshot.applied_order_key < order_key:
            return self.snapshot
        # At version `low`, the last merged order key is below `order_key`. At version `high` it is not.
        found, low, high, step = NO_TABLE, -1, self.snapshot.version, 1
        while high - low > 1:
            version = max(high - step, 0) if low < 0 else (low + high) // 2
            there = self._at(version)
            if there.applied_order_key < order_key:
                found, low = there, version
            else:
                high, step = version, step * 2
        return found

    def at(self, version: int) -> DeltaTable:
        """Returns the table at a version. Raises TableError if the version can no longer be read."""
        found = DeltaTable(self.name, self.path, self._app_id, self.storage_options, self.shard)
        found._log = found._reader = self._log_at(version)
        found.snapshot = _snapshot(found._log, self._app_id)
        return found

    def _at(self, version: int) -> DeltaSnapshot:
        return _snapshot(self._log_at(version), self._app_id)

    def _log_at(self, version: int) -> Any:
        try:
            return deltalake.DeltaTable(self.path, version=version, storage_options=self.storage_options or None)
        except (exceptions.DeltaError, OSError) as error:
            raise TableError(
                self.name,
                f"version {version} of the Delta table {self.path} cannot be read any more: {error}. Files of "
                "this version were removed, or the disk or object store does not answer: check the disk or object store, or "
                "re-snapshot the table with `sluice snapshot start`",
            ) from error

    def found(self, record: TableRecord | None, owner: str = "") -> FoundTable:
        """Returns the table's state in the form that `table_owner` checks. `record` is the record that the last run stored. `owner` is the
        expected owner as text.
        """
        snapshot, applied = self.snapshot, self.snapshot.applied_order_key
        return FoundTable(
            exists=snapshot.exists,
            path=self.path,
            table_id=snapshot.table_id,
            version=snapshot.version,
            owner=snapshot.properties.get(shards.owner_property(self.shard), ""),
            applied_epoch=-1 if applied < 0 else epoch_of(applied),
            written_before=ORDER_KEY in snapshot.columns and not shards.owners(snapshot.properties),
            confined=self.shard is not None,
            mismatch=shards.mismatch(self.shard, snapshot.properties, self.path, owner),
            commits=self.commits_after(record.version - 1) if record else (),
            columns=snapshot.columns,
        )

    def commits_after(self, version: int) -> list[dict[str, Any]]:
        """Returns Delta's history of the versions after `version`, the newest first."""
        count = self.snapshot.version - version
        return list(self._reader.history(count)) if self.snapshot.exists and count > 0 else []

    @property
    def row_count(self) -> int:
        """The number of rows according to the files' statistics. The number includes rows that deletion vectors delete."""
        if not self.snapshot.exists:
            return 0
        return int(pc.sum(self._files()["num_records"]).as_py() or 0)

    @property
    def size(self) -> TableSize | None:
        """The size of the table, or None if the table does not exist."""
        if not self.snapshot.exists:
            return None
        files = self._files()
        marked = self._marked_rows() if VECTORS_FEATURE in self.snapshot.features else 0
        counted = marked is not None and not files["num_records"].null_count
        rows = int(pc.sum(files["num_records"]).as_py() or 0) - (marked or 0) if counted else None
        return TableSize(rows=rows, bytes=int(pc.sum(files["size_bytes"]).as_py() or 0))

    def _marked_rows(self) -> int | None:
        if isinstance(self._reader, LocalLog):
            return self._reader.marked_rows()
        return marked_rows(self.path, self.snapshot.version)

    @property
    def is_read_quickly(self) -> bool:
        """Whether `local_log` has read the snapshot. Otherwise deltalake has read it."""
        return isinstance(self._reader, LocalLog)

    @property
    def arrow_schema(self) -> pa.Schema:
        """The table's columns, with the metadata of their fields."""
        return pa.schema(self._reader.schema().to_arrow())

    @property
    def log(self) -> Any:
        """The table at the version of the snapshot, opened with deltalake."""
        if self.is_read_quickly and (self._log is None or self._log.version() != self.snapshot.version):
            self._log = self._log_at(self.snapshot.version)
        return self._log

    def reach(self, column: str, low: Any, high: Any) -> Reach:
        """Returns how many files may have a value of `column` from `low` to `high` according to their statistics, and the rows and bytes of
        these files. Counts all files if there are no statistics.
        """
        if not self.snapshot.exists:
            return Reach()
        files = self._met(self._files(self._in_files(column)), self._in_files(column), low, high)
        rows, size_bytes = (int(pc.sum(files[name]).as_py() or 0) for name in ("num_records", "size_bytes"))
        return Reach(files=files.num_rows, rows=rows, bytes=size_bytes)

    def scanned(self, column: str, low: Any, high: Any) -> CommitCounts:
        """Returns how many files a merge of keys from `low` to `high` will read, and how many it will skip. Call this before the merge."""
        files = self._files(self._in_files(column))
        met: int = self._met(files, self._in_files(column), low, high).num_rows
        return CommitCounts(files_scanned=met, files_pruned=files.num_rows - met)

    def _files(self, column: str = "") -> Any:
        """Returns the files of the snapshot, with the bounds of `column`, a name from `_in_files`. deltalake lists the files once per
        version, with the bounds of all columns, because listing takes about 50 µs per file. Raises TableError if the table does not exist.
        """
        if not self.snapshot.exists:
            raise TableError(
                self.name,
                f"no Delta table exists at {self.path}: the table was removed, or is not created yet; Sluice "
                "tries again",
            )
        if isinstance(self._reader, LocalLog):
            return self._reader.get_add_actions(flatten=True, column=column)
        version, files = self._read
        if version != self.snapshot.version:
            version, files = self._read = self.snapshot.version, pa.table(self._reader.get_add_actions(flatten=True))
        return files

    def _in_files(self, column: str) -> str:
        """Returns the name of a column in statistics: the physical name, which stays the same when the column is renamed."""
        return self.snapshot.physical.get(column.lower(), column)

    @staticmethod
    def _met(files: Any, column: str, low: Any, high: Any) -> Any:
        """Returns the files that may have a value from `low` to `high`. `column` is the name in statistics."""
        lowest, highest = f"min.{column}", f"max.{column}"
        if low is not None and high is not None and {lowest, highest} <= set(files.column_names):
            # If a bound cannot be converted to the type of the statistics, no file is skipped.
            with contextlib.suppress(pa.ArrowException, TypeError, ValueError, ArithmeticError):
                bounds = (_as_bound(value, files[lowest].type) for value in (low, high))
                return files.filter(_may_meet(files[lowest], files[highest], *bounds))
        return files

    def last_commit(self) -> CommitCounts:
        """Returns the counts of the newest commit. Call `refresh` first."""
        return counts_of(self._reader.history(1)[0])

    def own_commit(self, before: int, user_metadata: str, app_id: str = "", version: int = -1) -> CommitCounts:
        """Finds the commit that has `user_metadata` and is after the version `before`, and returns its counts. Call `refresh` first. If the
        commit records a transaction of Delta (`txn`), `app_id` and `version` are those of the transaction. Returns empty counts if another
        attempt made the commit, or if a commit without a transaction had nothing to change.

        Raises LostCommitError if a commit by another program replaced the commit: the log then has neither this commit nor a commit of
        another attempt. Spark drops a commit whose transaction it remembers, but it may remember a transaction that is not in the log. So
        only the log shows whether another attempt made the commit.
        """
        commits = self.commits_after(before)
        if mine := own_commit(commits, user_metadata):
            return counts_of(mine)
        done = self._reader.transaction_version(app_id) if app_id and self.snapshot.exists else None
        # The transaction version does not prove that another attempt made the commit, because Spark's checksum file (.crc) may name a
        # transaction that the commit itself does not have. So the commits are checked too.
        another = any(is_another_try(each, user_metadata) for each in commits) if app_id else False
        if (app_id and (done is None or done < version)) or (commits and not another):
            raise LostCommitError(self.name, self.path, before)
        return CommitCounts()


def _snapshot(log: Any, app_id: str) -> DeltaSnapshot:
    applied, protocol = log.transaction_version(app_id), log.protocol()
    fields = [(field.name, sql_text.spark_type(field.type)) for field in log.schema().fields]
    return DeltaSnapshot(
        version=log.version(),
        columns={name.lower(): (name, type_name) for name, type_name in fields},
        properties=dict(log.metadata().configuration),
        applied_order_key=-1 if applied is None else applied,
        table_id=str(log.metadata().id),
        features=frozenset(protocol.writer_features or ()) | frozenset(protocol.reader_features or ()),
        writer_version=protocol.min_writer_version,
        partitions=tuple(log.metadata().partition_columns),
        ruled=tuple(field.name for field in log.schema().fields if _has_rule(field)),
        physical=physical_names(log),
    )


def physical_names(log: Any) -> dict[str, str]:
    """Returns the physical name of each top-level column, by lower-case name, if the table has column mapping. Files and statistics use
    physical names. Returns {} for other tables.
    """
    named = {field.name.lower(): (field.metadata or {}).get(PHYSICAL_NAME) for field in log.schema().fields}
    return {name: str(physical) for name, physical in named.items() if physical}


def _has_rule(field: Any) -> bool:
    names = [name for name in field.metadata or {} if not name.startswith(MAPPING_METADATA) and name != "comment"]
    return bool(names) or not field.nullable


def _as_bound(value: Any, kind: Any) -> Any:
    """Converts a value of a manifest, so that it can be compared with statistics of the type `kind`. For example, a BIGINT UNSIGNED becomes
    a decimal, because the value may exceed the range of int64.
    """
    if pa.types.is_decimal(kind) and isinstance(value, int | str):
        return pa.scalar(decimal.Decimal(value), kind)
    return value


def _may_meet(lowest: Any, highest: Any, low: Any, high: Any) -> Any:
    """Returns a mask of the ranges from `lowest` to `highest` that may overlap the range from `low` to `high`. An unknown range may
    overlap.
    """
    apart = pc.or_kleene(pc.greater(lowest, high), pc.less(highest, low))
    return pc.invert(pc.fill_null(apart, False))


def wanted_columns(source: Iterable[LakeColumn], *, soft_deletes: bool) -> tuple[LakeColumn, ...]:
    """Returns the columns of the Delta table. The source's columns come before Sluice's, because Delta collects statistics only for the
    leading columns.
    """
    return (*source, *METADATA_COLUMNS, *((DELETED_COLUMN,) if soft_deletes else ()))


def schema_statements(
    table: DeltaTable, target: TableTarget, wanted: tuple[LakeColumn, ...], key: tuple[str, ...], owner: str
) -> list[str]:
    """Returns the statements that create the table, or that give an existing table the columns, properties and clustering that it lacks.
    Returns no statement if the existing table lacks nothing. Columns that the source dropped stay.

    Raises TableError if a column has another type in the table, or if two columns, including Sluice's own, have the same name apart from
    letter case. Also raises it if the path of a new table clashes with that of another table, or if the table cannot have the partitions or
    clustering of conf/.
    """
    _refuse_clashes(table.name, wanted)
    if table.shard != target.shard:
        raise ValueError(f"{table.name} is read as the shard {table.shard} and written as the shard {target.shard}")
    if not table.snapshot.exists:
        target.refuse_clash(table.name)
        return [_create(table.name, target, wanted, key, owner)]
    layout.refuse_other_partitions(
        *(table.name, target.path, target.layout, table.snapshot.partitions), shared=target.shared
    )
    changes = [*_property_changes(table, target, wanted, owner), *_added_columns(table, target, wanted)]
    return [*changes, *_clustering(table, target, wanted)]


def _refuse_clashes(name: str, wanted: tuple[LakeColumn, ...]) -> None:
    lowered = [column.name.lower() for column in wanted]
    for column in wanted:
        if lowered.count(column.name.lower()) > 1:
            raise TableError(
                name,
                (
                    f"two columns of the Delta table, including Sluice's own, would have the name {column.name}, because Delta "
                    "ignores letter case; exclude the column (`column_exclude`)"
                ),
            )


def _create(name: str, target: TableTarget, wanted: tuple[LakeColumn, ...], key: tuple[str, ...], owner: str) -> str:
    columns = ", ".join(f"{sql_text.identifier(column.name)} {column.type}" for column in wanted)
    properties = pairs(new_properties(target, wanted, key, owner))
    laid = layout.clause(name, target.layout, wanted)
    return f"CREATE TABLE IF NOT EXISTS {sql_text.delta_path(target.path)} ({columns}) USING delta{laid} TBLPROPERTIES ({properties})"


def new_properties(
    target: TableTarget, wanted: tuple[LakeColumn, ...], key: tuple[str, ...], owner: str
) -> dict[str, str]:
    """Returns the properties of a new table with these columns."""
    return {
        **shards.new_properties(target.shard, owner),
        VECTORS_PROPERTY: str(target.deletion_vectors).lower(),
        "delta.checkpointInterval": str(CHECKPOINT_COMMITS),
        "delta.dataSkippingNumIndexedCols": str(_statistics_columns(wanted, (*key, *target.layout.cluster_by))),
        **layout.properties(target.layout),
        **({MAPPING_PROPERTY: "name"} if needs_mapping(wanted) else {}),
    }


def _statistics_columns(wanted: tuple[LakeColumn, ...], key: tuple[str, ...]) -> int:
    """Returns how many leading columns get statistics: at least all columns up to the last key column, because Delta can skip files only
    if the key has statistics.
    """
    indices = [index for index, column in enumerate(wanted, start=1) if column.name in key]
    return max([STATISTICS_COLUMNS, *indices])


def _property_changes(table: DeltaTable, target: TableTarget, wanted: tuple[LakeColumn, ...], owner: str) -> list[str]:
    properties = table.snapshot.properties
    whose = shards.new_properties(target.shard, owner)
    changes = {name: value for name, value in whose.items() if properties.get(name) != value}
    if (properties.get(VECTORS_PROPERTY, "false") == "true") != target.deletion_vectors:
        changes[VECTORS_PROPERTY] = str(target.deletion_vectors).lower()
    changes |= layout.changed_properties(target.layout, properties)
    if needs_mapping(wanted) and properties.get(MAPPING_PROPERTY, "none") == "none":
        changes[MAPPING_PROPERTY] = "name"
    if any(column.type == "timestamp_ntz" for column in wanted) and LOCAL_TIMES_FEATURE not in table.snapshot.features:
        changes[f"delta.feature.{LOCAL_TIMES_FEATURE}"] = "supported"
    return [set_properties(target.path, changes)] if changes else []


def _added_columns(table: DeltaTable, target: TableTarget, wanted: tuple[LakeColumn, ...]) -> list[str]:
    added = []
    for column in wanted:
        name, type_name = table.snapshot.columns.get(column.name.lower(), ("", ""))
        if not name:
            added.append(f"{sql_text.identifier(column.name)} {column.type}")
        elif type_name != column.type and not shards.holds(target.shard, type_name, column.type):
            raise TableError(
                table.name,
                f"column {column.name} is {column.type} in the source and {type_name} in the Delta table "
                f"{target.path}{shards.way_to_one_type(target.shard, type_name, column.type)}",
            )
    return [f"ALTER TABLE {sql_text.delta_path(target.path)} ADD COLUMNS ({', '.join(added)})"] if added else []


def _clustering(table: DeltaTable, target: TableTarget, wanted: tuple[LakeColumn, ...]) -> list[str]:
    """Returns the statements that change the clustering. Execute these statements after columns have been added, because a new column may
    be a clustering column.
    """
    layout.clause(table.name, target.layout, wanted)  # Raises TableError for a column that does not exist.
    change = layout.cluster_change(target.layout, table.snapshot.properties)
    if change is None:
        return []
    clause, properties = change
    return [f"ALTER TABLE {sql_text.delta_path(target.path)} {clause}", set_properties(target.path, properties)]


def needs_mapping(wanted: tuple[LakeColumn, ...]) -> bool:
    return any(UNMAPPED_CHARACTERS & set(column.name) for column in wanted)


def set_properties(path: str, properties: Mapping[str, str]) -> str:
    return f"ALTER TABLE {sql_text.delta_path(path)} SET TBLPROPERTIES ({pairs(properties)})"


def pairs(properties: Mapping[str, str]) -> str:
    return ", ".join(f"{sql_text.text(name)} = {sql_text.text(value)}" for name, value in properties.items())
