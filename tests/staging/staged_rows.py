"""Reads the rows of a staged batch, for tests of staging and of decoded values."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sluice.batch_manifest.values import ChangesSegment


def read_rows(directory: Path, segment: ChangesSegment) -> pa.Table:
    """Returns the segment's row images, in stream order."""
    return pq.read_table(directory / segment.file)
