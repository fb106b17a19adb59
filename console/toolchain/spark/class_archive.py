"""Where the archive of Spark's classes lies, and what tells a JVM to use it; asked by each start of the server, filled by `rehearsal`.

A Spark server that starts reads and verifies ten thousand classes out of its jars. Java can keep them as they are in memory and map that
file at the next start (JEP 350). The archive is of one Java and of these jars at this place; a JVM that finds others says so in Spark's
log, and reads the jars.
"""

import hashlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

from console.toolchain.cache import Cache
from console.toolchain.java import Java
from console.toolchain.spark.home import spark_home

KEPT_MAX = 3  # 0.2 GB each, one for a Java and a pyspark


def class_archive(cache: Cache, java: Java) -> Path:
    """The file for this Java and the jars of this installation; whether it is there or not."""
    home = java.home.resolve()
    jars = sorted((spark_home(cache) / "jars").glob("*.jar"))
    stamps = [f"{jar} {jar.stat().st_size} {jar.stat().st_mtime_ns}" for jar in jars]
    release = home / "release"
    parts = [str(home), release.read_text() if release.exists() else "", *stamps]
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return cache.classes / f"{name}.jsa"


def reading_options(archive: Path) -> Sequence[str]:
    """Java options of a server that starts: none where there is no archive."""
    return (f"-XX:SharedArchiveFile={archive}",) if archive.exists() else ()


def writing_options(archive: Path) -> Sequence[str]:
    """Java options of a server that writes its classes there when it ends, and does nothing else: optimizing its code would be a waste."""
    return (f"-XX:ArchiveClassesAtExit={archive}", "-XX:TieredStopAtLevel=1")


def can_archive(java: Java) -> bool:
    """Whether this Java came with the archive of its own classes, upon which another can be built."""
    shown = subprocess.run([java.program, "-Xshare:on", "-version"], capture_output=True, timeout=60, check=False)
    return shown.returncode == 0


def remove_oldest(cache: Cache) -> None:
    """Those of Javas and of pysparks that were used longest ago."""
    archives = sorted(cache.classes.glob("*.jsa"), key=lambda archive: archive.stat().st_mtime)
    for archive in archives[:-KEPT_MAX]:
        archive.unlink(missing_ok=True)
