"""How a Parquet file of staged rows is written. Used by `staging` and `snapshot`, so that a run reads both alike."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

ROW_GROUP_BYTES = 16 << 20  # of Arrow data: large enough for fast scans, small beside the host's memory
ROW_GROUP_ROWS = 1 << 16
WRITE_BATCH_ROWS = 1 << 14  # rows that pyarrow encodes at a time: twice as fast as with its 1024
COMPRESSION: Literal["none"] = (
    "none"  # read once from the local disk: on text that does not repeat, lz4 takes thrice the time for 12 %
)


def parquet_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Opens the file. Raises OSError."""
    return pq.ParquetWriter(
        path, schema, compression=COMPRESSION, use_dictionary=False, write_batch_size=WRITE_BATCH_ROWS
    )
