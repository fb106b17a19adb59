"""Provides versions of Spark other than the pinned version, for the tests. pyspark comes from PyPI, and Delta's jars from Maven."""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from benchmarks.servers.installing import installed_once, uv
from sluice.console.toolchain.cache import open_cache
from sluice.console.toolchain.setup import set_up
from sluice.console.toolchain.spark.server import ServerSettings, SparkConnectServer

# Before Spark 4.1, this setting of conf/spark-defaults.conf must have another value. All other settings work.
OTHER_SETTINGS = {
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"
}
HADOOP_MODULE = "hadoop-aws"  # This module must have the version of pyspark's other Hadoop jars.
NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


@dataclasses.dataclass(frozen=True)
class OtherSpark:
    """A version of Spark with its Delta and its client for S3. `group` is the group of its jars in artifacts.toml. `sha256` is the
    checksum of pyspark's file on PyPI. With `shares_store`, Amazon's modules are those of the pinned Spark, and only Hadoop's module
    has another version.
    """

    group: str
    version: str
    sha256: str
    shares_store: bool

    def server(
        self, folder: Path, memory: str = "1g", more: Mapping[str, str] = NO_SETTINGS, stores: Sequence[str] = ()
    ) -> SparkConnectServer:
        """Returns a server that is not started yet. `more` are further settings, and `stores` are groups of jars in artifacts.toml for
        other stores than S3. The first call downloads 0.3 to 0.4 GB.
        """
        jars = set_up([], delta=False, extras=(self.group, *stores)).extra_jars
        if self.shares_store:
            client = set_up([], delta=False, extras=("s3",)).extra_jars
            jars = (*jars, *(jar for jar in client if HADOOP_MODULE not in jar.name))
        home = installed_once(open_cache(), f"pyspark-{self.version}", self._installed)
        settings = ServerSettings(more={**OTHER_SETTINGS, **more}, home=home)
        return SparkConnectServer(jars, folder, memory=memory, settings=settings)

    def _installed(self, folder: Path) -> Path:
        requirements, target = folder / "requirements.txt", folder / "packages"
        requirements.write_text(f"pyspark=={self.version} --hash=sha256:{self.sha256}")
        # uv's cache is not used, because uv would keep 1.4 GB of the build in it.
        options = ("-q", "--no-cache", "--no-deps", "--python", sys.executable)
        uv("pip", "install", *options, "--target", str(target), "-r", str(requirements))
        return target / "pyspark"


# With Spark 3.5.6 or 3.5.7, Delta 3.3 cannot replace a table (delta-io/delta#4671).
SPARK35 = OtherSpark("spark35", "3.5.5", "6effc9ce98edf231f4d683fd14f7270629bf8458c628d6a2620ded4bb34f3cb9", False)
SPARK40 = OtherSpark("spark40", "4.0.1", "9d1f22d994f60369228397e3479003ffe2dd736ba79165003246ff7bd48e2c73", True)
