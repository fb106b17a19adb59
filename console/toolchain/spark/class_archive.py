"""Computes the path of the archive of Spark's classes, and the JVM options that read and write it. `rehearsal` writes the archive.

When a Spark server starts, it reads and verifies ten thousand classes from its jars. Java can instead store the loaded classes in an
archive, and map the archive into memory at the next start (JEP 350). An archive is valid for one version of Java, and for the same jars at
the same paths. A JVM with other jars writes a warning to Spark's log, and reads the jars.
"""

import hashlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

from sluice.console.toolchain.cache import Cache
from sluice.console.toolchain.java import Java
from sluice.console.toolchain.spark.home import spark_home

# The cache keeps at most this many archives: `remove_oldest` removes those that were not used for the longest time. An archive takes 0.2
# GB. Each combination of Java and pyspark has its own archive.
KEPT_MAX = 3


def class_archive(cache: Cache, java: Java) -> Path:
    """Returns the path of the archive for this Java and the jars of this installation. The archive may not exist yet."""
    home = java.home.resolve()
    jars = sorted((spark_home(cache) / "jars").glob("*.jar"))
    stamps = [f"{jar} {jar.stat().st_size} {jar.stat().st_mtime_ns}" for jar in jars]
    release = home / "release"
    parts = [str(home), release.read_text() if release.exists() else "", *stamps]
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return cache.classes / f"{name}.jsa"


def reading_options(archive: Path) -> Sequence[str]:
    """Returns the Java options of a server that reads its classes from the archive. Returns no options if the archive does not exist."""
    return (f"-XX:SharedArchiveFile={archive}",) if archive.exists() else ()


def writing_options(archive: Path) -> Sequence[str]:
    """Returns the Java options of a server that writes its classes to the archive when it ends. With these options, the JVM optimizes
    its code only partly, because this server runs only once.
    """
    return (f"-XX:ArchiveClassesAtExit={archive}", "-XX:TieredStopAtLevel=1")


def can_archive(java: Java) -> bool:
    """Returns whether this Java runtime has an archive of its own classes. Sluice's archive extends Java's archive, and cannot be used
    without it.
    """
    shown = subprocess.run([java.program, "-Xshare:on", "-version"], capture_output=True, timeout=60, check=False)
    return shown.returncode == 0


def remove_oldest(cache: Cache) -> None:
    """Removes the archives that were not used for the longest time, so that at most KEPT_MAX archives remain."""
    archives = sorted(cache.classes.glob("*.jsa"), key=lambda archive: archive.stat().st_mtime)
    for archive in archives[:-KEPT_MAX]:
        archive.unlink(missing_ok=True)
