"""Reads a staged batch back: its manifest and the rows of a segment. For tests and the console; runs read it by themselves (spark_jobs)."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from cdc_engine.errors import StagingError
from cdc_engine.staging.manifest import MANIFEST_FILE, ChangesSegment, Manifest


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a staged batch's directory. Raises StagingError where there is none that can be read."""
    path = directory / MANIFEST_FILE
    try:
        return Manifest.from_json(json.loads(path.read_bytes()))
    except FileNotFoundError:
        raise StagingError(
            f"{directory} has no {MANIFEST_FILE}: it is not a batch that was staged to its end; roll the batch back"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StagingError(
            f"{path} cannot be read as a manifest ({error}); roll the batch back to stage it again"
        ) from error


def read_rows(directory: Path, segment: ChangesSegment) -> pa.Table:
    """The segment's row images, in stream order."""
    return pq.read_table(directory / segment.file)
