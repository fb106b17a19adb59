"""Forks the Python workers of the local Spark server from a process that has already imported what their tasks use.

    python -m sluice.console.toolchain.spark.python_daemon pyspark.worker

Spark starts this module instead of pyspark's own daemon, which lacks only the early imports. Spark ends a worker that was idle for a
minute, and starts another worker for the next batch of small tables. Without the early imports, each worker would need half a second of
processor time for them.
"""

import deltalake  # noqa: F401
import pandas as pd  # type: ignore[import-untyped]  # noqa: F401  pyarrow imports it with its first conversion
import pyarrow.compute  # noqa: F401
from pyspark import daemon

if __name__ == "__main__":
    daemon.manager()  # type: ignore[no-untyped-call]
