"""Tests that Spark starts from the same folder for every checkout, so all checkouts share the archive of its classes."""

import os
import shutil
from pathlib import Path

import pytest

from sluice.console.toolchain.cache import Cache
from sluice.console.toolchain.spark import home as spark_homes
from sluice.console.toolchain.spark.home import UNUSED_SECONDS_MAX, spark_home


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "first" / "pyspark"
    for name in ("bin/spark-submit", "jars/spark-core.jar", "python/lib/pyspark.zip", "examples/pi.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "bin" / "spark-submit").chmod(0o755)
    monkeypatch.setattr(spark_homes, "pyspark_home", lambda: folder)
    return folder


def test_checkouts_with_the_same_files_share_one_that_outlives_them(
    cache: Cache, installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = spark_home(cache)
    other = tmp_path / "second" / "pyspark"
    shutil.copytree(installed, other, copy_function=shutil.copy)  # Each installation has times of its own.
    compiled = other / "python" / "__pycache__" / "shell.cpython-311.pyc"
    compiled.parent.mkdir()
    compiled.write_text("bytecode of this checkout")
    shutil.rmtree(installed)
    monkeypatch.setattr(spark_homes, "pyspark_home", lambda: other)
    assert spark_home(cache) == home
    assert os.access(home / "bin" / "spark-submit", os.X_OK)
    assert sorted(each.name for each in home.iterdir()) == ["bin", "jars", "python"]
    assert [each for each in cache.spark.iterdir() if not each.is_symlink()] == [home]


def test_files_that_were_installed_again_are_another_installation(cache: Cache, installed: Path) -> None:
    """After an environment was repaired, Spark starts from the new files and not from the copies of the broken ones."""
    home, jar = spark_home(cache), installed / "jars" / "spark-core.jar"
    damaged = jar.read_text()
    jar.unlink()
    jar.write_text(damaged.upper())
    assert (spark_home(cache) / "jars" / jar.name).read_text() == damaged.upper()
    assert home.exists()


def test_a_home_that_was_deleted_is_created_again(cache: Cache, installed: Path) -> None:
    home = spark_home(cache)
    shutil.rmtree(home)
    assert spark_home(cache) == home
    assert (home / "jars" / "spark-core.jar").exists()
    assert installed.exists()


def test_one_on_another_disk_is_copied(cache: Cache, installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    jar = installed / "jars" / "spark-core.jar"
    linked = spark_home(cache) / "jars" / jar.name
    assert linked.read_text() == jar.read_text()
    assert linked.stat().st_mtime_ns == jar.stat().st_mtime_ns, "of which the archive's name is made"


def test_an_unused_one_is_removed_when_the_next_is_made(cache: Cache, installed: Path) -> None:
    old, used = cache.spark / "old", cache.spark / "used"
    for home in (old, used):
        home.mkdir(parents=True)
    link = cache.spark / "installed-old"
    link.symlink_to("old")
    unused = (0, used.stat().st_mtime - UNUSED_SECONDS_MAX - 60)
    os.utime(link, unused, follow_symlinks=False)
    os.utime(old, unused)
    assert spark_home(cache).exists()
    assert (old.exists(), link.is_symlink(), used.exists()) == (False, False, True)
    assert installed.exists()
