"""Tests where Chromium comes from: from PATH, or from a package, which gets the locations of its libraries and fonts. On a machine without
one, the error says so.
"""

from pathlib import Path

import pytest

from benchmarks.servers.chromium import Chromium, in_folder, provide_chromium
from sluice.console.toolchain.cache import Cache
from sluice.console.toolchain.errors import SetupError


def _program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_one_on_path_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = _program(tmp_path / "bin" / "chromium")
    monkeypatch.setenv("PATH", str(program.parent))
    assert provide_chromium(Cache(tmp_path)) == Chromium(program, {})


def test_a_machine_that_can_have_none_says_what_is_missing_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        SetupError, match=r"need Chromium \(this system has no apt-get\); install it with `sudo apt-get"
    ):
        provide_chromium(Cache(tmp_path))


def test_an_unpacked_one_finds_its_libraries_and_fonts(tmp_path: Path) -> None:
    program = _program(tmp_path / "usr/lib/chromium/chromium-headless-shell")
    library = tmp_path / "usr/lib/x86_64-linux-gnu/libharfbuzz-subset.so.0"
    library.parent.mkdir()
    library.touch()
    assert in_folder(tmp_path) == Chromium(
        program, {"LD_LIBRARY_PATH": str(library.parent), "XDG_DATA_HOME": str(tmp_path / "usr/share")}
    )
    (tmp_path / "etc/fonts").mkdir(parents=True)
    assert in_folder(tmp_path).environment["FONTCONFIG_PATH"] == str(tmp_path / "etc/fonts")


def test_an_empty_package_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="contains no program"):
        in_folder(tmp_path)
