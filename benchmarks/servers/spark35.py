"""Gets Spark 3.5 with Delta 3.3: pyspark's files from PyPI, the jars from Maven. Used by the tests.

Not 3.5.6 or 3.5.7, in which Delta 3.3 cannot replace a table (delta-io/delta#4671)."""

import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.servers.uv import uv
from sluice.console.toolchain.cache import Cache, locked, open_cache
from sluice.console.toolchain.setup import set_up
from sluice.console.toolchain.spark.server import ServerSettings, SparkConnectServer

GROUP = "spark35"
VERSION = "3.5.5"
PYSPARK = f"pyspark=={VERSION} --hash=sha256:6effc9ce98edf231f4d683fd14f7270629bf8458c628d6a2620ded4bb34f3cb9"
# The only setting of conf/spark-defaults.conf that has another value before Spark 4.1.
OTHER_SETTINGS = {
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"
}


def spark35(folder: Path, memory: str = "1g") -> SparkConnectServer:
    """Returns a server of Spark 3.5, which is not started. The first call takes a download of 0.3 GB."""
    jars = set_up([], delta=False, extras=(GROUP,)).extra_jars
    settings = ServerSettings(more=OTHER_SETTINGS, home=_home(open_cache()))
    return SparkConnectServer(jars, folder, memory=memory, settings=settings)


def _home(cache: Cache) -> Path:
    """Returns pyspark's folder in the cache, and installs it there if it is missing, completely or not at all."""
    home = cache.servers / f"pyspark-{VERSION}"
    with locked(cache):
        if not home.exists():
            cache.servers.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix="pyspark-", dir=cache.servers) as made:
                wanted = Path(made) / "requirements.txt"
                wanted.write_text(PYSPARK)
                target = Path(made) / "packages"
                # Without uv's cache, which would keep 1.4 GB of the build.
                uv(
                    "pip",
                    "install",
                    "-q",
                    "--no-cache",
                    "--no-deps",
                    "--python",
                    sys.executable,
                    "--target",
                    str(target),
                    "-r",
                    str(wanted),
                )
                shutil.move(target / "pyspark", home)
    return home
