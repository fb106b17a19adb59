"""Forks the Python workers of the local Spark server from a process that has imported the packages that their tasks use.

    python -m sluice.console.toolchain.spark.python_daemon pyspark.worker

Spark starts it instead of pyspark's own daemon, which it otherwise equals. Spark ends a worker that was idle for a minute, and starts
another for the next batch of small tables. Without the early imports, each worker needs half a second of processor time for them.
"""

import deltalake  # noqa: F401
import pandas as pd  # type: ignore[import-untyped]  # noqa: F401  pyarrow imports it with its first conversion
import pyarrow.compute  # noqa: F401
from pyspark import daemon

if __name__ == "__main__":
    daemon.manager()  # type: ignore[no-untyped-call]
