"""Records what a run needs to compute the changes that foreign keys cause: which rows of parent tables were deleted or changed, and the
order of these rows relative to the rows of the child tables.

Called by `staging`. The run computes the changes (spark_jobs/cascades/derive.py). Two kinds of files are written next to the staged rows:

- Per parent table, the deleted rows and the changed keys: `_sluice_sequence_number` (int64), operation, order key, commit time, and the
  referenced columns with the old values. For an update, the next row has the new values.
- Per child table, the sequence number of each of its staged rows (int64, little-endian, in the order of its segments).

A sequence number (`_sluice_sequence_number`) orders the rows of all tables of a batch. The sequence number consists of the number of the
row event, the number of the row in the event, and a bit that is 0 only for the before image of an update.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sluice.batch_manifest.values import Cascade, CascadeEvents
from sluice.cdc_engine.binlog.rows.decoder import OPERATION, RowDecoder, ValueLocations
from sluice.cdc_engine.binlog.rows.refused_values import DEFAULT_POLICY, ValuePolicy
from sluice.cdc_engine.contracts import Block, BlockSlice, Int64s, Operation, RowEventKind, TableVersion
from sluice.cdc_engine.errors import SluiceError, TableStoppedError
from sluice.cdc_engine.states import TableState

logger = logging.getLogger(__name__)

ROW_INDEX = "_sluice_sequence_number"
# How many low bits of a sequence number identify the row and the image within an event. The higher bits are the number of the event.
EVENT_BITS = 32
FLAGS_AT = 19 + 6  # The offset of the flags in a row event, after the event's header and the table ID.
# A flag of a row event: the session had foreign_key_checks=0, so foreign keys changed no rows.
NO_FOREIGN_KEY_CHECKS = 0x02
# The offset in a row event, after the flags, at which the number of columns and then the bitmaps begin. In version 2 of the event, the
# length of the extra data and the extra data are at this offset, and the number of columns comes after them.
BITMAPS_AT = 19 + 8
# A row event has its number of columns in one byte if the number is at most this. For tables with more columns, Sluice does not read the
# bitmaps, and assumes that every row event removes values to which foreign keys refer.
SHORT_COUNT_MAX = 250
CASCADE, SET_NULL = "CASCADE", "SET NULL"
# The policy with which the referenced columns of parent rows are decoded. A zero date does not become NULL, but stops the child tables,
# because a zero date in a child row can refer to a parent row, and NULL cannot.
AS_WRITTEN = ValuePolicy(zero_dates="error")
APPLY, IGNORE = "apply", "ignore"
Stop = Callable[[tuple[str, str], str, str], None]


class RowPositions:
    """Computes the sequence numbers of a table's rows, one record batch after another. The numbers order the rows of all tables of a batch.
    A number consists of the numbers of event, row and image (`EVENT_BITS`). The rows of an event may continue in the next record batch.
    """

    def __init__(self) -> None:
        self._last_event, self._rows = -1, 0

    def of(self, events: Int64s, operations: Any) -> Int64s:
        """Returns the sequence number of each row image. `events` has, for each image, the number of its event in the batch, in ascending
        order. `operations` has the operation of each image.
        """
        after = (operations != Operation.UPDATE_BEFORE).astype(np.int64)
        # How many rows come before each image. An update is counted at its after image, so both images of the update get the same number.
        done = np.cumsum(after) - after
        first = np.searchsorted(events, events, side="left")
        row = done - done[first]
        if len(events) and events[0] == self._last_event:
            row[events == events[0]] += self._rows
        if len(events):
            self._last_event, self._rows = int(events[-1]), int(row[-1] + after[-1])
        indices: Int64s = (events << EVENT_BITS) | (row << 1) | after
        return indices


class PositionFile:
    """Writes the sequence numbers of one table's staged rows to a file. The first `rows_before` rows of the table were staged before this
    file was created. They get the sequence number 0, because they precede all changes that foreign keys make.
    """

    def __init__(self, path: Path, *, rows_before: int) -> None:
        self.path, self._positions = path, RowPositions()
        path.write_bytes(bytes(8 * rows_before))

    def add(self, events: Int64s, operations: Any) -> None:
        with self.path.open("ab") as file:
            file.write(self._positions.of(events, operations).astype("<i8").tobytes())

    def finish(self) -> Path:
        return Path(self.path.name)


@dataclasses.dataclass
class _Writer:
    """Writes the deleted rows and changed keys of one version of a parent table to a file. Of the table's columns, the file has only those
    in `referenced`, to which foreign keys refer. Another set of referenced columns needs another writer.
    """

    version: TableVersion
    referenced: tuple[str, ...]
    decoder: RowDecoder
    path: Path
    positions: RowPositions
    file: pq.ParquetWriter | None = None
    rows: int = 0
    kinds: set[int] = dataclasses.field(default_factory=set)

    def add(self, rows: pa.RecordBatch, events: Int64s) -> None:
        operations = rows.column(OPERATION).to_numpy()
        indices = self.positions.of(events, operations)
        before = np.flatnonzero(operations == Operation.UPDATE_BEFORE)
        chosen = np.sort(np.concatenate((np.flatnonzero(operations == Operation.DELETE), before, before + 1)))
        if not len(chosen):
            return
        self.kinds |= set(operations[chosen].tolist())
        kept = rows.take(chosen).append_column(ROW_INDEX, pa.array(indices[chosen]))
        if self.file is None:
            self.file = pq.ParquetWriter(self.path, kept.schema, compression="none")
        self.file.write_batch(kept)
        self.rows += len(chosen)

    def finish(self) -> CascadeEvents:
        if self.file is not None:
            self.file.close()
        return CascadeEvents(
            parent=(self.version.database, self.version.table),
            referenced=self.referenced,
            file=Path(self.path.name),
            rows=self.rows,
            cascades=self.version.cascades,
        )


class CascadeRecorder:
    """Records, for one batch, the deleted rows and the changed keys of parent tables. If an event cannot be recorded, the run cannot
    compute the changes of the child tables. The recorder then calls `stop` with (child table, state, reason) for each child table.
    """

    def __init__(self, directory: Path, stop: Stop) -> None:
        self._directory, self._stop = directory, stop
        self._writers: dict[tuple[TableVersion, tuple[str, ...]], _Writer] = {}
        self._events: list[CascadeEvents] = []

    def take(
        self,
        part: BlockSlice,
        version: TableVersion,
        chosen: Int64s,
        first_event: int,
        policy: ValuePolicy = DEFAULT_POLICY,
    ) -> None:
        """Records deleted rows and changed keys from row events of one table version. `chosen` are the ascending indices of these events in
        the block. `first_event` is the number, in the batch, of the first event of `part`.

        Masked values are never recorded. If `policy` masks a referenced column, the child tables stop when a row of the parent table is
        deleted, or when an update may change a referenced column.
        """
        try:
            self._take(part, version, chosen, first_event, policy)
        except TableStoppedError as error:
            self._unseen(version, error)
        except (SluiceError, OSError, MemoryError):
            raise
        except Exception as error:  # An unexpected error stops only the child tables of this table.
            self._unseen(version, _unexpected(version, error))

    def _take(
        self, part: BlockSlice, version: TableVersion, chosen: Int64s, first_event: int, policy: ValuePolicy
    ) -> None:
        acting = chosen[_acting(part.block, chosen)]
        own = [each for each in version.cascades if each.parent == (version.database, version.table)]
        for referenced in dict.fromkeys(each.referenced for each in own) if len(acting) else ():
            if not referenced:
                raise TableStoppedError(
                    *version.cascades[0].parent,
                    TableState.SCHEMA_UNKNOWN,
                    "a foreign key names no referenced columns, and the parent table has no primary key",
                )
            self._record(part, version, referenced, acting, first_event, masked=policy.rules.masks_any(referenced))

    def close(self) -> None:
        """Closes the files. Call `close` before `set_off`. If a file cannot be completed because of an unexpected error, the child tables
        of the file's parent table stop, and `set_off` yields no entry for the file. Raises SluiceError, OSError and MemoryError, which
        concern the whole batch.
        """
        for key, writer in tuple(self._writers.items()):
            try:
                self._events.append(writer.finish())
            except (SluiceError, OSError, MemoryError):
                raise
            except Exception as error:  # An unexpected error stops only the child tables of this table.
                del self._writers[key]
                self._unseen(writer.version, _unexpected(writer.version, error))

    def finish(self) -> Iterator[CascadeEvents]:
        """Yields an entry for the manifest for each file with recorded rows. Call it after `close`."""
        yield from (events for events in self._events if events.rows)

    def set_off(self) -> Iterator[tuple[tuple[Cascade, ...], tuple[str, ...], bool, bool]]:
        """Yields what `reached` needs to find the child tables: an entry for each table version and each set of referenced columns with
        recorded rows. An entry has the version's cascades, the referenced columns, whether rows were deleted, and whether the referenced
        columns changed.
        """
        for writer in self._writers.values():
            if writer.rows:
                updates = Operation.UPDATE_AFTER in writer.kinds
                yield writer.version.cascades, writer.referenced, Operation.DELETE in writer.kinds, updates

    def abandon(self) -> None:
        for writer in self._writers.values():
            if writer.file is not None:
                writer.file.close()

    def _record(
        self,
        part: BlockSlice,
        version: TableVersion,
        referenced: tuple[str, ...],
        acting: Int64s,
        first_event: int,
        *,
        masked: bool,
    ) -> None:
        acting = acting[_may_remove(part.block, acting, version, referenced)]
        writer = self._writers.get((version, referenced)) or self._writer(version, referenced)
        for rows in writer.decoder.chunks(part.block, acting):
            if len(rows.schema) != len(writer.decoder.schema):
                where = f"a row event at {part.block.file}:{int(part.block.event_position[acting[0]])}"
                reason = f"{where} lacks the referenced columns; set binlog_row_image=FULL on the source"
                raise TableStoppedError(version.database, version.table, TableState.IMAGE_NOT_FULL, reason)
            if masked and (rows.column(OPERATION).to_numpy() != Operation.UPDATE_AFTER).any():
                raise TableStoppedError(
                    version.database,
                    version.table,
                    TableState.ROWS_RULE,
                    "conf/ masks the referenced columns: remove them from `masks`",
                )
            events = acting[writer.decoder.events_of(rows.num_rows)] - part.first_event + first_event
            writer.add(rows, events)

    def _writer(self, version: TableVersion, referenced: tuple[str, ...]) -> _Writer:
        keyed = dataclasses.replace(version, key=referenced)
        wanted = {name.lower() for name in referenced}
        kept = [index for index, column in enumerate(version.columns) if column.name.lower() in wanted]
        path = self._directory / f"cascade.{len(self._writers)}.parquet"
        decoder = RowDecoder(keyed, np.array(kept, np.int32), ValueLocations(), AS_WRITTEN, nulls_in_key=True)
        return self._writers.setdefault(
            (version, referenced), _Writer(version, referenced, decoder, path, RowPositions())
        )

    def _unseen(self, version: TableVersion, error: TableStoppedError) -> None:
        reason = (
            f"foreign keys change rows of the table when rows of {version.name} change, and the referenced "
            f"columns of {version.name} cannot be read ({error.state}: {error.reason})"
        )
        for child in dict.fromkeys(each.child for each in version.cascades if each.captured):
            self._stop(child, TableState.CASCADE_UNSEEN, reason)


def _unexpected(version: TableVersion, error: Exception) -> TableStoppedError:
    """Converts an unexpected error to an error that stops the child tables of the table `version`, and logs the stack trace."""
    logger.error(
        "changes of table %s, whose values foreign keys refer to, could not be recorded",
        version.name,
        exc_info=error,
    )
    reason = f"a defect of Sluice ({type(error).__name__}: {error}); report it with the trace in the log"
    return TableStoppedError(version.database, version.table, TableState.MERGE_FAILED, reason)


def _acting(block: Block, chosen: Int64s) -> Any:
    """Returns a mask of the events `chosen`, with True for each event that deletes or updates rows in a session with foreign key checks.
    Only such events make foreign keys change rows.
    """
    flags = block.buffer[block.event_offset[chosen] + FLAGS_AT]
    return (block.event_kind[chosen] != RowEventKind.INSERT) & ((flags & NO_FOREIGN_KEY_CHECKS) == 0)


def _may_remove(block: Block, chosen: Int64s, version: TableVersion, referenced: tuple[str, ...]) -> Any:
    """Returns a mask of the events `chosen`, with True for each event that may remove values to which foreign keys refer. An update whose
    after images have no referenced column (binlog_row_image MINIMAL) removes no such value. For a table with more than SHORT_COUNT_MAX
    columns, the bitmaps of an event are not read, and every event counts as removing such values.
    """
    count = len(version.columns)
    if count > SHORT_COUNT_MAX:
        return np.ones(len(chosen), bool)
    buffer, at = block.buffer, block.event_offset[chosen] + BITMAPS_AT
    last = len(buffer) - 1

    def byte(offset: Any) -> Any:
        return buffer[np.minimum(offset, last)].astype(np.int64)

    at += np.where(block.event_version[chosen] > 1, byte(at) | byte(at + 1) << 8, 0)
    removing = (block.event_kind[chosen] != RowEventKind.UPDATE) | (byte(at) != count)
    after = at + 1 + (count + 7 >> 3)
    for index, column in enumerate(version.columns):
        if column.name.lower() in {name.lower() for name in referenced}:
            removing |= byte(after + (index >> 3)) >> (index & 7) & 1 != 0
    return removing


def reached(
    cascades: tuple[Cascade, ...],
    referenced: tuple[str, ...],
    *,
    deletes: bool,
    updates: bool,
    live: Callable[[tuple[str, str]], bool],
) -> dict[tuple[str, str], bool]:
    """Returns the captured tables that foreign keys may change because of the recorded rows of a parent table. The value of a table is
    False if Sluice can compute the table's changes. The value is True if foreign keys lead to the table through another table whose changes
    the lake does not apply: a table that is not captured, or for which `live` returns False.

    `cascades` are the foreign keys of a TableVersion: first the foreign keys that refer to the parent table, then those of the tables below
    it. `referenced` are the columns that were recorded. `deletes` says whether recorded rows were deleted, and `updates` whether
    `referenced` columns changed.
    """
    found: dict[tuple[str, str], bool] = {}
    begin = (cascades[0].parent, deletes, frozenset(referenced if updates else ()), False)
    waiting, seen = [begin], {begin}
    while waiting:
        now = waiting.pop()
        table, goes, changed, blind = now
        for each in cascades:
            if each.parent != table or (now == begin and each.referenced != referenced):
                continue
            gone, columns = _effect(each, goes=goes, changes=bool(changed & set(each.referenced)))
            if not gone and not columns:
                continue
            if each.captured:
                found[each.child] = found.get(each.child, False) or blind
            following = (each.child, gone, columns, blind or not (each.captured and live(each.child)))
            if following not in seen:
                seen.add(following)
                waiting.append(following)
    return found


def _effect(each: Cascade, *, goes: bool, changes: bool) -> tuple[bool, frozenset[str]]:
    """Returns (whether a cascade deletes rows of the child, the columns of the child that it changes). `goes` says whether rows of the
    parent are deleted, and `changes` whether their referenced columns change. If `each.doubt` is set, assumes that the cascade deletes rows
    and changes all columns of the foreign key.
    """
    columns = frozenset(each.columns)
    if each.doubt:
        return True, columns
    changed = (goes and each.on_delete == SET_NULL) or (changes and bool(each.on_update))
    return goes and each.on_delete == CASCADE, columns if changed else frozenset()
