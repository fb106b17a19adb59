"""Creates the SPARK_HOME from which servers and clusters start. The SPARK_HOME consists of hard links in the cache to the files of pyspark.

An archive of Spark's classes (`class_archive`) is only valid for jars with certain paths and times. The paths and times of pyspark's jars
differ between the Python environments of several checkouts. Because the jars are in the cache, all checkouts share one archive. Hard links
take no space, and the files remain when the environment is deleted.

The name of a SPARK_HOME is a digest of the content of its files. Computing this digest takes a second, because all files must be read (0.4
GB). Therefore a symbolic link leads to the SPARK_HOME. The name of the link is a digest of the sizes and times of the files in the
environment, which takes less time.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from sluice.console.toolchain.cache import Cache
from sluice.console.toolchain.python_packages import pyspark_home

# The directories of pyspark that a server, a worker of a cluster and their Python processes read.
PARTS = ("bin", "sbin", "jars", "python")
# Bytecode is left out, because each environment compiles its own bytecode, with its own times. With the bytecode, each checkout would have
# a separate SPARK_HOME and class archive.
BYTECODE = "__pycache__"
# When a SPARK_HOME is created, each other SPARK_HOME from which nothing was started for this long is removed. The time is long, because a
# running Spark may still read its SPARK_HOME.
UNUSED_SECONDS_MAX = 30 * 86_400.0


def spark_home(cache: Cache) -> Path:
    """Returns the SPARK_HOME in the cache that corresponds to the installed pyspark. Creates this SPARK_HOME if it is missing."""
    own = pyspark_home()
    files = _files(own)
    link = cache.spark / f"installed-{_digest_of_stamps(own, files)}"
    if not link.exists():
        home = cache.spark / _digest_of_content(own, files)
        if not home.exists():
            _link(own, home)
            _remove_unused(home.parent)
        _point(link, home)
    home = link.resolve()
    # The time of a SPARK_HOME is the time of its last use (see `_remove_unused`). If several users share the cache, only the owner may set
    # the time.
    with contextlib.suppress(PermissionError):
        os.utime(home)
        os.utime(link, follow_symlinks=False)
    return home


def _files(own: Path) -> list[Path]:
    found = (path for part in PARTS for path in sorted((own / part).rglob("*")) if path.is_file())
    return [path for path in found if BYTECODE not in path.relative_to(own).parts]


def _digest_of_stamps(own: Path, files: Sequence[Path]) -> str:
    stamps = [f"{path.relative_to(own)} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files]
    return hashlib.sha256("\n".join(stamps).encode()).hexdigest()[:16]


def _digest_of_content(own: Path, files: Sequence[Path]) -> str:
    whole = hashlib.blake2b(digest_size=8)
    for path in files:
        with path.open("rb") as content:
            digest = hashlib.file_digest(content, "blake2b").hexdigest()
        whole.update(f"{path.relative_to(own)} {digest}\n".encode())
    return whole.hexdigest()


def _point(link: Path, home: Path) -> None:
    """Makes `link` a symbolic link to `home`. Does this atomically, because another process may do the same at the same time."""
    with tempfile.TemporaryDirectory(prefix="link-", dir=link.parent) as folder:
        made = Path(folder) / link.name
        made.symlink_to(home.name)
        made.replace(link)


def _link(own: Path, home: Path) -> None:
    """Creates a SPARK_HOME at `home` with links to the files of the pyspark in `own`. Does this atomically, because another process may do
    the same at the same time.
    """
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
    """Creates `target` as a hard link to `source`, or as a copy if the two are on different disks. Both have the same modification time."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _remove_unused(homes: Path) -> None:
    for home in homes.iterdir():
        # Ignores a path that no longer exists: another process may have removed this SPARK_HOME, or its temporary directory, meanwhile.
        with contextlib.suppress(FileNotFoundError):
            if time.time() - home.lstat().st_mtime <= UNUSED_SECONDS_MAX:
                continue
            if home.is_symlink():
                home.unlink()
            else:
                shutil.rmtree(home, ignore_errors=True)
