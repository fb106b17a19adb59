"""When set-up compiles the kernels: once, and again when any source of the room changed or the code is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from console.toolchain import kernels
from console.toolchain.cache import Cache
from console.toolchain.errors import SetupError


class Room:
    """A room of one source file whose rehearsal leaves one file of code."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said, self.rehearsals = folder / "binlog", list[str](), 0
        self.code = self.folder / "__pycache__" / "scan.py311.1.nbc"
        self.cache = Cache(folder / "cache")
        (self.folder / "__pycache__").mkdir(parents=True)
        (self.folder / "scan_state.py").write_text("AT = 1\n")

    def rehearse(self) -> None:
        assert not self.code.exists(), "code of other sources must not be taken for that of these"
        self.rehearsals += 1
        self.code.touch()

    def compile(self) -> bool:
        return kernels.compile_kernels(self.cache, self.said.append)


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Room:
    made = Room(tmp_path)
    monkeypatch.setattr(kernels, "ROOM", made.folder)
    monkeypatch.setattr(kernels, "_rehearse", made.rehearse)
    return made


def test_kernels_are_compiled_once(room: Room) -> None:
    assert [room.compile() for _ in range(3)] == [True, False, False]
    assert (room.said, room.rehearsals) == (["compiling kernels"], 1)


def test_a_constant_in_another_file_means_compiling_anew(room: Room) -> None:
    """numba would not: it looks at the file that the kernel is in."""
    room.compile()
    (room.folder / "scan_state.py").write_text("AT = 2\n")
    assert room.compile()
    assert not room.compile()


def test_code_that_is_gone_is_made_again(room: Room) -> None:
    room.compile()
    room.code.unlink()
    assert room.compile()
    next((room.cache.root / "kernels").iterdir()).write_text("{")
    assert room.compile()


def test_a_compiler_that_fails_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "PROGRAM", "cdc_engine.no_such_module")
    monkeypatch.setattr(kernels, "ROOM", tmp_path)
    with pytest.raises(SetupError, match=r"could not be compiled \(.*no_such_module.*\); run `python -m"):
        kernels.compile_kernels(Cache(tmp_path / "cache"), lambda _: None)
