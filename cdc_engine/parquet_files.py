"""How a Parquet file of rows is written: staged ones by `staging`, those that were there before the stream by `snapshot`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

ROW_GROUP_BYTES = 16 << 20  # of Arrow data: large enough for fast scans, small beside the host's memory
ROW_GROUP_ROWS = 1 << 16
WRITE_BATCH_ROWS = 1 << 14  # rows that pyarrow encodes at a time: twice as fast as with its 1024
# Read once from the local disk: on text that does not repeat, lz4 takes thrice the time for 12 %.
COMPRESSION: Literal["none"] = "none"


def parquet_writer(path: Path, schema: pa.Schema, bounds: Sequence[str]) -> pq.ParquetWriter:
    """Opens the file. `bounds`: columns that readers leave row groups out by; of the others nobody asks for the least. Raises OSError."""
    return pq.ParquetWriter(
        path,
        schema,
        compression=COMPRESSION,
        use_dictionary=False,
        write_batch_size=WRITE_BATCH_ROWS,
        write_statistics=list(bounds),
    )


def lake_writer(path: Path, schema: pa.Schema, repeated: Sequence[str] = ()) -> pq.ParquetWriter:
    """Opens a file that may become one of a table of the lake. `repeated`: columns of few values. Raises OSError.

    Packed as it is written: zstd takes a third more time than nothing, and text without a dictionary becomes smaller than with one.
    """
    return pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=list(repeated) or False,  # type: ignore[arg-type]
        write_batch_size=WRITE_BATCH_ROWS,
    )
