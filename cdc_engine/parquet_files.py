"""Opens Parquet files for writing rows: the staged files of batches, and the rows of snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

# The most bytes of Arrow data in a row group: large enough for fast scans, small compared with the host's memory.
ROW_GROUP_BYTES = 16 << 20
ROW_GROUP_ROWS = 1 << 16
# How many rows pyarrow encodes at a time. Writing is twice as fast as with pyarrow's default of 1024.
WRITE_BATCH_ROWS = 1 << 14
# Staged files are not compressed, because a run reads them once, usually from the local disk. For text that does not repeat, writing with
# lz4 takes three times as long, and the file is only 12 % smaller.
COMPRESSION: Literal["none"] = "none"


def parquet_writer(path: Path, schema: pa.Schema, bounds: Sequence[str]) -> pq.ParquetWriter:
    """Opens a Parquet file for staged rows. Only the columns `bounds` get statistics, with which readers skip row groups. Raises OSError if
    the file cannot be created.
    """
    return pq.ParquetWriter(
        path,
        schema,
        compression=COMPRESSION,
        use_dictionary=False,
        write_batch_size=WRITE_BATCH_ROWS,
        write_statistics=list(bounds),
    )


def lake_writer(path: Path, schema: pa.Schema, repeated: Sequence[str] = ()) -> pq.ParquetWriter:
    """Opens a Parquet file that may become part of a lake table. `repeated` are the columns with few distinct values. Raises OSError if the
    file cannot be created.

    The file is compressed, because it stays in the lake. Writing with zstd takes only a third more time than writing without compression.
    Only the columns `repeated` get a dictionary, because text with many distinct values is smaller without a dictionary.
    """
    return pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=list(repeated) or False,  # type: ignore[arg-type]
        write_batch_size=WRITE_BATCH_ROWS,
    )
