"""Defines the transform of a table of `test_production_ha`, as an operator writes one, with a gate at which a test can stop it."""

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
