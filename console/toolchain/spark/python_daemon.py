"""Forks the Python workers of the local Spark server from a process that has already imported what their tasks use.

    python -m sluice.console.toolchain.spark.python_daemon pyspark.worker

Spark starts this module instead of pyspark's own daemon, which lacks only the early imports. Spark ends a worker that was idle for a
minute, and starts another worker for the next batch of small tables. Without the early imports, each worker would need half a second of
processor time for them.
"""

import sys

# Spark puts pyspark.zip and py4j's zip on the path. Each task calls `importlib.invalidate_caches`, which reads the list of files in the zip
# again for each package that was imported from it: 0.14 s of processor time per task. The installed pyspark has the same version and is in
# a folder. Other zip files, such as those of `spark.submit.pyFiles`, stay.
sys.path[:] = [each for each in sys.path if not each.endswith("pyspark.zip") and "py4j-" not in each]
sys.path_importer_cache.clear()

import deltalake  # noqa: E402, F401
import pandas as pd  # type: ignore[import-untyped]  # noqa: E402, F401  pyarrow imports it with its first conversion
import pyarrow.compute  # noqa: E402, F401
from pyspark import daemon  # noqa: E402

if __name__ == "__main__":
    daemon.manager()  # type: ignore[no-untyped-call]
