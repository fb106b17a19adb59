"""Reads the Delta tables of a destination and their owners, for `sluice lake`, and makes another ledger the owner of a table.

Runs refuse a table that is missing, restored, replaced, owned by another ledger, or ahead of the ledger (`spark_jobs.table_owner`). A table
is ahead of the ledger if it has changes of an epoch or delivery that the ledger does not know. A run never takes over a refused table. An
operator takes it over with `sluice lake accept`.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError, TableNotFoundError
from rich.table import Table

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.destination_files import LakeTables, run_lock_fence
from sluice.cdc_engine.instance.discovery import discover
from sluice.cdc_engine.table_meta.table_list.reading import read_tables
from sluice.console.source.query import require_destination
from sluice.console.toolchain.errors import SetupError
from sluice.orchestration.base.lake_settings import storage_options, target
from sluice.orchestration.run.table_locks import table_locks_of, written_target
from sluice.spark_jobs.errors import TableError, unreadable_log
from sluice.spark_jobs.fence import Fence
from sluice.spark_jobs.side_tables.change_log import KIND as LOG
from sluice.spark_jobs.side_tables.history import KIND as HISTORY
from sluice.spark_jobs.side_tables.side_table import is_side_table, side_app_id_of
from sluice.spark_jobs.staged_batch import ORDER_KEY, app_id_of, epoch_of
from sluice.spark_jobs.table_locks import Writing
from sluice.spark_jobs.table_owner import Owner
from sluice.spark_jobs.tables.delta_table import VECTORS_FEATURE, physical_names
from sluice.spark_jobs.tables.marked_rows import marked_rows
from sluice.spark_jobs.tables.own_properties import set_own_properties
from sluice.spark_jobs.targets import shards
from sluice.spark_jobs.targets.shards import Shard


@dataclasses.dataclass(frozen=True, kw_only=True)
class LakeTable:
    """A table of the lake, as its Delta log describes it. `owner` is None if the log names no owner. `delivery` is the highest delivery
    number in the newest commits of the owner's ledger. `epoch` is the epoch of the highest order key in the owner's Delta transactions. In
    a current-state table that no shards share, the order keys of rows count too. Both numbers are 0 if there is none.
    """

    name: str
    path: str
    table_id: str
    version: int
    owner: Owner | None
    epoch: int
    delivery: int
    columns: frozenset[str] = frozenset()

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "columns": sorted(self.columns)}


class DestinationLake:
    """The Delta tables of one destination. All methods except `rows` raise SetupError if a table's log cannot be read or written."""

    def __init__(self, config: SluiceConfig, destination: str) -> None:
        self._config, self._destination = config, destination
        require_destination(config, destination)

    def names(self) -> list[str]:
        """Returns the destination's tables as "database.table". If the engine has not recorded any tables yet, reads them from the
        source.
        """
        directory = self._config.destination_dir(self._destination)
        tables = read_tables(directory) or discover(self._config, self._destination)
        return sorted(table.name for table in tables)

    def tables(self) -> list[LakeTable]:
        """Describes those of the destination's tables that exist in the lake."""
        return [table for name in self.names() if (table := self.table(name)) is not None]

    def table(self, name: str) -> LakeTable | None:
        path = self._path(name)
        try:
            log = self._open(path)
            if log is None:
                return None
            if self._has_current_state_table(name):
                return _described(name, path, log, self._shard(name))
            return _described_side_table(name, path, log)
        except (DeltaError, OSError) as error:
            raise SetupError(unreadable_log(path, error)) from error

    def highest_epoch(self) -> int:
        """Returns the highest epoch of the tables that exist in the lake, or 0 if no table exists."""
        return max((table.epoch for table in self.tables()), default=0)

    def take_over(self, ledger_id: str) -> None:
        """Makes a ledger the owner of all of the destination's tables that exist in the lake. Leaves out tables that the ledger cannot own
        (`undivided`), which the next run refuses. The caller must hold the run lock.
        """
        for table in self.tables():
            if not self.undivided(table, ledger_id):
                self.own(table, ledger_id)

    def undivided(self, table: LakeTable, ledger_id: str) -> str:
        """Returns why a ledger cannot own the table, and what to do: the Delta table's rows are not divided into shards as conf/ says, so a
        new owner would endanger the rows of other source tables. Returns "" if the ledger can own the table.
        """
        log = self._log(table.path)
        if log is None or not self._has_current_state_table(table.name):
            return ""
        owner = Owner(ledger_id=ledger_id, destination=self._destination, table=table.name).to_text()
        return shards.undivided(self._shard(table.name), log.metadata().configuration, table.path, owner)

    def own(self, table: LakeTable, ledger_id: str) -> None:
        """Makes a ledger the owner of a table. Records the table's current id and version, so that the next run expects this state of the
        table. The caller must hold the run lock.
        """
        owner = Owner(ledger_id=ledger_id, destination=self._destination, table=table.name)
        if self._log(table.path) is None:
            raise SetupError(f"the Delta table {table.path} was removed while the command ran: run the command again")
        if self._has_current_state_table(table.name):
            self._write_owner(table, owner)
        self._own_side_tables(table.name, ledger_id)
        if self._has_current_state_table(table.name):
            self._records.keep({table.name: (table.table_id, self._log(table.path).version())})

    def _write_owner(self, table: LakeTable, owner: Owner) -> None:
        """Writes the owner into the properties of the Delta table. If several destinations write the table, holds the table lock during the
        write. For a shard, also writes where the table locks are.
        """
        config, destination = self._config, self._destination
        locks, whose = table_locks_of(config, destination), written_target(config, destination)(table.name)
        wanted = shards.new_properties(whose.shard, owner.to_text())
        writing, fence = Writing(who=f"`sluice lake` for {destination}"), self._fence
        try:
            with locks.at(table.name, table.path, writing, fence, shared=whose.shared):
                log = self._open(table.path)
                has = log.metadata().configuration
                if any(has.get(name) != value for name, value in wanted.items()):
                    options = storage_options(config.storage_options)
                    set_own_properties(log, table.path, wanted, options, check=lambda: fence.check(table.name))
        except (DeltaError, OSError, TableError) as error:
            raise SetupError(
                f"the owner of the Delta table {table.path} cannot be written: {error}; check the disk or "
                "object store of the lake"
            ) from error

    def _own_side_tables(self, name: str, ledger_id: str) -> None:
        """Makes a ledger the owner of a table's change log and history. Changes the names of these Delta tables, because their names
        contain the owner. If the change log or the history is missing, removes its record, so that the next run creates the missing one
        again.
        """
        records = self._records
        for kind, path in self._side_tables(name):
            try:
                log = self._open(path) if path else None
                if log is None:
                    records.forget_side_table(name, kind)
                    continue
                wanted, has = side_app_id_of(self._destination, ledger_id, kind, name), str(log.metadata().name or "")
                if not is_side_table(has, kind):
                    raise SetupError(
                        f"the Delta table {path} is not a change log or history that Sluice made for {name}: "
                        "move this table away, then run the command again"
                    )
                if has != wanted:
                    self._fence.check(name)
                    log.alter.set_table_name(wanted)
                    log = self._open(path)
                records.keep_side_table(name, kind, (str(log.metadata().id), log.version()))
            except (DeltaError, OSError, TableError) as error:
                raise SetupError(
                    f"the owner of the Delta table {path} cannot be written: {error}; check the disk or "
                    "object store of the lake"
                ) from error

    def forget(self, name: str) -> None:
        """Removes the record of a missing table, so that the next run creates the table again."""
        self._records.forget(name)

    def left(self, name: str) -> tuple[str, int] | None:
        """Returns (id, version) of a table's Delta table after the last run, or None if no run has written the table."""
        if self._has_current_state_table(name):
            return self._records.get(name)
        kept = self._records.side_tables(name)
        return next(
            (kept[kind] for kind, path in self._side_tables(name) if path == self._path(name) and kind in kept), None
        )

    def commits(self, path: str) -> list[dict[str, Any]]:
        """Returns Delta's history of a table, newest commit first. Raises SetupError if the log cannot be read."""
        log = self._log(path)
        try:
            return [] if log is None else list(log.history())
        except (DeltaError, OSError) as error:
            raise SetupError(unreadable_log(path, error)) from error

    def rows(self, path: str, version: int | None = None) -> int | None:
        """Returns the number of rows of a Delta table in a version, or in the newest version if `version` is None. Rows that deletion
        vectors remove do not count. Returns None if the table does not exist or cannot be read, or if its log does not contain the number.
        """
        try:
            log = self._open(path)
            if log is None:
                return None
            if version is not None:
                log.load_as_version(version)
            counts: Any = pa.table(log.get_add_actions(flatten=True))["num_records"]
            vectors = VECTORS_FEATURE in (log.protocol().reader_features or ())
        except (DeltaError, OSError):
            return None
        marked = marked_rows(path, log.version()) if vectors else 0
        return None if marked is None or counts.null_count else int(pc.sum(counts).as_py() or 0) - marked

    @property
    def _fence(self) -> Fence:
        """The fence of the run lock, which the caller must hold."""
        return Fence(run_lock_fence(self._config.destination_dir(self._destination)))

    @property
    def _records(self) -> LakeTables:
        return LakeTables(self._config.destination_dir(self._destination))

    def _path(self, name: str) -> str:
        database, _, table = name.partition(".")
        return self._config.kept_path(self._destination, database, table)

    def _shard(self, name: str) -> Shard | None:
        return target(self._config, self._destination, name).shard

    def _has_current_state_table(self, name: str) -> bool:
        return self._config.destinations[self._destination].table(*name.split(".", 1)).current_state

    def _side_tables(self, name: str) -> list[tuple[str, str]]:
        """Returns (kind, path) of a table's change log and history. The path is empty if conf/ does not enable this kind of table."""
        database, _, table = name.partition(".")
        return list(zip((LOG, HISTORY), self._config.side_table_paths(self._destination, database, table), strict=True))

    def _log(self, path: str) -> Any:
        """Opens a Delta table, or returns None if it does not exist. Raises SetupError if its log cannot be read."""
        try:
            return self._open(path)
        except (DeltaError, OSError) as error:
            raise SetupError(unreadable_log(path, error)) from error

    def _open(self, path: str) -> Any:
        options = storage_options(self._config.storage_options)
        try:
            return deltalake.DeltaTable(path, storage_options=options or None)
        except TableNotFoundError:
            return None


def _described(name: str, path: str, log: Any, shard: Shard | None) -> LakeTable:
    metadata = log.metadata()
    text = metadata.configuration.get(shards.owner_property(shard), "")
    owner = Owner.from_text(text) if text else None
    applied = log.transaction_version(app_id_of(owner)) if owner else None
    highest = max(applied if applied is not None else -1, _highest_key(log) if shard is None else -1)
    return LakeTable(
        name=name,
        path=path,
        table_id=str(metadata.id),
        version=log.version(),
        owner=owner,
        epoch=epoch_of(highest) if highest >= 0 else 0,
        delivery=_highest_delivery(log, owner),
        columns=frozenset(field.name.lower() for field in log.schema().fields),
    )


def _described_side_table(name: str, path: str, log: Any) -> LakeTable:
    """Describes a history or change log whose source table has no current-state table. Reads the owner from the name in the Delta table's
    metadata.
    """
    app_id = str(log.metadata().name or "")
    parts = app_id.split("/", 4)
    ours = len(parts) == SIDE_PARTS and parts[0] == "sluice"
    owner = Owner(ledger_id=parts[2], destination=parts[1], table=parts[4]) if ours else None
    applied = log.transaction_version(app_id) if ours else None
    return LakeTable(
        name=name,
        path=path,
        table_id=str(log.metadata().id),
        version=log.version(),
        owner=owner,
        epoch=epoch_of(applied) if applied is not None and applied >= 0 else 0,
        delivery=_highest_delivery(log, owner),
    )


def _highest_key(log: Any) -> int:
    """Returns the greatest order key in the statistics of a Delta table's files, or -1 if no file has statistics of the order key."""
    files: Any = pa.table(log.get_add_actions(flatten=True))
    column = f"max.{physical_names(log).get(ORDER_KEY, ORDER_KEY)}"
    found = pc.max(files[column]).as_py() if column in files.column_names else None
    return -1 if found is None else int(found)


def _highest_delivery(log: Any, owner: Owner | None) -> int:
    """Returns the highest delivery number that the owner's ledger has written into the newest COMMITS_LOOKED_AT commits of the table, or 0
    if these commits have none. Reads no older commits, because delivery numbers rise. Reads more than one commit, because commits of
    maintenance and of other writers have no delivery number.
    """
    highest = 0
    for commit in log.history(COMMITS_LOOKED_AT):
        try:
            record = json.loads(str(commit.get("userMetadata") or "{}"))
        except ValueError:
            continue
        if owner is not None and isinstance(record, dict) and record.get("ledger") == owner.ledger_id:
            highest = max(highest, int(record.get("delivery", 0)))
    return highest


COMMITS_LOOKED_AT = 100
# The Delta name of a change log or history has this many parts with slashes between them: sluice/destination/ledger/kind/table.
SIDE_PARTS = 5


def render(tables: list[LakeTable], ledger_id: str) -> Table:
    """Formats the tables and their owners, one line each."""
    shown = Table("table", "version", "owner", "epoch", "path")
    for table in tables:
        owner = table.owner
        whose = (
            "nobody"
            if owner is None
            else "this ledger"
            if owner.ledger_id == ledger_id
            else f"{owner.destination} ({owner.ledger_id})"
        )
        shown.add_row(table.name, str(table.version), whose, str(table.epoch), table.path)
    return shown
