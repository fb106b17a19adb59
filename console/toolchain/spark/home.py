"""Makes the SPARK_HOME from which servers and clusters start: pyspark's files as hard links in the cache. Both use it, and the class
archive.

Java ties an archive of classes to the paths of the jars. The paths in an environment differ between checkouts, those in the cache do not,
so all checkouts share one archive. Hard links take no space, and remain when their environment is deleted."""

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path

from sluice.console.toolchain.cache import Cache
from sluice.console.toolchain.python_packages import pyspark_home

# The parts that a server, a worker of a cluster and their Python processes read.
PARTS = ("bin", "sbin", "jars", "python")
# Left out: each environment compiles its own bytecode. Its file times would give each checkout a separate directory and class archive.
BYTECODE = "__pycache__"
# A directory from which nothing was started for this long is removed when another is created. A running Spark reads its
# own.
UNUSED_SECONDS_MAX = 30 * 86_400.0


def spark_home(cache: Cache) -> Path:
    """Returns the directory, one per set of files, and creates it if it is missing."""
    own = pyspark_home()
    home = cache.spark / _name(own)
    if not home.exists():
        _link(own, home)
        _remove_unused(home.parent)
    # In a cache of several users, only the owner may set the time.
    with contextlib.suppress(PermissionError):
        os.utime(home)
    return home


def _name(own: Path) -> str:
    found = (path for part in PARTS for path in sorted((own / part).rglob("*")) if path.is_file())
    files = [path for path in found if BYTECODE not in path.relative_to(own).parts]
    stamps = [f"{path.relative_to(own)} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files]
    return hashlib.sha256("\n".join(stamps).encode()).hexdigest()[:16]


def _link(own: Path, home: Path) -> None:
    """Creates the directory completely or not at all, because another start may do the same now."""
    ignored = shutil.ignore_patterns(BYTECODE)
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="home-", dir=home.parent) as folder:
        made = Path(folder) / home.name
        for part in PARTS:
            if (own / part).exists():
                shutil.copytree(own / part, made / part, ignore=ignored, copy_function=_link_or_copy)
        try:
            made.rename(home)
        except OSError:
            if not home.exists():
                raise


def _link_or_copy(source: str, target: str) -> None:
    """Links a file, or copies it if the environment is on another disk. A link takes no space and keeps the file's time."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _remove_unused(homes: Path) -> None:
    for home in homes.iterdir():
        if time.time() - home.stat().st_mtime > UNUSED_SECONDS_MAX:
            shutil.rmtree(home, ignore_errors=True)
