"""Writes a batch's changes of a table to the table's change log and history, after the current-state table has been merged. Does the same
for a table without a current-state table. `run_batch` calls this module.

Change log, history and current-state table each store, under an app id, which changes they have. A run may end between the commit of the
current-state table and the commits of the change log and history. When the batch is merged again, the current-state table is skipped, and
the change log and history are completed.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Mapping

from deltalake.exceptions import DeltaError

from sluice.batch_manifest.table_report import TableReport
from sluice.batch_manifest.values import ChangesSegment, SchemaSegment, Segment, StagedTable
from sluice.spark_jobs.errors import LAKE_TROUBLE, SparkJobError, StagedBatchError, TableError
from sluice.spark_jobs.merging.context import MergeContext
from sluice.spark_jobs.merging.merge import staged_at, writer_of
from sluice.spark_jobs.session import LakeSession, first_line, is_away
from sluice.spark_jobs.side_tables import change_log, history
from sluice.spark_jobs.side_tables.alone import kinds_of, refuse_other_name, refuse_unless_left, report
from sluice.spark_jobs.side_tables.history_fix import is_due, settle
from sluice.spark_jobs.side_tables.removed_columns import needed_columns, refuse_removed
from sluice.spark_jobs.side_tables.side_table import FEATURES, SideTable, side_app_id, side_app_id_of
from sluice.spark_jobs.staged_batch import StagedBatch, last_order_key
from sluice.spark_jobs.tables.commit_record import commit_record
from sluice.spark_jobs.tables.delta_table import DeltaSnapshot, DeltaTable
from sluice.spark_jobs.targets.report import TableTarget

FOLDER = "history"  # The folder, in a batch's directory, for files that Spark merges into histories.
# Matches deltalake's errors if an object store does not answer.
STORE_TROUBLE = re.compile(r"generic \w+ error|sending request|connection", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Share:
    """One table's part of a batch, for its change log and history. `renamed` has the new name and the order key of each rename in the
    batch.
    """

    batch: StagedBatch
    staged: StagedTable
    target: TableTarget
    context: MergeContext
    renamed: frozenset[tuple[str, int]] = frozenset()

    def is_named_at(self, name: str, order_key: int) -> bool:
        """Returns whether another table gets this name at this order key, for example because two tables swap names."""
        return (name, order_key) in self.renamed

    def table(self, path: str, kind: str) -> SideTable:
        """Opens the change log or history. Raises TableError if it has another owner, or if another program removed columns from it since
        the last run. If conf/ configures no current-state table, also raises TableError if another program replaced, restored or removed
        the change log or history since the last run.
        """
        name = self.staged.name
        app_id = side_app_id(self.batch, self.staged, kind)
        table = self.opened(name, path, app_id)
        if table.log is None:
            self.target.refuse_clash(name)
        writer, record = writer_of(self.batch, self.staged), self.context.records.side_table(name, kind)
        refuse_removed(writer, record, table, kind, needed_columns(self.staged, table, kind))
        if not self.target.current_state:
            refuse_unless_left(writer, record, table)
        return table

    def opened(self, name: str, path: str, app_id: str) -> SideTable:
        """Opens the change log or history of the source table `name` at `path`. `name` may be another table than `staged`. Raises
        TableError if the change log or history has another owner.
        """
        given = self.context
        return SideTable(name, path, app_id, given.storage_options, fence=given.fence, conflicts=given.conflicts).open()

    @property
    def has_rows(self) -> bool:
        """Whether the source table has a current-state table: conf/ configures one, or its record still exists. If conf/ no longer
        configures one, `write_side_tables` removes the record at the end of the batch.
        """
        return self.target.current_state or self.context.records.get(self.staged.name) is not None

    def record(self, segment: Segment) -> str:
        """Returns the metadata for the commit of a segment."""
        return commit_record(self.batch, self.staged, segment, self.context.run)


def names_given(batch: StagedBatch) -> frozenset[tuple[str, int]]:
    """Returns (new name, order key) for each table that is renamed in the batch."""
    return frozenset(
        (table.name, segment.order_key)
        for table in batch.tables
        for segment in table.segments
        if isinstance(segment, SchemaSegment) and segment.renamed_from
    )


def refuse_unlogged(batch: StagedBatch, targets: Mapping[str, TableTarget]) -> None:
    """Raises StagedBatchError, before anything is merged, if the batch lacks before images that a change log needs. The batch must then be
    staged again.
    """
    for table in batch.tables:
        if targets[table.name].change_log and any(segment.rows and not segment.log for segment in table.changes):
            raise StagedBatchError(
                f"{batch.directory} has no before images of {table.name}: the batch was staged before change_log "
                "was set in conf/; Sluice stages the batch again"
            )


def write_side_tables(session: LakeSession | None, share: Share) -> None:
    """Writes a table's part of the batch to the change log and the history that conf/ configures. Afterwards removes the record of the
    current-state table if conf/ no longer configures one. Raises TableError, StagedBatchError, or an exception of Spark.
    """
    name, target = share.staged.name, share.target
    if not share.staged.segments:
        return
    try:
        if target.change_log:
            _write_log(share)
        if target.history:
            _write_history(session, share)
        if not target.current_state:
            share.context.records.forget_current_state_table(name)
    except SparkJobError:
        raise
    except (DeltaError, OSError) as error:
        raise _failure(name, error) from error
    except Exception as error:
        if is_away(error):
            raise
        line = first_line(error)
        raise TableError(
            name, f"the change log or history of the table could not be written: {line}; Sluice tries again"
        ) from error


def is_large(share: Share) -> bool:
    """Returns whether Spark must write the history, because the history and its changes are too large for deltalake. If the history must
    first be compared with the current-state table, the rows of that table count as changes. Reads only the Delta logs.
    """
    staged, target = share.staged, share.target
    if not target.history or not staged.segments:
        return False
    try:
        table = share.table(target.history, history.KIND)
        lacked = _lacked_rows(table, share) if share.has_rows else 0
    except TableError:  # `write_side_tables` raises this error again, and it is reported for this table.
        return False
    return history.is_large(table, staged.rows + lacked, staged.bytes)


def _lacked_rows(table: SideTable, share: Share) -> int:
    """Returns the number of rows of the current-state table if the history must first be compared with that table. Otherwise returns 0."""
    current_state = _current_state(share)
    lacks = table.applied < current_state.refresh().applied_order_key or is_due(table)
    lacks = lacks or _was_restored(table, share, history.KIND)
    return current_state.row_count if lacks else 0


def _current_state(share: Share) -> DeltaTable:
    options = share.context.storage_options
    return DeltaTable(share.staged.name, share.target.path, share.batch.app_id(share.staged), options)


def write_alone(session: LakeSession | None, share: Share) -> TableReport:
    """Calls `write_side_tables` for a table without a current-state table, and returns the table's report. Raises TableError,
    StagedBatchError, or an exception of Spark.
    """
    began, (kind, path) = time.monotonic(), kinds_of(share.target)[0]
    before = share.table(path, kind).version
    write_side_tables(session, share)
    return report(share.staged, share.target, before, share.table(path, kind), began)


def _failure(name: str, error: Exception) -> TableError:
    line, features = first_line(error), FEATURES.search(str(error))
    if features:
        why = (
            f"deltalake cannot read or write the change log or history of the table ({features[0].strip()}): "
            "drop the feature, or move the change log or history away"
        )
        return TableError(name, why, for_good=True)
    trouble = LAKE_TROUBLE.search(line) or STORE_TROUBLE.search(line)
    why = f"the change log or history of the table could not be written: {line}; Sluice tries again"
    return TableError(name, why, own=not trouble)


def _write_log(share: Share) -> None:
    table = share.table(share.target.change_log, change_log.KIND)
    if share.has_rows:
        _append_gap(table, share)
    for segment in share.staged.segments:
        change_log.append_segment(table, segment, share.record(segment))
    _keep(table, share, change_log.KIND)


def _write_history(session: LakeSession | None, share: Share) -> None:
    batch, staged, target = share.batch, share.staged, share.target
    table = share.table(target.history, history.KIND)
    given = history.History(
        table=table, folder=batch.directory / FOLDER, session=session, by_spark=target.merge == "spark"
    )
    current_state = _current_state(share)
    if share.has_rows:
        _begin(given, current_state, share)
    for segment in staged.segments:
        if isinstance(segment, SchemaSegment) and segment.renamed_from:
            if not target.current_state and table.applied < segment.order_key:
                _leave_old_name(given, share, segment)
                refuse_other_name(staged.name, segment)
            if table.applied < segment.order_key:
                position = (segment.order_key, segment.commit_time_us)
                version = current_state.refresh().version
                given.take(current_state, version, segment.key, position, share.record(segment), at_position=True)
            _leave_old_name(given, share, segment)
        else:
            given.apply(segment, share.record(segment))
    _keep(table, share, history.KIND)


def _begin(given: history.History, current_state: DeltaTable, share: Share) -> None:
    """Corrects the history before a batch, if the history may lack earlier changes: it is new, was disabled for some time, was restored by
    another program, or waits for a comparison (`is_due`). Makes the history's open versions equal to the rows that the current-state table
    had before the batch.

    In two cases, uses the rows that the current-state table has after the batch: if the batch changed the key, or if the history already
    had changes of this batch when another program restored the history to an older version.
    """
    table, segments = given.table, share.staged.segments
    first, before = _before(current_state, segments)
    restored = _was_restored(table, share, history.KIND)
    seen_all = table.applied >= 0 and table.applied >= before.applied_order_key and not restored
    if not before.exists or (seen_all and not is_due(table)):
        return
    if before.applied_order_key < 0 and not current_state.at(before.version).row_count:
        return
    record = share.record(segments[0])
    key = _key_before(segments, before) if _keys(segments) else _existing(history.kept_key(table), before)
    if restored and _keys(segments) and table.applied >= first:
        key = ()  # The history skips changes of the batch that it had before the RESTORE.
    if key:
        at = before.applied_order_key if before.applied_order_key >= 0 else first - 1
        given.take(current_state, before.version, key, (at, _began_us(share)), record)
        settle(table, record)
    elif (
        not _renames(segments)
        and (keys := _keys(segments))
        and all(name.lower() in current_state.snapshot.columns for name in keys[-1])
    ):
        # Either the batch changed the key, so the new key cannot identify rows from before the batch. Or the history was restored and skips
        # changes of the batch. In both cases, the history gets the rows as they are after the batch, without the versions in between.
        given.take(current_state, current_state.snapshot.version, keys[-1], _ends(segments[-1]), record)
        settle(table, record)
    if restored:
        # The record must be stored before the batch's changes are committed. Otherwise, if the run ends after these commits, the next run
        # would compare the history with the rows from before the batch again, and undo the changes.
        _keep(table, share, history.KIND)


def _was_restored(table: SideTable, share: Share, kind: str) -> bool:
    record = share.context.records.side_table(share.staged.name, kind)
    return table.was_restored(writer_of(share.batch, share.staged).owner, record)


def _append_gap(table: SideTable, share: Share) -> None:
    """Appends a gap row to the change log if the log lacks changes that the current-state table had before the batch. The gap row means
    that the changes since the previous row are unknown.
    """
    if table.version <= 0:  # A new change log has no previous row.
        return
    current_state, segments = _current_state(share), share.staged.segments
    first, before = _before(current_state, segments)
    # A publication appends a row about itself to the log, so no gap row is needed for it.
    seen = max(table.applied, table.aside(change_log.READ).applied)
    restored = _was_restored(table, share, change_log.KIND)
    if before.exists and (restored or seen < 0 or seen < before.applied_order_key):
        known = table.applied >= 0 and not restored
        details = {"after": table.applied if known else None, "up_to": before.applied_order_key}
        begins = segments[0]
        at_us = begins.first_commit_time_us if isinstance(begins, ChangesSegment) else begins.commit_time_us
        gap = table.aside(change_log.GAP)
        change_log.append_event(gap, change_log.GAP, (first, at_us), details, share.record(begins))
        table.open()


def _before(current_state: DeltaTable, segments: tuple[Segment, ...]) -> tuple[int, DeltaSnapshot]:
    """Returns the first order key of the batch, and the current-state table as it was before the batch."""
    first = _first_order_key(segments)
    current_state.refresh()
    return first, current_state.before(first)


def _began_us(share: Share) -> int:
    return int(share.batch.start.get("time_us") or 0)


def _key_before(segments: tuple[Segment, ...], before: DeltaSnapshot) -> tuple[str, ...]:
    """Returns the key columns with the names that they had before the batch. Returns () if the current-state table lacked one of them."""
    renames = {
        each.new_name.lower(): each.column
        for segment in segments
        if isinstance(segment, SchemaSegment)
        for each in segment.alterations
        if each.kind == "rename"
    }
    named = next(iter(_keys(segments)), ())
    key = tuple(name if name.lower() in before.columns else renames.get(name.lower(), name) for name in named)
    return _existing(key, before)


def _existing(key: tuple[str, ...], before: DeltaSnapshot) -> tuple[str, ...]:
    """Returns the key if the current-state table had all of its columns, otherwise ()."""
    return key if all(name.lower() in before.columns for name in key) else ()


def _leave_old_name(given: history.History, share: Share, segment: SchemaSegment) -> None:
    """Closes the open versions in the history of the table's former name. Does nothing if conf/ configures no history for that name. Also
    does nothing if another table gets that name at the same position, because the rows of that table then replace the open versions.
    """
    origin = share.context.target_of(segment.renamed_from)
    if origin is None or not origin.history or share.is_named_at(segment.renamed_from, segment.order_key):
        return
    batch = share.batch
    app_id = side_app_id_of(batch.destination, batch.ledger_id, history.KIND, segment.renamed_from)
    table = share.opened(segment.renamed_from, origin.history, app_id)
    left = dataclasses.replace(given, table=table)
    left.leave(segment.order_key, segment.commit_time_us, share.record(segment))
    _keep(table, share, history.KIND)


def _keys(segments: tuple[Segment, ...]) -> list[tuple[str, ...]]:
    """Returns the keys of all segments that have a key."""
    return [each.key for each in segments if isinstance(each, ChangesSegment | SchemaSegment) and each.key]


def _renames(segments: tuple[Segment, ...]) -> bool:
    """Returns whether the source table was renamed in the batch. If so, `_write_history` makes the history's open versions equal to the
    rows of the current-state table, at the position of the rename.
    """
    return any(isinstance(each, SchemaSegment) and each.renamed_from for each in segments)


def _ends(segment: Segment) -> tuple[int, int]:
    """Returns the order key and the commit time (µs) of the segment's last change."""
    at = segment.last_commit_time_us if isinstance(segment, ChangesSegment) else segment.commit_time_us
    return last_order_key(segment), at


def _first_order_key(segments: tuple[Segment, ...]) -> int:
    segment = segments[0]
    return segment.first_order_key if isinstance(segment, ChangesSegment) else last_order_key(segment)


def _keep(table: SideTable, share: Share, kind: str) -> None:
    """Syncs `table` to disk, then stores its record. `table` may also be the history of the source table's former name."""
    if table.log is not None:
        table.keep_on_disk(staged_at(share.batch))
        share.context.records.keep_side_table(table.name, kind, table.record)
