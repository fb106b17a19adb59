"""Publishes a snapshot: one Delta commit makes the table from the rows that were read and the changes that were held. A run calls it.

The caller holds the run lock and has seen that the stream came past the place at which the last row was read. Doing it again makes the same
table, or a newer one; so a run that was killed between the commit and its record is simply repeated.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from object_stores.errors import StoreError
from object_stores.placed import PlacedFiles
from spark_jobs.beside import change_log
from spark_jobs.beside.alone import kinds_of
from spark_jobs.beside.history import KIND as HISTORY
from spark_jobs.beside.history import History
from spark_jobs.beside.side_table import SideTable, side_app_id_of
from spark_jobs.durable_lake import sync_commits
from spark_jobs.errors import SparkJobError, SparkUnavailableError, TableError
from spark_jobs.merging.fold import parquet_view
from spark_jobs.merging.merge import NO_RECORDS
from spark_jobs.report import TableTarget
from spark_jobs.session import Lane, SparkSettings, first_line, is_away, open_lanes
from spark_jobs.snapshot import publish_sql
from spark_jobs.snapshot.hold import held_up_to
from spark_jobs.sql_text import delta_path
from spark_jobs.staged_batch import PRESENT, Column, app_id_of
from spark_jobs.tables import layout
from spark_jobs.tables.alterations import LOCAL_TIMES
from spark_jobs.tables.commit_record import PublicationRecord
from spark_jobs.tables.delta_table import MAPPING_PROPERTY, DeltaTable, Snapshot, new_properties, pairs, wanted_columns
from spark_jobs.tables.renamed_table import carried_properties, is_mapped
from spark_jobs.tables.table_owner import Owner, TableRecord, TableRecords, refuse_others

OURS = "_sluice_"  # how columns of a staged file begin that are not the table's
AGAIN = "the stream is read again and has to come to where the table was already; it is tried again"
SNAPSHOT_PROPERTY = "sluice.snapshot"  # which snapshot the table was made from


class ColumnsDifferError(Exception):
    """Held changes have other columns than the rows that were read: the rows are to be read anew."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Publication:
    """What is to be published. `columns`: of the rows, as staged. `chunks`, `changes`: what was read and held; `rows`: of all chunks.

    `place`: the order key that all is merged up to, or that a table without a key was read at; `since`: that up to which each row has all
    changes. `read_at_us`: commit time of the rows. `run`, `epoch`, `start`, `end`: for the record of the commit.
    """

    snapshot_id: str
    owner: Owner
    target: TableTarget
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    chunks: PlacedFiles
    rows: int
    changes: PlacedFiles
    place: int
    read_at_us: int
    run: str
    epoch: int
    start: Mapping[str, Any]
    end: Mapping[str, Any]
    since: int = -1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """`label`: the order key up to which the table has its changes. `table_rows`, `table_bytes`: as in a report of a merge."""

    rows: int
    label: int
    delta_version: int
    files: int
    seconds: float
    columns: tuple[tuple[str, str], ...]
    table_rows: int | None = None
    table_bytes: int | None = None


def publish_snapshot(
    given: Publication,
    spark: SparkSettings,
    *,
    storage_options: Mapping[str, str] | None = None,
    records: TableRecords = NO_RECORDS,
) -> Published:
    """Publishes over a session of its own. Raises SparkUnavailableError, TableError, or ColumnsDifferError, a sentence each."""
    with open_lanes(spark, 1) as lanes:
        try:
            return publish(lanes[0], given, storage_options or {}, records)
        except (SparkJobError, ColumnsDifferError):
            raise
        except StoreError as error:
            why = f"what was read and held of it is in a store that cannot be used now: {error}; it is tried again"
            raise TableError(given.owner.table, why, own=False) from error
        except Exception as error:
            line = first_line(error)
            if is_away(error):
                raise SparkUnavailableError(
                    f"Spark went away while {given.owner.table} was published ({line})"
                ) from error
            raise TableError(given.owner.table, f"Spark could not publish its rows: {line}") from error


def publish(
    lane: Lane,
    given: Publication,
    storage_options: Mapping[str, str],
    records: TableRecords = NO_RECORDS,
) -> Published:
    """Raises TableError where the table is another's, ColumnsDifferError, or whatever Spark raises."""
    started = time.monotonic()
    _check_columns(given)
    if (rows := given.chunks.rows()) != given.rows:
        raise ColumnsDifferError(f"{rows} rows lie where {given.rows} were read")
    label = max(given.place, held_up_to(given.changes))
    if not given.target.mirror:
        lane.expect(rows + given.changes.rows())
        return _publish_alone(lane, given, label, storage_options, records)
    table = DeltaTable(given.owner.table, given.target.path, app_id_of(given.owner), storage_options)
    before = table.refresh()
    refuse_others(given.owner, table.found(None))
    if label < before.applied_order_key:
        raise TableError(given.owner.table, AGAIN, own=False)
    lane.expect(rows + given.changes.rows())
    partial = _show(lane, given)
    if label > before.applied_order_key:
        lane.commit_as(app_id_of(given.owner), label, _record(given, label))
    else:
        lane.commit_without_version(_record(given, label))
    lane.sql(_statement(given, before, label, partial=partial))
    after = table.refresh()
    try:
        sync_commits(given.target.path, before.version, after.version)
    except OSError as error:
        why = f"what was committed to {given.target.path} is not on disk: {error}; it is tried again"
        raise TableError(given.owner.table, why) from error
    _tell_log(given, label, storage_options, records)
    _tell_history(lane, given, table, label, storage_options, records)
    records.keep(given.owner.table, TableRecord(table_id=after.table_id, version=after.version))
    counts, size = table.last_commit(), table.size
    return Published(
        rows=counts.rows_inserted,
        label=label,
        delta_version=after.version,
        files=counts.files_added,
        seconds=time.monotonic() - started,
        columns=after.schema,
        table_rows=size.rows if size else None,
        table_bytes=size.bytes if size else None,
    )


def _show(lane: Lane, given: Publication) -> bool:
    """Makes views of what was read and held; whether images lack columns. Raises ColumnsDifferError where those are nowhere."""
    chunks, changes = lane.lent.placed(given.chunks), lane.lent.placed(given.changes)
    lane.sql(parquet_view(publish_sql.CHUNKS_VIEW, chunks, publish_sql.chunk_types(given.columns)))
    partial = _partial(given)
    types = publish_sql.change_types(given.columns, partial=partial)
    lane.sql(parquet_view(publish_sql.CHANGES_VIEW, changes, types))
    if partial:
        _check_completed(lane, given)
    return partial


def _publish_alone(
    lane: Lane, given: Publication, label: int, storage_options: Mapping[str, str], records: TableRecords
) -> Published:
    """Of a table without a mirror: what was read is appended to its log, and what is open in its history is held against it."""
    started, owner, place, record = time.monotonic(), given.owner, (label, given.read_at_us), _record(given, label)
    found = list[SideTable]()
    for kind, path in kinds_of(given.target):
        began, app_id = time.time(), side_app_id_of(owner.destination, owner.ledger_id, kind, owner.table)
        side = SideTable(owner.table, path, app_id, storage_options).open()
        if label < side.applied:
            raise TableError(owner.table, AGAIN, own=False)
        if kind == HISTORY and given.key:
            history = History(table=side, folder=_scratch(given), lane=lane, by_spark=given.target.merge == "spark")
            selection = publish_sql.selection(_rows(given, label, partial=_show(lane, given)))
            history.take_read(
                selection, (given.columns, given.chunks.schema(given.chunks.names()[0])), given.key, place, record
            )
        elif kind == change_log.KIND:
            aside = side.aside(f"{change_log.READ}/{given.snapshot_id}/{given.chunks.folder.name}")
            told = {"snapshot": given.snapshot_id, "rows": given.rows, "after": side.applied}
            since = given.since if given.key else given.place
            change_log.append_read(
                aside, given.chunks, given.columns, since=since, place=place, told=told, user_metadata=record
            )
        if side.open().log is not None:
            side.keep_on_disk(began)
            records.keep_beside(owner.table, kind, side.record)
            found.append(side)
    records.forget_mirror(owner.table)
    return Published(
        rows=given.rows,
        label=label,
        delta_version=found[0].version if found else -1,
        files=0,
        seconds=time.monotonic() - started,
        columns=tuple(found[0].columns.items()) if found and given.target.history else (),
    )


def _tell_log(
    given: Publication, label: int, storage_options: Mapping[str, str], records: TableRecords = NO_RECORDS
) -> None:
    """A row that the table was read: what befell it while it stood still is in no row of its log. One that is not there begins later."""
    if not given.target.change_log:
        return
    began, owner = time.time(), given.owner
    app_id = side_app_id_of(owner.destination, owner.ledger_id, change_log.KIND, owner.table)
    side = SideTable(owner.table, given.target.change_log, app_id, storage_options).open()
    if side.log is None:
        return
    told = {"snapshot": given.snapshot_id, "rows": given.rows, "after": side.applied}
    place = (label, given.read_at_us)
    change_log.append_event(side.aside(change_log.READ), change_log.READ, place, told, _record(given, label))
    side.open().keep_on_disk(began)
    records.keep_beside(owner.table, change_log.KIND, side.record)


def _tell_history(  # noqa: PLR0917  one caller
    lane: Lane,
    given: Publication,
    table: DeltaTable,
    label: int,
    storage_options: Mapping[str, str],
    records: TableRecords,
) -> None:
    """Rows that were read open versions where they were read; what the history has open and the table no longer has closes there."""
    if not given.target.history or not given.key:
        return
    began, owner = time.time(), given.owner
    app_id = side_app_id_of(owner.destination, owner.ledger_id, HISTORY, owner.table)
    side = SideTable(owner.table, given.target.history, app_id, storage_options).open()
    history = History(table=side, folder=_scratch(given), lane=lane, by_spark=given.target.merge == "spark")
    place = (label, given.read_at_us)
    history.take(table, table.snapshot.version, given.key, place, _record(given, label))
    if side.log is not None:
        side.keep_on_disk(began)
        records.keep_beside(owner.table, HISTORY, side.record)


def _rows(given: Publication, label: int, *, partial: bool) -> publish_sql.Rows:
    return publish_sql.Rows(
        columns=given.columns,
        key=given.key,
        label=label if given.key else given.place,
        read_at_us=given.read_at_us,
        held_after=given.place if not given.key else -1,
        changes=bool(given.changes.names()),
        soft_deletes=given.target.deletes == "soft" and bool(given.key),
        partial=partial,
    )


def _statement(given: Publication, before: Snapshot, label: int, *, partial: bool) -> str:
    rows = _rows(given, label, partial=partial)
    wanted = wanted_columns(given.columns, soft_deletes=rows.soft_deletes)
    properties = {
        **carried_properties(before),
        **new_properties(given.target, wanted, given.key, given.owner.to_text()),
        SNAPSHOT_PROPERTY: given.snapshot_id,
        **({MAPPING_PROPERTY: "name"} if is_mapped(before) else {}),
        **(LOCAL_TIMES if any(column.type == "timestamp_ntz" for column in wanted) else {}),
    }
    laid = layout.clause(given.owner.table, given.target.layout, wanted, before.partitions, before.features)
    return (
        f"CREATE OR REPLACE TABLE {delta_path(given.target.path)} USING delta{laid} "
        f"TBLPROPERTIES ({pairs(properties)}) AS {publish_sql.selection(rows)}"
    )


def _check_columns(given: Publication) -> None:
    """Each held file has the columns of the rows, of the same types. A statement that changed them would have begun the snapshot anew."""
    chunk = next(iter(given.chunks.names()), None)
    if chunk is None:
        raise ColumnsDifferError("no chunk was read")
    wanted = _fields(given.chunks, chunk)
    for name in given.changes.names():
        held = {column: kind for column, kind in _fields(given.changes, name).items() if not column.startswith(OURS)}
        if held != wanted:
            raise ColumnsDifferError(f"changes were held with other columns than were read ({name})")


def _partial(given: Publication) -> bool:
    """Whether images are held that lack columns."""
    return any(f"{PRESENT}0" in _fields(given.changes, name) for name in given.changes.names())


def _check_completed(lane: Lane, given: Publication) -> None:
    """What images lack is in the row that was read, unless the row began meanwhile without it; then all is read anew."""
    asked = publish_sql.incomplete(_rows(given, given.place, partial=True))
    count = int(lane.session.sql(asked).collect()[0][0])
    if count:
        raise ColumnsDifferError(f"{count} rows came while the table was read, with images that lack columns")


def _fields(files: PlacedFiles, name: str) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in files.schema(name)}


def _scratch(given: Publication) -> Path:
    """For what Spark is to read of a history."""
    folder = given.chunks.folder.parent
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _record(given: Publication, label: int) -> str:
    return PublicationRecord(
        destination=given.owner.destination,
        ledger=given.owner.ledger_id,
        table=given.owner.table,
        snapshot=given.snapshot_id,
        epoch=given.epoch,
        run=given.run,
        start=given.start,
        end=given.end,
        label=label,
        read_at_us=given.read_at_us,
    ).to_text()
