"""Runs a Hive metastore from pyspark's jars for the tests of catalogs. The metastore stores its tables in Derby."""

import time
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

from sluice.console.toolchain.errors import ServerError
from sluice.console.toolchain.java import Java
from sluice.console.toolchain.ports import LOOPBACK, free_port, listens
from sluice.console.toolchain.process import ChildProcess, last_lines
from sluice.console.toolchain.python_packages import pyspark_jar
from sluice.console.toolchain.setup import set_up

SERVER_CLASS = "org.apache.hadoop.hive.metastore.HiveMetaStore"
START_SECONDS_MAX = 90.0
POLL_SECONDS = 0.1


class HiveMetastore:
    """A Hive metastore with its own directory. All Spark servers that have `spark_settings` see the same tables."""

    def __init__(self, folder: Path, port: int | None = None, java: Java | None = None) -> None:
        self.folder = folder.absolute()
        self.port = port or free_port()
        self._java = java
        self._process: ChildProcess | None = None

    @property
    def log(self) -> Path:
        return self.folder / "metastore.log"

    @property
    def spark_settings(self) -> Mapping[str, str]:
        """The settings that make a Spark use this metastore as its catalog."""
        return {
            "spark.sql.catalogImplementation": "hive",
            "spark.hadoop.hive.metastore.uris": f"thrift://{LOOPBACK}:{self.port}",
        }

    def start(self) -> "HiveMetastore":
        """Starts the metastore, and returns when it listens. Raises ServerError if it does not listen in time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_settings()
        java = self._java or set_up([], delta=False).java
        classes = f"{self.folder}:{pyspark_jar('hive-metastore').parent}/*"
        options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", f"-Dderby.stream.error.file={self.folder / 'derby.log'}"]
        command = [str(java.program), *options, "-cp", classes, SERVER_CLASS, "-p", str(self.port)]
        self._process = ChildProcess(command, self.log, folder=self.folder)
        end = time.monotonic() + START_SECONDS_MAX
        while not listens(self.port):
            if not self._process.running or time.monotonic() > end:
                raise ServerError(f"the Hive metastore did not start; its log {self.log} ends: {last_lines(self.log)}")
            time.sleep(POLL_SECONDS)
        return self

    def kill(self) -> None:
        if self._process:
            self._process.kill()

    def _write_settings(self) -> None:
        settings = {
            "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={self.folder / 'tables'};create=true",
            "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
            "datanucleus.schema.autoCreateAll": "true",
            "hive.metastore.schema.verification": "false",
            "hive.async.log.enabled": "false",  # This logging needs a library that pyspark lacks.
            "hive.metastore.warehouse.dir": (self.folder / "warehouse").as_uri(),
        }
        each = (
            f"<property><name>{name}</name><value>{escape(value)}</value></property>"
            for name, value in settings.items()
        )
        (self.folder / "hive-site.xml").write_text(f"<configuration>{''.join(each)}</configuration>\n")
