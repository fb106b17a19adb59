"""Returns the path of the archive of Spark's classes, and the JVM options to use it. `rehearsal` writes the archive.

A starting Spark server reads and verifies ten thousand classes from its jars. Java can store the loaded classes in a file, and map that
file into memory at the next start (JEP 350). The archive is valid for one Java version and for the same jars at the same paths. A JVM
with other jars reports that in Spark's log, and reads the jars.
"""

import hashlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

from sluice.console.toolchain.cache import Cache
from sluice.console.toolchain.java import Java
from sluice.console.toolchain.spark.home import spark_home

KEPT_MAX = 3  # How many archives are kept. Each takes 0.2 GB, and each combination of Java and pyspark has one.


def class_archive(cache: Cache, java: Java) -> Path:
    """Returns the path of the archive for this Java and the jars of this installation. The file need not exist."""
    home = java.home.resolve()
    jars = sorted((spark_home(cache) / "jars").glob("*.jar"))
    stamps = [f"{jar} {jar.stat().st_size} {jar.stat().st_mtime_ns}" for jar in jars]
    release = home / "release"
    parts = [str(home), release.read_text() if release.exists() else "", *stamps]
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return cache.classes / f"{name}.jsa"


def reading_options(archive: Path) -> Sequence[str]:
    """Returns the Java options to start a server with the archive; none if the archive does not exist."""
    return (f"-XX:SharedArchiveFile={archive}",) if archive.exists() else ()


def writing_options(archive: Path) -> Sequence[str]:
    """Returns the Java options for a server that writes its classes to the archive when it ends. The JVM does not optimize its code,
    because the server runs only once.
    """
    return (f"-XX:ArchiveClassesAtExit={archive}", "-XX:TieredStopAtLevel=1")


def can_archive(java: Java) -> bool:
    """Returns whether this Java contains the archive of its own classes, which Sluice's archive extends."""
    shown = subprocess.run([java.program, "-Xshare:on", "-version"], capture_output=True, timeout=60, check=False)
    return shown.returncode == 0


def remove_oldest(cache: Cache) -> None:
    """Removes the archives that were not used for the longest time, except KEPT_MAX."""
    archives = sorted(cache.classes.glob("*.jsa"), key=lambda archive: archive.stat().st_mtime)
    for archive in archives[:-KEPT_MAX]:
        archive.unlink(missing_ok=True)
