"""Finds what a Delta table lacks compared with its state after the last run, and why runs refuse the table, for `sluice lake accept` and
`sluice schema resume`.

Reads only Delta logs, and no rows. Positions and changes come from the records in commits, and row counts from the statistics of files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from sluice.batch_manifest.values import LakeColumn
from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.destination_files import LakeTables, read_ledger
from sluice.cdc_engine.errors import ActRefusedError
from sluice.cdc_engine.sink.column_filter import ColumnFilter
from sluice.cdc_engine.states import OF_THE_LAKE
from sluice.cdc_engine.table_meta.table_list.reading import read_tables
from sluice.console.lake.tables import DestinationLake, LakeTable
from sluice.orchestration.base.lake_settings import lake_error_line, storage_options
from sluice.orchestration.run.table_locks import written_target
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.side_tables.alone import kinds_of, refuse_unless_left
from sluice.spark_jobs.side_tables.removed_columns import refuse_removed
from sluice.spark_jobs.side_tables.side_table import SideTable, side_app_id_of
from sluice.spark_jobs.staged_batch import app_id_of
from sluice.spark_jobs.table_owner import (
    LakeWriter,
    Owner,
    TableRecord,
    is_by,
    refuse_unless_ours,
    removed_columns,
    rewrites,
)
from sluice.spark_jobs.tables.commit_record import CommittedInterval
from sluice.spark_jobs.tables.delta_table import DeltaTable, wanted_columns
from sluice.spark_jobs.tables.lost_commits import LostCommits, lost_commits, newest_merged
from sluice.spark_jobs.targets.report import TableTarget


def refuse_unless_left_by_runs(config: SluiceConfig, destination: str, name: str, state: str) -> None:
    """Raises ActRefusedError if the table stopped because a run refused its Delta table, and the next run would refuse the Delta table
    again. `state` is the state of the stopped table. Without this check, `sluice schema resume` would report success, and the next change
    would stop the table again.
    """
    if state in OF_THE_LAKE and (why := _why_refused(config, destination, name)):
        raise ActRefusedError(
            f"{name} of {destination} is not resumed: the Delta table is still in the state in which the "
            f"table stopped. {why}"
        )


def _why_refused(config: SluiceConfig, destination: str, name: str) -> str:
    """Returns why the next run would refuse the Delta table, and what to do. Returns "" if the run would merge into the table."""
    directory = config.destination_dir(destination)
    ledger, records = read_ledger(directory), LakeTables(directory)
    owner = Owner(ledger_id=ledger.ledger_id, destination=destination, table=name)
    writer = LakeWriter(owner=owner, epoch=ledger.epoch, delivery=ledger.next_delivery)
    target, options = written_target(config, destination)(name), storage_options(config.storage_options)
    captured = _captured_columns(config, destination, name)
    try:
        if target.current_state:
            wanted = wanted_columns(captured, soft_deletes=target.deletes == "soft") if captured else ()
            needs = dataclasses.replace(writer, columns=frozenset(column.name.lower() for column in wanted))
            _refuse_current_state(needs, target, _record(records.get(name)), options)
        _refuse_side_tables(writer, target, (records.side_tables(name), captured), options)
    except TableError as error:
        return f"{error.state}: {lake_error_line(config, error.reason)}"
    return ""


def _captured_columns(config: SluiceConfig, destination: str, name: str) -> tuple[LakeColumn, ...]:
    """Returns the captured columns of a table, without their types. Returns none if the table is not in the list of captured tables."""
    settings, tables = config.destinations[destination], read_tables(config.destination_dir(destination))
    found = list[LakeColumn]()
    for version in (each for each in tables if each.name == name):
        kept = ColumnFilter(settings.column_include, settings.column_exclude).kept(version)
        found += (LakeColumn(name=version.columns[index].name, type="") for index in kept)
    return tuple(found)


def _refuse_current_state(
    writer: LakeWriter, target: TableTarget, record: TableRecord | None, options: Mapping[str, str]
) -> None:
    owner = writer.owner
    table = DeltaTable(owner.table, target.path, app_id_of(owner), options, target.shard)
    table.refresh()
    refuse_unless_ours(writer, record, table.found(record, owner.to_text()))


def _refuse_side_tables(
    writer: LakeWriter,
    target: TableTarget,
    left: tuple[Mapping[str, tuple[str, int]], Iterable[LakeColumn]],
    options: Mapping[str, str],
) -> None:
    """Raises TableError if the next run would refuse the change log or the history. `left` has their records by kind, and the captured
    columns.
    """
    owner, (kept, captured) = writer.owner, left
    for kind, path in kinds_of(target):
        app_id = side_app_id_of(owner.destination, owner.ledger_id, kind, owner.table)
        table, record = SideTable(owner.table, path, app_id, options).open(), _record(kept.get(kind))
        refuse_removed(writer, record, table, kind, [column.name for column in captured])
        if not target.current_state:
            refuse_unless_left(writer, record, table)


def _record(kept: tuple[str, int] | None) -> TableRecord | None:
    return None if kept is None else TableRecord(table_id=kept[0], version=kept[1])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lacking:
    """Describes what a Delta table lacks compared with its state after the last run of its owner. `table` is None if the Delta table does
    not exist any more. `cursor` is the destination's cursor.
    """

    lake: DestinationLake
    owner: Owner
    table: LakeTable | None
    cursor: str

    def sentence(self) -> str:
        """Returns one or more sentences that say how many rows the table has, and which rows, versions or changes are missing."""
        left = self.lake.left(self.owner.table)
        if self.table is None:
            return f"The Delta table is gone, so all rows that runs merged up to {self.cursor} are missing."
        if left is None:
            return (
                f"The Delta table has {self._rows()}, and no run of this ledger has written it: every row of the "
                "source may be missing or differ."
            )
        record = TableRecord(table_id=left[0], version=left[1])
        history = self.lake.commits(self.table.path)
        lost = lost_commits(self.owner, record, self.table.version, history)
        if record.table_id != self.table.table_id and not _is_renamed(self.owner, record, history):
            return (
                f"The Delta table is not the table that the last run left, and has {self._rows()}: every row of "
                "the source may be missing or differ."
            )
        if self.table.version < record.version:
            return self._older(record, newest_merged(self.owner, history))
        if lost.by is None and (gone := self._without_columns(record, history)):
            return gone
        return self._lost(record, lost)

    def _older(self, record: TableRecord, newest: CommittedInterval | None) -> str:
        """Describes a Delta table that was replaced by an older copy of it. The sentences have no numbers of changes, because the log of
        the copy lacks the missing commits.
        """
        versions = f"{record.version - self.table_version} versions ({self.table_version + 1} to {record.version})"
        since = _position(newest.end) if newest is not None else "the first change of the table"
        return f"The Delta table has {self._rows()}. {versions} are missing: the changes from {since} to {self.cursor}."

    def _without_columns(self, record: TableRecord, history: Iterable[Mapping[str, Any]]) -> str:
        """Describes columns that another writer dropped or renamed. Returns "" if there are none."""
        removed = removed_columns(record, history, ("columns that the commit does not name",))
        gone = sorted(removed.keys() - (self.table.columns if self.table is not None else frozenset()))
        if not gone:
            return ""
        commit = removed[gone[0]]
        return (
            f"Version {commit.get('version')} is a {commit.get('operation')} by another writer. The table has {self._rows()}, without "
            f"{', '.join(gone)}: if the source has these columns, their values are missing."
        )

    def _lost(self, record: TableRecord, lost: LostCommits) -> str:
        if lost.by is None:
            return f"The Delta table has {self._rows()}, and everything that the last run wrote."
        rows = self.lake.rows(self.table.path, record.version) if self.table is not None else None
        before = (
            f"; in version {record.version}, which the last run wrote, the table had {_count(rows, 'row')}"
            if rows is not None
            else ""
        )
        now = f"Version {lost.by.version} is a {lost.by.operation} by another writer. The table has {self._rows()}{before}."
        if lost.all_doubtful:
            return (
                f"{now} The Delta log does not tell which rows are left: every row that runs merged up to "
                f"{self.cursor} may be missing."
            )
        return f"{now} {_changes(lost.commits)}"

    @property
    def table_version(self) -> int:
        return self.table.version if self.table is not None else -1

    def _rows(self) -> str:
        rows = self.lake.rows(self.table.path) if self.table is not None else None
        return "an unknown number of rows" if rows is None else _count(rows, "row")


def _is_renamed(owner: Owner, record: TableRecord, history: Iterable[Mapping[str, Any]]) -> bool:
    """Returns whether a run of `owner` has replaced the Delta table, after the version in `record`, because the table was renamed in the
    source. In this case, the Delta table has another id although no row is lost.
    """
    return any(
        rewrites(each) and is_by(owner, each) for each in history if int(each.get("version", 0)) > record.version
    )


def _changes(commits: tuple[CommittedInterval, ...]) -> str:
    counts = {
        "inserts": sum(each.inserts for each in commits),
        "updates": sum(each.updates for each in commits),
        "deletes": sum(each.deletes for each in commits),
    }
    changes = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    span = f"from {_position(commits[0].start)} to {_position(commits[-1].end)}"
    return (
        f"{_count(len(commits), 'commit')} of runs {'is' if len(commits) == 1 else 'are'} missing ({changes}), {span}."
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _position(position: Mapping[str, Any]) -> str:
    return f"{position.get('file')}:{position.get('offset')}@{position.get('epoch')}"
