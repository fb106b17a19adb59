"""Writes a batch as files that a run merges. `stager` calls `stage` when the engine hands out a batch. The changes of a table become a
sequence of segments: files with rows, schema changes, and TRUNCATEs.

Blocks are decoded one at a time, so a spilled transaction of gigabytes is never in memory as a whole. All files are written into a
directory whose name ends in `.partial`, the manifest last. When all files are on disk, the directory is renamed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from sluice.batch_manifest.file import MANIFEST_FILE, manifest_json
from sluice.batch_manifest.values import (
    Cascade,
    CascadeEvents,
    ChangesSegment,
    Manifest,
    SchemaSegment,
    StagedQuarantine,
    StagedTable,
    TruncateSegment,
)
from sluice.cdc_engine.binlog.rows.decoder import OPERATION, RowDecoder, ValueLocations
from sluice.cdc_engine.contracts import (
    NOTHING,
    Batch,
    BlockSlice,
    Int64s,
    StoppedTable,
    TableChange,
    TableChangeKind,
    TableVersion,
)
from sluice.cdc_engine.durable_files import rename, replace_file, sync_files
from sluice.cdc_engine.errors import SluiceError, StagingError, TableStoppedError
from sluice.cdc_engine.position import Position, file_number, order_key
from sluice.cdc_engine.staging.background_writer import BackgroundWriter
from sluice.cdc_engine.staging.cascades import APPLY, IGNORE, CascadeRecorder, PositionFile, reached
from sluice.cdc_engine.staging.quarantine import write_quarantine
from sluice.cdc_engine.staging.renamed_rows import refuse_renamed
from sluice.cdc_engine.staging.rules import StagingRules
from sluice.cdc_engine.staging.segment_writer import SegmentWriter
from sluice.cdc_engine.staging.staged_columns import refuse_reserved, refuse_transformed, staged_columns, staged_fills
from sluice.cdc_engine.staging.table_files import TableFiles, runs_by_table
from sluice.cdc_engine.states import TableState

logger = logging.getLogger(__name__)

# If the rows that wait in memory have more bytes than this, summed over all tables of a batch, rows are written to the files.
PENDING_BYTES_MAX = 48 << 20
DEFAULT_RULES = StagingRules()
# Names of databases and tables are cut to this length in file names, so that two names and a number fit into the 255 bytes of a file name.
NAME_CHARS_MAX = 60


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagingResult:
    """A staged batch: its directory, its manifest, and the tables that stopped. Of a table that stopped, the batch has only segments
    that were complete before the stop.
    """

    path: Path
    manifest: Manifest
    stopped: tuple[StoppedTable, ...]


def batch_directory(end: Position, delivery: int, process: str = "") -> str:
    """Returns the name of the directory of a batch that ends at `end`, for its delivery number `delivery`. `process` distinguishes the
    processes that stage batches of one destination.
    """
    return "-".join(filter(None, (f"{end.epoch}-{file_number(end.file)}-{end.offset}-{delivery}", process)))


def stage(
    batch: Batch,
    destination: str,
    delivery: int,
    directory: Path,
    rules: StagingRules = DEFAULT_RULES,
    *,
    ledger_id: str = "",
    process: str = "",
    more: Callable[[Batch], Batch] = lambda _: NOTHING,
) -> StagingResult:
    """Decodes `batch`, and writes its files into the folder that `batch_directory` names, in `directory`. Replaces an existing folder of
    this name. The same batch gives the same files.

    A batch may come in parts, and `batch` is the first part. After each part was decoded, `more` is called with the part, and returns the
    next part, or an empty batch after the last part.

    If a table cannot be decoded, this table stops, and the other tables continue. `stopped` of the result has the table, with the start of
    the batch as the position of its stop. The table's complete files, schema changes and TRUNCATEs stay in the batch.

    Raises StagingError if the files cannot be written, and BinlogFormatError if bytes are not row images. After an error no files are
    left, and the batch can be staged again.
    """
    if batch.start is None or batch.end is None:
        raise ValueError("an empty batch is not staged")
    partial = directory / (batch_directory(batch.end, delivery, process) + ".partial")
    staging = _Staging(partial, batch.start, rules)
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        while not batch.empty:
            staging.take_batch(batch)
            batch = more(batch)
        path = directory / batch_directory(staging.end, delivery, process)
        tables = staging.finish()
        manifest = _manifest(staging, tables, destination, ledger_id, delivery)
        _publish(manifest, partial, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise StagingError(
            f"the batch up to {staging.end} could not be staged in {directory}: {reason}; free space in that "
            "folder or correct its permissions; Sluice then stages the batch again"
        ) from error
    finally:
        staging.abandon()  # Removes the files after an error. After success, no segment is open, so this has no effect.
        shutil.rmtree(partial, ignore_errors=True)
    return StagingResult(path=path, manifest=manifest, stopped=tuple(staging.stopped.values()))


class _Staging:
    """Stages one batch, part by part: keeps the files of each table, the tables that stopped, and the records for cascades."""

    def __init__(self, directory: Path, start: Position, rules: StagingRules) -> None:
        self.directory, self.start, self.rules = directory, start, rules
        self.end, self.byte_count = start, 0  # The end and the size of the changes that were staged so far.
        self.tables: dict[str, TableFiles] = {}
        self.stopped: dict[str, StoppedTable] = {}
        self.locations, self.background = ValueLocations(), BackgroundWriter()
        self.files_begun = self.events = 0
        self.cascades = CascadeRecorder(directory, self._stop_whole)

    def take_batch(self, batch: Batch) -> None:
        """Stages a batch, or one part of it."""
        for part in batch.slices:
            self.take(part)
        self.end, self.byte_count = batch.end or self.end, self.byte_count + batch.byte_count

    def take(self, part: BlockSlice) -> None:
        """Stages a slice of a block: its table changes or its rows. Skips rows of tables that were already stopped when the parser read the
        rows, because these rows are in the block only for consumers.
        """
        for change in part.changes:
            with self._table(change.database, change.table) as table:
                if table is not None:
                    self._change(table, change)
        for version, chosen in ((each, rows) for each, rows in runs_by_table(part) if not each.stopped):
            if version.cascades:
                self.cascades.take(part, version, chosen, self.events, self.rules.policy(version.name))
            if version.watched:
                continue
            with self._table(version.database, version.table) as table:
                if table is not None:
                    self._rows(table, part, version, chosen)
        self.events += part.last_event - part.first_event
        self._make_room()

    def finish(self) -> tuple[StagedTable, ...]:
        """Closes all segments. Returns the tables that have segments or that cascades may change, in the order in which they first
        appeared.
        """
        for each in tuple(self.tables.values()):
            with self._table(each.database, each.table) as table:
                if table is not None:
                    table.close()
        self.cascades.close()
        reached = self._settle_cascades()
        for name in sorted(reached):
            self.tables.setdefault(".".join(name), TableFiles(*name))
        return tuple(
            StagedTable(
                database=each.database,
                table=each.table,
                segments=tuple(each.segments),
                positions=each.positions.finish() if each.positions else None,
            )
            for each in self.tables.values()
            if each.segments or (each.database, each.table) in reached
        )

    def cascade_events(self) -> tuple[CascadeEvents, ...]:
        """Returns the manifest's entries for the files with recorded rows of parent tables. From these files, the run computes the changes
        that foreign keys cause. Call it after `finish`.
        """
        return tuple(
            dataclasses.replace(
                events,
                live=tuple(
                    dict.fromkeys(each.child for each in events.cascades if each.captured and self._live(each.child))
                ),
                cascades=tuple(self._as_configured(each, events.parent) for each in events.cascades),
            )
            for events in self.cascades.finish()
        )

    def _as_configured(self, cascade: Cascade, root: tuple[str, str]) -> Cascade:
        """Returns the cascade with the child's key that conf/ names. If settings in conf/ make values in the lake differ from the source's
        values, the run cannot find the child rows. Then `doubt` of the result says why. `root` is the table whose rows were deleted or
        changed. If `root` is the parent, its settings do not matter, because its values are recorded as the source has them.
        """
        names = [".".join(each) for each in (cascade.child, cascade.parent) if each != root or each == cascade.child]
        policies = [self.rules.policy(name) for name in names]
        unlike = cascade.doubt if cascade.unlike else ""
        if cascade.dated and any(policy.zero_dates == "text" for policy in policies):
            unlike = f"dates of {' or '.join(names)} are text in the lake (zero_dates)"
        if any(policy.corrects({*cascade.columns, *cascade.referenced}) for policy in policies):
            unlike = f"conf/ names another charset for columns of {' or '.join(names)}"
        if any(policy.rules.touches({*cascade.columns, *cascade.referenced}) for policy in policies):
            unlike = (
                f"conf/ masks or transforms columns of {' or '.join(names)} that the foreign key changes or "
                "refers to, or filters rows by these columns"
            )
        return dataclasses.replace(
            cascade,
            key=self.rules.keys.get(names[0]) or cascade.key,
            doubt=unlike or cascade.doubt,
            unlike=bool(unlike),
        )

    def _settle_cascades(self) -> set[tuple[str, str]]:
        """Returns the tables that the cascades of this batch may change. Stops the tables whose changes cannot be computed, or whose
        setting `cascades` is stop. A stopped table lacks rows from which changes of its child tables are computed, so the check is
        repeated until no other table stops.
        """
        while True:
            stops_before = len(self.stopped)
            found: set[tuple[str, str]] = set()
            for cascades, referenced, deletes, updates in self.cascades.set_off():
                find = functools.partial(reached, cascades, referenced, deletes=deletes, updates=updates)
                for name in find(live=self._live):
                    blind = find(live=functools.partial(self._seen_by, name)).get(name, False)
                    if self._live(name) and not blind:
                        found.add(name)
                    elif self.rules.cascade_policy(*name) != IGNORE:
                        self._stop_cascade(name, cascades[0].parent, blind=blind)
            if len(self.stopped) == stops_before:
                return {name for name in found if self._live(name)}

    def _seen_by(self, below: tuple[str, str], name: tuple[str, str]) -> bool:
        """Returns whether Sluice can compute from the lake the changes that foreign keys make to the table `below` through the table
        `name`. The lake must have all rows and changes of `name`, and no later changes of `name` than of `below`.
        """
        whole = not self.rules.policy(".".join(name)).rules.drops_rows
        return (
            whole and self._live(name) and self.rules.has_up_to(".".join(name)) <= self.rules.has_up_to(".".join(below))
        )

    def _live(self, name: tuple[str, str]) -> bool:
        """Returns whether the lake gets all changes of a captured table: it is not stopped, and conf/ sets `cascades: apply` for it."""
        full_name = ".".join(name)
        flows = full_name not in self.stopped and full_name not in self.rules.left_out
        return flows and self.rules.cascade_policy(*name) == APPLY

    def _stop_cascade(self, name: tuple[str, str], parent: tuple[str, str], *, blind: bool) -> None:
        of = (
            f"rows of {'.'.join(parent)} were deleted or changed, and foreign keys then changed rows of this "
            "table without row events"
        )
        if blind and self.rules.cascade_policy(*name) == APPLY:
            why = (
                f"the foreign keys go through a table between {'.'.join(parent)} and this table, and the lake does not have all "
                "rows of the table between (it is not captured, it stopped, its rows are filtered, or its `cascades` is not apply)"
            )
            self._stop_whole(name, TableState.CASCADE_UNSEEN, f"{of}; {why}")
        else:
            self._stop_whole(name, TableState.CASCADE, f"{of}; conf/ sets `cascades: stop` for this table")

    def _stop_whole(self, name: tuple[str, str], state: str, reason: str) -> None:
        """Stops a table at the start of the batch, and removes the table's changes from the batch. Called if a cascade may change rows of
        the table and Sluice does not apply these changes. Later changes of the table must then not reach the lake.
        """
        full_name = ".".join(name)
        if full_name in self.rules.left_out:
            return
        if table := self.tables.get(full_name):
            table.discard()
            table.segments.clear()
            table.refused.clear()
        if full_name not in self.stopped:
            self._stop(*name, state, reason)

    def quarantined(self) -> StagedQuarantine | None:
        """Writes a file with the values that could not be decoded, and returns the manifest's entry for the file. Takes these values from
        the finished segments. Returns None and writes no file if there are no such values.
        """
        refused = [
            (each.database, each.table, value)
            for each in self.tables.values()
            for value in sorted(each.refused, key=lambda value: value.order_key)
        ]
        return write_quarantine(self.directory, refused)

    def abandon(self) -> None:
        """Closes and removes the files of segments that are not finished."""
        self.cascades.abandon()
        for table in self.tables.values():
            table.discard()
        self.background.close()

    @contextlib.contextmanager
    def _table(self, database: str, name: str) -> Iterator[TableFiles | None]:
        """Yields the files of a table, or None if the table is stopped. After a TableStoppedError or an unexpected error in the body of the
        `with` statement, only this table stops. Errors that concern all tables are raised, for example a full disk, or bytes that are not
        row images.
        """
        full_name = f"{database}.{name}"
        if full_name in self.stopped or full_name in self.rules.left_out:
            yield None
            return
        table = self.tables.setdefault(full_name, TableFiles(database, name))
        try:
            yield table
        except TableStoppedError as error:
            table.discard()
            self._stop(database, name, error.state, error.reason)
        except (SluiceError, OSError, MemoryError):
            raise
        except Exception as error:
            logger.exception("the rows of table %s could not be staged", full_name)
            table.discard()
            reason = (
                f"changes of the table could not be staged ({type(error).__name__}: {error}). This is a "
                "defect of Sluice: report it with the trace in the log; exclude the table, or resume it with "
                "a corrected version of Sluice"
            )
            self._stop(database, name, TableState.MERGE_FAILED, reason)

    def _stop(self, database: str, table: str, state: str, reason: str, order_key: int = 0) -> None:
        self.stopped[f"{database}.{table}"] = StoppedTable(
            database=database,
            table=table,
            state=TableState(state),
            reason=reason,
            position=self.start,
            order_key=order_key,
        )

    def _change(self, table: TableFiles, change: TableChange) -> None:
        table.close()
        if change.kind is TableChangeKind.STOPPED:
            self._stop(change.database, change.table, change.state, change.reason, change.order_key)
        elif change.kind is TableChangeKind.TRUNCATE:
            table.segments.append(TruncateSegment(order_key=change.order_key, commit_time_us=change.time_us))
        elif change.schema is not None:
            decoder = self._decoder(change.schema)
            refuse_renamed(change, self.rules, self.start.order_key)
            refuse_transformed(change, self.rules.policy(change.schema.name).rules.transform)
            columns = staged_columns(decoder)
            table.segments.append(
                SchemaSegment(
                    order_key=change.order_key,
                    commit_time_us=change.time_us,
                    version=change.schema.version,
                    key=decoder.key,
                    columns=columns,
                    fills=staged_fills(decoder, change.fills),
                    alterations=change.alterations,
                    renamed_from=change.renamed_from,
                )
            )

    def _rows(self, table: TableFiles, part: BlockSlice, version: TableVersion, chosen: Int64s) -> None:
        if table.writer is None or table.source != version:
            self._change_version(table, version, _first_order_key(part, chosen))
        decoder = table.begun.decoder
        for rows in decoder.chunks(part.block, chosen):
            if version.follows:
                self._note_positions(table, rows, chosen[decoder.events_of(rows.num_rows)] - part.first_event)
            table.add(rows)
        table.add_to_log(part.block, chosen)

    def _note_positions(self, table: TableFiles, rows: pa.RecordBatch, events: Int64s) -> None:
        """Records the sequence numbers of a table's rows. By these numbers, a run orders the rows and the changes that foreign keys make.
        Rows that were staged before the foreign key was created get the number 0, because they precede all changes by the foreign key.
        """
        if table.positions is None:
            table.positions = PositionFile(self.directory / f"positions.{self.files_begun}.i64", rows_before=table.rows)
            self.files_begun += 1
        table.positions.add(events + self.events, rows.column(OPERATION).to_numpy())

    def _change_version(self, table: TableFiles, version: TableVersion, order_key: int) -> None:
        """Prepares for rows of another version of a table, which begin at `order_key`. If the columns and the key of the new version are
        staged in the same way, the segment continues. Otherwise, another segment begins.

        A segment must not end within a transaction, because the position up to which the lake has a table is always the end of a
        transaction. If another segment would have to begin within a transaction, raises TableStoppedError.
        """
        decoder, writer = self._decoder(version), table.writer
        table.source = version
        if writer is not None and _is_staged_alike(decoder, writer.decoder):
            table.replace_decoders(decoder, self._decoder(version, every_preimage=True))
            return
        if writer is not None and writer.last_order_key == order_key:
            raise TableStoppedError(
                version.database,
                version.table,
                TableState.SCHEMA_MISMATCH,
                "the schema of the table changes within a transaction; re-snapshot the table with `sluice snapshot start`",
            )
        table.close()
        table.writer = SegmentWriter(
            self._new_file(version, "parquet"), decoder, table.rows + 1, background=self.background
        )
        if version.name in self.rules.logged:
            every = self._decoder(version, every_preimage=True)
            table.log = SegmentWriter(
                self._new_file(version, "log.parquet"), every, follows_moves=False, background=self.background
            )

    def _new_file(self, version: TableVersion, ending: str) -> Path:
        file = f"{_file_part(version.database)}.{_file_part(version.table)}.{self.files_begun}.{ending}"
        self.files_begun += 1
        return self.directory / file

    def _decoder(self, version: TableVersion, *, every_preimage: bool = False) -> RowDecoder:
        keyed = dataclasses.replace(version, key=self.rules.keys.get(version.name) or version.key)
        policy = self.rules.policy(version.name)
        kept = None if self.rules.kept is None else self.rules.kept(keyed)
        refuse_reserved(keyed, kept)
        return RowDecoder(keyed, kept, self.locations, policy, every_preimage=every_preimage)

    def _make_room(self) -> None:
        """Writes rows that are in memory to the files, until at most PENDING_BYTES_MAX bytes are in memory. Begins with the file that has
        the most bytes in memory.
        """
        writers = [(writer, table) for table in self.tables.values() for writer in table.writers]
        total = sum(writer.pending_bytes for writer, _ in writers)
        for writer, each in sorted(writers, key=lambda pair: -pair[0].pending_bytes):
            if total <= PENDING_BYTES_MAX:
                return
            total -= writer.pending_bytes
            with self._table(each.database, each.table) as table:
                if table is not None:
                    writer.flush()


def _first_order_key(part: BlockSlice, chosen: Int64s) -> int:
    block = part.block
    return order_key(block.epoch, file_number(block.file), int(block.event_transaction_offset[chosen[0]]))


def _is_staged_alike(one: RowDecoder, other: RowDecoder) -> bool:
    return one.key == other.key and staged_columns(one) == staged_columns(other)


def _file_part(name: str) -> str:
    """Converts the name of a database or table to a part of a file name that any file system accepts. Different names may give the same
    part, so the caller adds a number that makes the file name unique.
    """
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:NAME_CHARS_MAX]


def _manifest(
    staging: _Staging, tables: tuple[StagedTable, ...], destination: str, ledger_id: str, delivery: int
) -> Manifest:
    start, end = staging.start, staging.end
    segments = [segment for table in tables for segment in table.segments if isinstance(segment, ChangesSegment)]
    return Manifest(
        destination=destination,
        ledger_id=ledger_id,
        epoch=end.epoch,
        delivery=delivery,
        start=start.to_json(),
        end=end.to_json(),
        end_order_key=end.order_key,
        rows=sum(segment.rows for segment in segments),
        changes=sum(segment.changes for segment in segments),
        bytes=staging.byte_count,
        staged_at_us=time.time_ns() // 1000,
        first_commit_time_us=min((segment.first_commit_time_us for segment in segments), default=0),
        last_commit_time_us=max((segment.last_commit_time_us for segment in segments), default=0),
        tables=tables,
        quarantine=staging.quarantined(),
        cascades=staging.cascade_events(),
        again_up_to=staging.rules.again_up_to,
    )


def _publish(manifest: Manifest, partial: Path, path: Path) -> None:
    """Syncs all files, then writes the manifest, then renames the directory. The result of each step is on disk before the next step
    begins.
    """
    sync_files(partial)
    replace_file(partial / MANIFEST_FILE, manifest_json(manifest))
    if path.exists():
        shutil.rmtree(path)
    rename(partial, path)
