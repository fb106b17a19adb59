"""Reads the rows with certain keys from the source while the stream continues, in the same way as a snapshot reads its chunks.

The caller passes a position of the binlog (low) from before the rows are read, and gets a position (high) from after the last row was read.
The rows include all changes up to the low position, and no change after the high one. They may or may not include changes between the two;
the stream shows which keys these changes concern.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.errors import ActRefusedError, TableChangedError
from sluice.cdc_engine.instance.tables.table_snapshots import SourceTables
from sluice.cdc_engine.meta.managers import read_ledger
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.snapshot.chunks import Chunk
from sluice.cdc_engine.snapshot.record import SourceEnd, has_come_past
from sluice.cdc_engine.snapshot.work import TableReader, wait_until_shown

POLL_SECONDS = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowsRead:
    """The rows that were read from one table. `files` are Parquet files that have only the table's columns. `columns` has (name, Spark
    type, nullable). `high` is the end of the source's binlog after the last row was read. `read_at_us` is when reading began, in µs since
    1970.
    """

    name: str
    key: tuple[str, ...]
    columns: tuple[tuple[str, str, bool], ...]
    files: tuple[Path, ...]
    rows: int
    high: SourceEnd
    read_at_us: int


class SourceRows:
    """Reads rows of tables from the source of one destination. The constructor opens no connection."""

    def __init__(self, config: SluiceConfig, destination: str, pause: Callable[[float], object] = time.sleep) -> None:
        self._directory, self._pause = config.destination_dir(destination), pause
        self._tables = SourceTables(config, destination)

    def read(self, name: str, conditions: Iterable[str], low: Position, folder: Path) -> RowsRead:
        """Reads the rows of the table `name` ("database.table") that meet one of the SQL `conditions`. The rows include all changes up to
        the position `low`. Raises ActRefusedError if the table is not captured, if `conditions` is empty, if the table changes during the
        read, or if its rows cannot be decoded. Raises another SluiceError if the source cannot be read.
        """
        table = self._tables.table(name)
        if table is None:
            raise ActRefusedError(f"{name} is not captured: include the table in conf/, or leave it out of the repair")
        not_null = {column.name for column in table.columns if not column.nullable} - self._tables.written(table)
        columns = tuple(
            (column, kind.lower(), column not in not_null) for column, kind in self._tables.spark_columns(table)
        )
        spelled = {column.lower(): column for column, _, _ in columns}
        files: list[Path] = []
        rows, began_us, high = 0, time.time_ns() // 1000, None
        with contextlib.closing(self._tables):
            for number, condition in enumerate(conditions, start=1):
                files.append(folder / f"{number:06d}.parquet")
                with contextlib.closing(self._tables.reader(table, condition)) as reader:
                    # Waits for each condition, because each one may be read over a new connection, perhaps from another replica. Also
                    # raises an error if another source has become the source in use.
                    wait_until_shown(reader, low, self._pause)
                    rows += _read(reader, name, number, files[-1])
                    high = reader.end()
        if high is None:
            raise ActRefusedError(
                f"{name}: the repair has no keys of rows of this table: name the keys of the rows to repair, or leave the table out"
            )
        return RowsRead(
            name=name,
            key=tuple(spelled[column.lower()] for column in table.key),
            columns=columns,
            files=tuple(files),
            rows=rows,
            high=high,
            read_at_us=began_us,
        )

    def wait_until_past(self, high: SourceEnd, low: Position, seconds: float) -> None:
        """Waits until the cursor has passed `high`, the end of the binlog after the rows were read. The lake then has every change that the
        read rows may include. Raises ActRefusedError after `seconds`, or if the stream is no longer in the epoch of `low`, the position
        before the rows were read.
        """
        deadline = time.monotonic() + seconds
        while True:
            cursor = read_ledger(self._directory).cursor
            if cursor is None or cursor.epoch != low.epoch:
                raise ActRefusedError(
                    "the stream began another epoch or lost its cursor during the repair; start the repair again"
                )
            if has_come_past(cursor, high):
                return
            if time.monotonic() >= deadline:
                raise ActRefusedError(
                    f"the repair has read rows at {high.file}:{high.offset}, and after {seconds:.0f} s the lake still lacks "
                    f"changes after {cursor}: `sluice status` shows what delays the merges; start the "
                    "repair again when the lake has caught up"
                )
            self._pause(POLL_SECONDS)


def _read(reader: TableReader, name: str, number: int, path: Path) -> int:
    """Reads the rows that meet the reader's condition into the file `path`. Uses the code that reads a chunk of a snapshot, without key
    bounds. Returns the number of rows. Raises ActRefusedError if the table changes during the read, or if a value cannot be decoded.
    """
    try:
        facts = reader.read(Chunk(number=number), path)
    except TableChangedError as error:
        raise ActRefusedError(f"{name}: {error}; start the repair again") from error
    if facts.refused:
        first = facts.refused[0]
        raise ActRefusedError(
            f"{name}: a value of column {first.column.name} cannot be decoded: {first.reason}. Correct the value in the source, "
            "or leave the table out of the repair"
        )
    return facts.rows
