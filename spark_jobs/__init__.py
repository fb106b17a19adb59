"""Merges staged batches into Delta tables with Spark. Runs inside a Dagster run or from the command line, and depends on neither."""

from spark_jobs.errors import MergeError, SparkJobError, SparkUnavailableError, StagedBatchError
from spark_jobs.report import TableReport, TableTarget
from spark_jobs.run_batch import merge_batch
from spark_jobs.session import SparkSettings

__all__ = [
    "MergeError",
    "SparkJobError",
    "SparkSettings",
    "SparkUnavailableError",
    "StagedBatchError",
    "TableReport",
    "TableTarget",
    "merge_batch",
]
