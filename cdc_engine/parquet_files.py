"""Opens writers for Parquet files of rows: for the staged files of `staging`, and for the initial rows of `snapshot`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

# The maximum of Arrow data in a row group: large enough for fast scans, small compared with the host's memory.
ROW_GROUP_BYTES = 16 << 20
ROW_GROUP_ROWS = 1 << 16
WRITE_BATCH_ROWS = 1 << 14  # The rows that pyarrow encodes at a time: twice as fast as with its default of 1024.
# Staged files are read once, from the local disk. For text that does not repeat, lz4 takes three times as long and saves 12 %.
COMPRESSION: Literal["none"] = "none"


def parquet_writer(path: Path, schema: pa.Schema, bounds: Sequence[str]) -> pq.ParquetWriter:
    """Opens the file. `bounds`: the columns with statistics, by which readers skip row groups; the others get none. Raises OSError."""
    return pq.ParquetWriter(
        path,
        schema,
        compression=COMPRESSION,
        use_dictionary=False,
        write_batch_size=WRITE_BATCH_ROWS,
        write_statistics=list(bounds),
    )


def lake_writer(path: Path, schema: pa.Schema, repeated: Sequence[str] = ()) -> pq.ParquetWriter:
    """Opens a file that may become part of a lake table. `repeated`: columns with few distinct values. Raises OSError.

    The file is compressed, because the lake keeps it: zstd takes a third more time than no compression. Only `repeated` columns get a
    dictionary, because other text becomes smaller without one.
    """
    return pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=list(repeated) or False,  # type: ignore[arg-type]
        write_batch_size=WRITE_BATCH_ROWS,
    )
