"""Creates staged batches in the format of `staging` without a source, for benchmarks that need many similar batches quickly.

The code uses the types of `staging`, so the type checker detects a change of the format. A test checks that a run can read the batches.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sluice.batch_manifest.file import MANIFEST_FILE, manifest_json
from sluice.batch_manifest.values import ChangesSegment, LakeColumn, Manifest, StagedTable
from sluice.cdc_engine.position import Position

COLUMNS = [("id", "bigint"), ("k", "int"), ("c", "string"), ("pad", "string")]
DESTINATION, DATABASE, TABLE = "bench", "bench", "t"
LEDGER_ID = "benchbench01"
FILE = "bench.t.0.parquet"
COMMIT_TIME_US = 1_767_225_600_000_000
UPDATE, DELETE = 3, 4
BYTES_A_CHANGE = 16  # The bytes of binlog per change. With this number, each change has another position.


class StagedFiles:
    """Creates staged batches of one table. 90 % of the changes are updates, which insert the row if the key is missing, and 10 % are
    deletes. Each key occurs once per batch.
    """

    def __init__(self, directory: Path, table_rows: int) -> None:
        self._directory, self._table_rows = directory, table_rows
        self._random = np.random.default_rng(11)
        self._offset, self._batch = 4, 0

    def make(self, changes: int, keys: str) -> Path:
        """Writes a batch directory with its manifest. `keys` is "close" for adjacent keys, or "anywhere" for keys scattered over the
        table.
        """
        self._batch += 1
        operations = self._random.choice(np.array([UPDATE, DELETE], np.int8), changes, p=[0.9, 0.1])
        ids = self._keys(changes, keys)
        start = self._position()
        self._offset += BYTES_A_CHANGE * changes
        folder = self._directory / f"{self._batch}"
        folder.mkdir(parents=True)
        pq.write_table(_rows(ids, operations, self._position().order_key), folder / FILE, compression="lz4")
        manifest = self._manifest(folder, ids, operations, start)
        (folder / MANIFEST_FILE).write_text(manifest_json(manifest))
        return folder

    def _position(self) -> Position:
        return Position(epoch=1, file="mysql-bin.000001", offset=self._offset)

    def _keys(self, changes: int, keys: str) -> Any:
        if keys == "close":
            first = int(self._random.integers(0, self._table_rows - changes))
            return np.arange(first, first + changes, dtype=np.int64)
        return self._random.choice(self._table_rows, changes, replace=False).astype(np.int64)

    def _manifest(self, folder: Path, ids: Any, operations: Any, start: Position) -> Manifest:
        end, rows, deletes = self._position(), len(ids), int((operations == DELETE).sum())
        size = (folder / FILE).stat().st_size
        columns = (LakeColumn(name=name, type=kind, nullable=name != "id", mysql_type=kind) for name, kind in COLUMNS)
        segment = ChangesSegment(
            file=Path(FILE),
            size_bytes=size,
            version="0",
            rows=rows,
            inserts=0,
            updates=rows - deletes,
            deletes=deletes,
            key_changes=0,
            unique_keys=True,
            first_order_key=end.order_key,
            last_order_key=end.order_key,
            key=("id",),
            key_min=(int(ids.min()),),
            key_max=(int(ids.max()),),
            columns=tuple(columns),
            first_commit_time_us=COMMIT_TIME_US,
            last_commit_time_us=COMMIT_TIME_US,
        )
        return Manifest(
            destination=DESTINATION,
            ledger_id=LEDGER_ID,
            epoch=1,
            delivery=self._batch,
            start=start.to_json(),
            end=end.to_json(),
            end_order_key=end.order_key,
            rows=rows,
            changes=rows,
            bytes=size,
            staged_at_us=COMMIT_TIME_US,
            tables=(StagedTable(database=DATABASE, table=TABLE, segments=(segment,)),),
            first_commit_time_us=COMMIT_TIME_US,
            last_commit_time_us=COMMIT_TIME_US,
        )


def _rows(ids: Any, operations: Any, order_key: int) -> pa.Table:
    """Returns the row images of one transaction."""
    text = pa.array([f"{number:0119d}" for number in ids])
    return pa.table(
        {
            "_sluice_operation": pa.array(operations, pa.int8()),
            "_sluice_order_key": pa.array(np.full(len(ids), order_key)),
            "_sluice_commit_time": pa.array(np.full(len(ids), COMMIT_TIME_US), pa.timestamp("us", "UTC")),
            "_sluice_row": pa.array(np.arange(1, len(ids) + 1)),
            "id": ids,
            "k": pa.array(ids % 997, pa.int32()),
            "c": text,
            "pad": text,
        }
    )
