"""Defines what a run passes to the merge of a batch."""

from __future__ import annotations

import dataclasses

from sluice.spark_jobs.merging.context import MergeContext
from sluice.spark_jobs.snapshot.buffering import NO_SNAPSHOT_BUFFERS, SnapshotBuffers


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchContext(MergeContext):
    """What a run passes to the merge of a batch, in addition to what it passes to the merge of a table.

    - `buffers` has the tables with a running snapshot, whose changes are buffered instead of merged.
    - `quarantine_path` is the path of the Delta table for values that could not be decoded. If the path is empty, a batch with such values
      is refused.
    """

    buffers: SnapshotBuffers = NO_SNAPSHOT_BUFFERS
    quarantine_path: str = ""
