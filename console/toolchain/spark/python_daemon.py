"""Forks the Python workers of the local Spark server, with what their tasks import already imported. Spark starts it (`server`).

    python -m sluice.console.toolchain.spark.python_daemon pyspark.worker

Otherwise it is pyspark's own daemon. Spark ends a worker that was idle for a minute, and the next batch of small tables gets a new one: it
would import these packages first, which takes half a second of processor time."""

import deltalake  # noqa: F401
import pandas as pd  # type: ignore[import-untyped]  # noqa: F401  pyarrow imports it with its first conversion
import pyarrow.compute  # noqa: F401
from pyspark import daemon

if __name__ == "__main__":
    daemon.manager()  # type: ignore[no-untyped-call]
