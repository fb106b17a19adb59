"""Locates the archive of Spark's classes, and returns the JVM options for it. Each start of the server uses it; `rehearsal` writes it.

A starting Spark server reads and verifies ten thousand classes from its jars. Java can write them as they are in memory and map that file
at the next start (JEP 350). The archive is valid for one Java and for these jars at these paths. A JVM that finds others reports that in
Spark's log, and reads the jars."""

import hashlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

from sluice.console.toolchain.cache import Cache
from sluice.console.toolchain.java import Java
from sluice.console.toolchain.spark.home import spark_home

KEPT_MAX = 3  # Each archive takes 0.2 GB; there is one per version of Java and pyspark.


def class_archive(cache: Cache, java: Java) -> Path:
    """Returns the path of the archive for this Java and this installation's jars. It need not exist."""
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
    """Returns Java options for a server that only writes its classes to the archive when it ends. It does not optimize its code, which
    would be a waste.
    """
    return (f"-XX:ArchiveClassesAtExit={archive}", "-XX:TieredStopAtLevel=1")


def can_archive(java: Java) -> bool:
    """Returns whether this Java contains the archive of its own classes, which our archive extends."""
    shown = subprocess.run([java.program, "-Xshare:on", "-version"], capture_output=True, timeout=60, check=False)
    return shown.returncode == 0


def remove_oldest(cache: Cache) -> None:
    """Removes the archives for the Java and pyspark versions that were used longest ago."""
    archives = sorted(cache.classes.glob("*.jsa"), key=lambda archive: archive.stat().st_mtime)
    for archive in archives[:-KEPT_MAX]:
        archive.unlink(missing_ok=True)
