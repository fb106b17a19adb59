"""Forks the Python workers of the local Spark server from a process that has already imported the modules that the workers' tasks use.

    python -m sluice.console.toolchain.spark.python_daemon pyspark.worker

Spark starts this module instead of pyspark's own daemon, which does the same but imports none of these modules early. Spark ends a worker
that was idle for a minute, and starts another worker for the next batch of small tables. Without the early imports, each worker would need
half a second of processor time to import the modules.
"""

import sys

# Names of the archives that this module removes from Python's search path. Spark adds pyspark.zip, py4j's zip file and the jar of Spark's
# core to this path. Each task calls `importlib.invalidate_caches`, which makes each importer of a zip file or jar read the list of its
# files again. This takes 0.14 s of processor time per task for the zip files, and as much for the jar. The archives are not needed: the
# installed pyspark has the same version and is in a folder, and the jar contains no Python. Other zip files, such as those of
# `spark.submit.pyFiles`, remain in the path.
SPARKS = ("pyspark.zip", "py4j-", "spark-core_")
sys.path[:] = [each for each in sys.path if not any(name in each.rpartition("/")[2] for name in SPARKS)]
sys.path_importer_cache.clear()

import deltalake  # noqa: E402, F401
import pandas as pd  # type: ignore[import-untyped]  # noqa: E402, F401  pyarrow imports it with its first conversion
import pyarrow.compute  # noqa: E402, F401
from pyspark import daemon  # noqa: E402

if __name__ == "__main__":
    daemon.manager()  # type: ignore[no-untyped-call]
