"""The path of the archive of Spark's classes, and the JVM options that use it. Used by each start of the server, written by `rehearsal`.

A starting Spark server reads and verifies ten thousand classes from its jars. Java can write them as they are in memory and map that file
at the next start (JEP 350). The archive is valid for one Java and for these jars at these paths. A JVM that finds others reports that in
Spark's log, and reads the jars.
"""

import hashlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

from sluice.console.toolchain.cache import Cache
from sluice.console.toolchain.java import Java
from sluice.console.toolchain.spark.home import spark_home

KEPT_MAX = 3  # 0.2 GB each, one per Java and pyspark


def class_archive(cache: Cache, java: Java) -> Path:
    """Returns the file for this Java and the jars of this installation; it need not exist."""
    home = java.home.resolve()
    jars = sorted((spark_home(cache) / "jars").glob("*.jar"))
    stamps = [f"{jar} {jar.stat().st_size} {jar.stat().st_mtime_ns}" for jar in jars]
    release = home / "release"
    parts = [str(home), release.read_text() if release.exists() else "", *stamps]
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return cache.classes / f"{name}.jsa"


def reading_options(archive: Path) -> Sequence[str]:
    """Returns Java options for a starting server; none if there is no archive."""
    return (f"-XX:SharedArchiveFile={archive}",) if archive.exists() else ()


def writing_options(archive: Path) -> Sequence[str]:
    """Returns Java options for a server whose only task is to write its classes to the archive when it ends: optimizing its code would be
    a waste.
    """
    return (f"-XX:ArchiveClassesAtExit={archive}", "-XX:TieredStopAtLevel=1")


def can_archive(java: Java) -> bool:
    """Returns whether this Java contains the archive of its own classes, which another one extends."""
    shown = subprocess.run([java.program, "-Xshare:on", "-version"], capture_output=True, timeout=60, check=False)
    return shown.returncode == 0


def remove_oldest(cache: Cache) -> None:
    """Removes the archives of Javas and pysparks that were used longest ago."""
    archives = sorted(cache.classes.glob("*.jsa"), key=lambda archive: archive.stat().st_mtime)
    for archive in archives[:-KEPT_MAX]:
        archive.unlink(missing_ok=True)
