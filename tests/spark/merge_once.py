"""Merges a staged batch in a Spark session of a separate process: `python -m tests.spark.merge_once BATCH LAKE JARS`.

It prints one JSON line per table.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from sluice.spark_jobs.batch.run_batch import merge_batch
from sluice.spark_jobs.session import SparkSettings
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.targets.report import TableTarget


def main(batch: str, lake: str, jars: str) -> None:
    """Merges every table of the batch into `lake`/database/table."""
    spark = SparkSettings(master="local[2]", options={"spark.jars": jars})
    tables = {table.name: target(lake, table.name) for table in read_staged_batch(Path(batch)).tables}
    for report in merge_batch(read_staged_batch(Path(batch)), tables, spark):
        sys.stdout.write(json.dumps(dataclasses.asdict(report)) + "\n")


def target(lake: str, name: str) -> TableTarget:
    """Returns the table's Delta table below `lake`."""
    return TableTarget(path=f"{lake}/{name.replace('.', '/')}")


if __name__ == "__main__":
    main(*sys.argv[1:])
