"""Forks the Python workers of the local Spark server from a process that has already imported what their tasks use.

    python -m sluice.console.toolchain.spark.python_daemon pyspark.worker

Spark starts this module instead of pyspark's own daemon, which lacks only the early imports. Spark ends a worker that was idle for a
minute, and starts another worker for the next batch of small tables. Without the early imports, each worker would need half a second of
processor time for them.
"""

import sys

# Spark puts pyspark.zip, py4j's zip and the jar of its core on the path. Each task calls `importlib.invalidate_caches`, which reads the
# list of files in a zip or jar again for each importer of it. This takes 0.14 s of processor time per task for the zip files, and as much
# for the jar. The installed pyspark has the same version and is in a folder, and the jar has no Python. Other zip files, such as those of
# `spark.submit.pyFiles`, stay.
SPARKS = ("pyspark.zip", "py4j-", "spark-core_")
sys.path[:] = [each for each in sys.path if not any(name in each.rpartition("/")[2] for name in SPARKS)]
sys.path_importer_cache.clear()

import deltalake  # noqa: E402, F401
import pandas as pd  # type: ignore[import-untyped]  # noqa: E402, F401  pyarrow imports it with its first conversion
import pyarrow.compute  # noqa: E402, F401
from pyspark import daemon  # noqa: E402

if __name__ == "__main__":
    daemon.manager()  # type: ignore[no-untyped-call]
