"""Merges a staged batch as a run does, with `spark.token` of conf/: `python -m tests.spark.connect.merge_through ROOT REMOTE WAY BATCH`.

It is a separate process, because gRPC reads the certificates that it trusts only once. It prints its log at all levels, and its settings.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from sluice.batch_manifest.table_report import TableReport
from sluice.cdc_engine.config import SparkConfig
from sluice.orchestration.base.ports import MergeFailedError, MergeOrder
from sluice.orchestration.run.spark_merge import spark_merge
from tests.orchestration.fix_location import make_config

TABLE = "shop.orders"


def main(root: str, remote: str, way: str, batch: str) -> None:
    logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
    config = make_config(Path(root))
    destination = config.destinations["shop"].model_copy(update={"merge": way})
    config = config.model_copy(
        update={
            "lake": f"{root}/lake",
            "spark": SparkConfig(remote=remote, token="$SPARK_TOKEN"),  # noqa: S106  the name of a variable
            "destinations": {**config.destinations, "shop": destination},
        }
    )
    order = MergeOrder(config=config, destination="shop", batch_dir=Path(batch), tables=(TABLE,), refusal=str)
    sys.stdout.write(f"{order}\n{config.spark}\n{config.spark.address}\n")
    try:
        spark_merge(order, print_report)
    except MergeFailedError as error:
        sys.stdout.write(f"FAILED {type(error).__name__}: {error}\n")


def print_report(report: TableReport) -> None:
    sys.stdout.write(f"MERGED {report.way} {report.rows_inserted}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
