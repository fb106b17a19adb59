"""Defines a transform of a table for `test_production_ha`, as an operator writes one. A test can stop it at a gate."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from sluice.orchestration.base import failpoints

IN_TRANSFORM = "in_transform"


def people(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Writes names in capitals."""
    if rows.num_rows:
        failpoints.reach(IN_TRANSFORM)
    return pa.record_batch({"name": pc.utf8_upper(rows["name"])})
