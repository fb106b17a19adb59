"""Tests when set-up compiles the kernels: once, and again if a source that they use has changed or their code is gone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sluice.console.toolchain import kernels, shared_kernels
from sluice.console.toolchain.cache import Cache
from sluice.console.toolchain.errors import SetupError
from sluice.console.toolchain.shared_kernels import SharedKernels


class Room:
    """A copy of the packages `binlog` and `parser`. Both have a file with kernels. The file in `parser` imports a constant and a function
    from other files of `parser`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.said, self.rehearsals = folder / "binlog", list[str](), 0
        self.parser = folder / "parser"
        self.code = {
            name: code_folder / "__pycache__" / f"{name}.find-1.py311.1.nbc"
            for name, code_folder in (("scan", self.parser), ("rows", self.folder))
        }
        self.compiled: list[str] = []
        self.cache = Cache(folder / "cache")
        for each in (self.folder, self.parser):
            (each / "__pycache__").mkdir(parents=True)
        (self.parser / "scan_state.py").write_text("AT = 1\n")
        (self.parser / "checksum.py").write_text("def crc32(): return 1\n")
        (self.folder / "events.py").write_text("NAME = 1\n")
        scan = "from parser.scan_state import AT\nfrom parser.checksum import crc32\n@kernel\ndef find(): ...\n"
        (self.parser / "scan.py").write_text(scan)
        (self.folder / "rows.py").write_text("@compiled\ndef find(): ...\n")

    @property
    def folders(self) -> tuple[Path, Path]:
        return self.folder, self.parser

    def rehearse(self) -> None:
        self.rehearsals += 1
        self.compiled = [name for name, code in self.code.items() if not code.exists()]
        for name in self.compiled:
            self.code[name].touch()

    def compile(self) -> bool:
        return kernels.compile_kernels(self.cache, self.said.append)


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Room:
    made = Room(tmp_path)
    monkeypatch.setattr(kernels, "FOLDERS", made.folders)
    monkeypatch.setattr(kernels, "PACKAGE", tmp_path / "sluice")
    monkeypatch.setattr(kernels, "_rehearse", made.rehearse)
    kernels._imports.cache_clear()
    return made


def test_kernels_are_compiled_once(room: Room) -> None:
    assert [room.compile() for _ in range(3)] == [True, False, False]
    assert (room.said, room.rehearsals) == (["compiling kernels"], 1)


@pytest.mark.parametrize(("file", "text"), [("scan_state", "AT = 2\n"), ("checksum", "def crc32(): return 2\n")])
def test_a_changed_constant_or_function_in_another_file_means_compiling_its_kernels_again(
    room: Room, file: str, text: str
) -> None:
    """numba itself would use the old code, because it looks only at the file that contains the kernel."""
    room.compile()
    assert room.compiled == ["scan", "rows"]
    (room.parser / f"{file}.py").write_text(text)
    assert room.compile()
    assert room.compiled == ["scan"]
    assert not room.compile()


def test_what_calls_kernels_may_call_them_with_other_types_when_it_changed(room: Room) -> None:
    room.compile()
    (room.folder / "events.py").write_text("NAME = 2\n")
    assert room.compile()
    assert (room.rehearsals, room.compiled) == (2, [])


def test_code_that_is_gone_is_there_again(room: Room) -> None:
    room.compile()
    room.code["rows"].unlink()
    assert room.compile()
    assert room.code["rows"].exists()
    (note,) = (room.cache.root / "kernels").glob("*.json")
    for unread in ("{", "[]", '{"sources": "a digest of all", "files": []}'):
        note.write_text(unread)
        for code in room.code.values():
            code.write_text("of nobody knows what")
        assert room.compile()
        assert {code.read_text() for code in room.code.values()} == {""}, "nothing said what it was made from"


def test_a_checkout_takes_the_kernels_that_another_one_compiled_or_ran(
    room: Room, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    room.compile()
    unused_code = room.code["rows"].with_name("rows.find-1.py311.2.nbc")
    unused_code.write_text("for other types")
    kernels.keep_kernels(room.cache)
    other = Room(tmp_path / "other")
    for name, value in (
        ("FOLDERS", other.folders),
        ("PACKAGE", tmp_path / "other" / "sluice"),
        ("_rehearse", other.rehearse),
    ):
        monkeypatch.setattr(kernels, name, value)
    other.cache = room.cache
    (other.parser / "scan_state.py").write_text("AT = 2\n")
    assert other.compile()
    assert other.compiled == ["scan"], "it has other constants here"
    assert (other.folder / "__pycache__" / unused_code.name).read_text() == "for other types"
    assert not list(other.folder.glob("__pycache__/*.nbc.*"))


def test_the_oldest_shared_code_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_kernels, "KEPT_MAX", 2)
    shared, source = SharedKernels(Cache(tmp_path)), tmp_path / "scan.py"
    (tmp_path / "__pycache__").mkdir()
    code = tmp_path / "__pycache__" / "scan.find-1.py311.1.nbc"
    code.touch()
    for at, digest in enumerate("abc"):
        shared.keep(source, digest)
        os.utime(tmp_path / "kernels" / "shared" / digest, (at, at))
    code.unlink()
    shared.take(source, "a")
    assert code.exists()
    shared.remove_oldest()
    assert sorted(each.name for each in (tmp_path / "kernels" / "shared").iterdir()) == ["a", "c"]


def test_a_compiler_that_fails_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "PROGRAM", "sluice.cdc_engine.no_such_module")
    monkeypatch.setattr(kernels, "FOLDERS", (tmp_path,))
    with pytest.raises(SetupError, match=r"could not be compiled \(.*no_such_module.*\); run `python -m"):
        kernels.compile_kernels(Cache(tmp_path / "cache"), lambda _: None)
