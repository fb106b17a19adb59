"""Writes a batch as one Parquet file per table and schema version, and a manifest that is written last (docs/architecture.md)."""

from cdc_engine.staging.manifest import Manifest
from cdc_engine.staging.staging import StagedBatch, batch_directory, stage

__all__ = ["Manifest", "StagedBatch", "batch_directory", "stage"]
