"""Tests the archive of Spark's classes. An archive belongs to one Java and one set of jars. Each Spark server maps the archive if it
exists. Otherwise Spark starts without an archive.
"""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from sluice.console.toolchain.cache import Cache, open_cache
from sluice.console.toolchain.java import Java, provide_java
from sluice.console.toolchain.setup import Toolchain, set_up
from sluice.console.toolchain.spark import home as spark_homes
from sluice.console.toolchain.spark import rehearsal
from sluice.console.toolchain.spark.class_archive import KEPT_MAX, class_archive, reading_options, remove_oldest
from sluice.console.toolchain.spark.rehearsal import provide_class_archive
from sluice.console.toolchain.spark.server import WARM_UP, SparkConnectServer


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    made = Cache(tmp_path / "cache")
    made.classes.mkdir(parents=True)
    return made


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "spark" / "jars"
    folder.mkdir(parents=True)
    (folder / "spark-core.jar").write_bytes(b"core")
    monkeypatch.setattr(spark_homes, "pyspark_home", lambda: folder.parent)
    return folder


def _java(folder: Path, release: str) -> Java:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "java").touch()
    (folder / "release").write_text(release)
    return Java(folder / "bin" / "java", 17)


def test_each_java_and_each_set_of_jars_has_its_own(cache: Cache, jars: Path, tmp_path: Path) -> None:
    java = _java(tmp_path / "java", 'JAVA_VERSION="17.0.15"')
    names = [class_archive(cache, java), class_archive(cache, _java(tmp_path / "other", 'JAVA_VERSION="17.0.15"'))]
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="17.0.16"')
    names.append(class_archive(cache, java))
    (jars / "delta.jar").write_bytes(b"delta")
    names.append(class_archive(cache, java))
    assert len(set(names)) == len(names)
    (jars / "delta.jar").unlink()
    (jars / "delta.jar").write_bytes(b"delta")
    assert class_archive(cache, java) == names[-1], "the same files, installed again"


def test_a_server_reads_what_is_there_alone(cache: Cache) -> None:
    archive = cache.classes / "one.jsa"
    assert not reading_options(archive)
    archive.touch()
    assert reading_options(archive) == (f"-XX:SharedArchiveFile={archive}",)


def test_those_used_longest_ago_go(cache: Cache) -> None:
    for age in range(KEPT_MAX + 2):
        archive = cache.classes / f"{age}.jsa"
        archive.touch()
        os.utime(archive, (1000 - age, 1000 - age))
    remove_oldest(cache)
    assert {each.name for each in cache.classes.iterdir()} == {f"{age}.jsa" for age in range(KEPT_MAX)}


def test_an_archive_that_is_there_is_not_made_again(cache: Cache, jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert jars.exists()
    monkeypatch.setattr(rehearsal, "_rehearse", None)
    toolchain = Toolchain(cache, provide_java(open_cache()), (), {})
    archive = class_archive(cache, toolchain.java)
    archive.touch()
    os.utime(archive, (1, 1))
    assert provide_class_archive(toolchain, Console(quiet=True))
    assert archive.stat().st_mtime > 1, "the newest are kept"


@pytest.mark.spark
def test_a_spark_that_does_not_start_leaves_none_and_says_why(cache: Cache, tmp_path: Path) -> None:
    """Set-up continues. The start of Spark will report again that Spark does not start."""
    program = tmp_path / "java"
    program.write_text("#!/bin/sh\n[ $1 = -Xshare:on ] || { echo no such thing as a class >&2; exit 1; }\n")
    program.chmod(0o755)
    said = io.StringIO()
    jar = tmp_path / "delta.jar"
    jar.touch()
    toolchain = Toolchain(cache, Java(program, 17), (jar,), {})
    assert not provide_class_archive(toolchain, Console(file=said, width=1000))
    assert "Spark's classes were not archived" in said.getvalue()
    assert list(cache.classes.iterdir()) == []


def test_a_java_without_an_archive_of_its_own_is_not_tried(cache: Cache, tmp_path: Path) -> None:
    program = tmp_path / "java"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    said = io.StringIO()
    assert not provide_class_archive(Toolchain(cache, Java(program, 17), (), {}), Console(file=said))
    assert not said.getvalue()


@pytest.mark.spark
def test_the_server_has_mapped_the_archive_where_there_is_one(spark_server: SparkConnectServer) -> None:
    """A complete run of all checks creates the archive before the first test. In other runs, the archive may be missing."""
    archive = class_archive(open_cache(), set_up([]).java)
    maps = Path(f"/proc/{spark_server.pid}/maps").read_text()
    assert (str(archive) in maps) == archive.exists()
    assert "shared archive" not in spark_server.log.read_text()


def test_the_warm_up_is_a_program() -> None:
    """No import contains the name of this module, so this test imports it."""
    found = subprocess.run([sys.executable, "-c", f"import {WARM_UP}"], capture_output=True, check=False)
    assert not found.returncode
