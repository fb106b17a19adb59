"""Defines the parameters of a run for the merge of a batch. The caller of `merge_batch` creates them."""

from __future__ import annotations

import dataclasses

from sluice.spark_jobs.merging.context import MergeContext
from sluice.spark_jobs.snapshot.buffering import NO_SNAPSHOT_BUFFERS, SnapshotBuffers


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchContext(MergeContext):
    """A `MergeContext` for a whole batch.

    - `buffers`: the tables with a running snapshot. Their changes are buffered, not merged.
    - `quarantine_path`: the Delta table for values that could not be decoded.
    """

    buffers: SnapshotBuffers = NO_SNAPSHOT_BUFFERS
    quarantine_path: str = ""
