"""Reads the rows of one chunk into one Parquet file. Values have the same form as in the staged changes of the stream.

With `Marks`, the file also has Sluice's own columns. Such a file can become part of a lake table unchanged, so the publication does not
read and write the rows a second time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from sluice.cdc_engine.binlog.result_rows.decoder import RefusedCell, ResultDecoder
from sluice.cdc_engine.binlog.rows.decoder import COMMIT_TIME, COMMIT_TIME_TYPE, OPERATION, ORDER_KEY
from sluice.cdc_engine.binlog.rows.refused_values import DEFAULT_POLICY, ValuePolicy
from sluice.cdc_engine.contracts import Int32s, TableVersion
from sluice.cdc_engine.durable_files import make_folder, rename, sync
from sluice.cdc_engine.errors import TableChangedError
from sluice.cdc_engine.parquet_files import ROW_GROUP_BYTES, ROW_GROUP_ROWS, lake_writer
from sluice.cdc_engine.snapshot.chunks import Chunk, chunk_key
from sluice.cdc_engine.snapshot.pace import ReadPace
from sluice.cdc_engine.snapshot.reader import RowReader
from sluice.cdc_engine.snapshot.statements import quoted, rows_statement

READ = "snapshot"  # The value of Sluice's operation column in a row that a snapshot read.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Marks:
    """The values of Sluice's own columns for rows that a snapshot read. `order_key`: the rows contain all changes up to this order key.
    `commit_time_us` is in µs since 1970.
    """

    order_key: int
    commit_time_us: int

    def columns(self) -> dict[str, Any]:
        """Returns Sluice's own columns, each with one value."""
        return {
            ORDER_KEY: pa.scalar(self.order_key, pa.int64()),
            COMMIT_TIME: pa.scalar(self.commit_time_us, COMMIT_TIME_TYPE),
            OPERATION: pa.scalar(READ, pa.string()),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChunkFacts:
    """Figures of a chunk that was read. `bytes` is the size of the file, and `received` the number of bytes that the source sent. `refused`
    has the values that could not be decoded and that are therefore NULL in the file, which occurs only with the policy quarantine. With
    another policy, such a value ends the reading.
    """

    rows: int
    bytes: int
    received: int
    seconds: float
    refused: tuple[RefusedCell, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ReadRules:
    """The rules for reading the rows of a table. `where` is an SQL condition that selects rows. `pace` limits the speed. `kept` has the
    indices of the captured columns; None means all. `policy` has the settings by which values are decoded, and the table's row filter,
    masks and transform.
    """

    where: str = ""
    pace: ReadPace | None = None
    kept: Int32s | None = None
    policy: ValuePolicy = DEFAULT_POLICY


ALL_ROWS = ReadRules()


def read_chunk(
    connection: RowReader,
    table: TableVersion,
    chunk: Chunk,
    path: Path,
    rules: ReadRules = ALL_ROWS,
    *,
    marks: Marks | None = None,
) -> ChunkFacts:
    """Reads a chunk's rows into a Parquet file, even if the chunk has no rows. The file is complete and on disk when this function returns.
    The file has the table's captured columns in the table's order, and then the columns of `marks`.

    Raises TableChangedError, TableStoppedError, SourceConnectionError, ConfigurationError, or an OSError if the file cannot be written.
    After an error, the file does not exist, and the connection is closed if its SELECT had begun.
    """
    begun = time.monotonic()
    decoder, pace = ResultDecoder(table, rules.kept, rules.policy), rules.pace
    if pace is not None:
        pace.before_chunk()
    expressions = decoder.select_list([quoted(column.name) for column in decoder.columns])
    statement = rows_statement(
        table, expressions, chunk_key(connection, table), (chunk.after, chunk.up_to), rules.where
    )
    with _whole_file(path) as temporary:
        rows, received = _read(connection, decoder, statement, temporary, pace, _constants(decoder, marks))
    seconds = time.monotonic() - begun
    return ChunkFacts(
        rows=rows, bytes=path.stat().st_size, received=received, seconds=seconds, refused=decoder.take_refused()
    )


def _constants(decoder: ResultDecoder, marks: Marks | None) -> dict[str, Any]:
    """Returns the columns of `marks` and their values. Returns no columns if a column of the table has the name of one of them. The
    publication then refuses the file, because the file lacks Sluice's columns.
    """
    ours = marks.columns() if marks else {}
    clash = {name.lower() for name in decoder.schema.names} & ours.keys()
    return {} if clash else ours


def _read(  # noqa: PLR0917  one caller
    connection: RowReader,
    decoder: ResultDecoder,
    statement: str,
    path: Path,
    pace: ReadPace | None,
    constants: dict[str, Any],
) -> tuple[int, int]:
    """Reads a chunk's rows into a file. Returns the number of rows and of received bytes."""
    rows = 0
    schema = pa.schema([*decoder.schema, *(pa.field(name, value.type) for name, value in constants.items())])
    with lake_writer(path, schema, [*constants]) as writer, connection.selecting(statement) as result:
        if why := decoder.differences(result.sent_columns()):
            raise TableChangedError(f"table {decoder.version.name} was altered while its rows were read: {why}")
        for group in _row_groups(result.batches(decoder)):
            ours = [pa.repeat(value, group.num_rows) for value in constants.values()]
            whole = pa.Table.from_arrays([*group.columns, *ours], schema=schema)
            writer.write_table(whole, row_group_size=group.num_rows)
            rows += group.num_rows
            if pace is not None:
                pace.after_rows(group.num_rows)
    return rows, result.received


def _row_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Joins small batches: yields Arrow tables that have enough rows for a row group of the Parquet file."""
    pending: list[pa.RecordBatch] = []
    for batch in batches:
        # Skips a batch whose rows were all excluded by the table's row filter (`rows` in conf/).
        if not batch.num_rows:
            continue
        pending.append(batch)
        rows, size = sum(each.num_rows for each in pending), sum(each.nbytes for each in pending)
        if rows >= ROW_GROUP_ROWS or size >= ROW_GROUP_BYTES:
            yield pa.Table.from_batches(pending)
            pending = []
    if pending:
        yield pa.Table.from_batches(pending)


@contextlib.contextmanager
def _whole_file(path: Path) -> Iterator[Path]:
    """Yields a temporary path. The file is renamed to `path` if the body of the `with` statement succeeds, and removed if it fails."""
    make_folder(path.parent)
    temporary = path.with_suffix(".tmp")
    try:
        yield temporary
        sync(temporary)
        rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
