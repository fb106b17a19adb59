"""Tests that the Java of JAVA_HOME or PATH is used if it is suitable. Otherwise an error names this Java and says what to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.console.toolchain.cache import Cache
from sluice.console.toolchain.errors import SetupError
from sluice.console.toolchain.java import Java, inspect_java, parse_version, provide_java
from tests.style.sources import ROOT as PROJECT_ROOT


def _fake_java(folder: Path, version: str, *modules: str) -> Path:
    """Creates a program that answers like a Java. Without modules, it answers like Java 8, which has none."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    listed = "; ".join(f"echo {name}@{version}" for name in modules) or "exit 1"
    program.write_text(
        f"""#!/bin/sh
case "$1" in
  -version) echo 'openjdk version "{version}" 2020-01-01' >&2 ;;
  --list-modules) {listed} ;;
esac
"""
    )
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "21"', 21),
        ("java.base@17.0.15\njava.xml@17.0.15", 17),
        ("java.xml@17.0.15", None),
        ("?", None),
    ],
)
def test_version_is_read(text: str, version: int | None) -> None:
    assert parse_version(text) == version


def test_unfit_java_says_why(tmp_path: Path) -> None:
    assert "version 11, which is too old" in str(inspect_java(_fake_java(tmp_path / "a", "11.0.2", "java.base")))
    assert "version 8, which is too old" in str(inspect_java(_fake_java(tmp_path / "d", "1.8.0_392")))
    assert "lacks the module" in str(inspect_java(_fake_java(tmp_path / "b", "17.0.1", "java.base")))
    assert "does not run" in str(inspect_java(tmp_path / "nowhere"))
    whole = _fake_java(tmp_path / "c", "21.0.1", "java.base", "jdk.incubator.vector")
    assert inspect_java(whole) == Java(whole, 21)


def test_java_home_goes_before_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_fake_java(tmp_path, "1.8.0_392").parents[1]))
    with pytest.raises(SetupError, match="version 8, which is too old; run `"):
        provide_java(Cache(tmp_path))


def test_old_java_on_the_path_ends_a_start_with_one_sentence(tmp_path: Path) -> None:
    """The test runs the whole command, as a user does."""
    folder = _fake_java(tmp_path, "11.0.2").parent
    environment = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"}
    done = subprocess.run(
        [sys.executable, "-m", "sluice.console.main", "setup"],
        cwd=PROJECT_ROOT,
        env={**environment, "PATH": f"{folder}:{environment['PATH']}", "SLUICE_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "too old; run `" in done.stderr
