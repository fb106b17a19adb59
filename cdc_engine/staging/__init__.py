"""Stages batches: writes one Parquet file per table and schema version, and then the manifest (docs/architecture.md)."""

from sluice.batch_manifest.values import Manifest
from sluice.cdc_engine.staging.rules import StagingRules
from sluice.cdc_engine.staging.staging import StagingResult, batch_directory, stage

__all__ = ["Manifest", "StagingResult", "StagingRules", "batch_directory", "stage"]
