"""Has numba compile every kernel of the engine at set-up, so that the first change of a new machine does not wait for it; called by setup.

numba keeps a kernel's code in `__pycache__` beside its source file, or below the user's cache folder where that may not be written to. It
knows a kernel is out of date by the date and size of the one file the kernel stands in, and does not see that a constant or a
kernel of another file went into it. So that is judged here: a file's code goes when the file, or anything of ours that it imports, changed.
The rehearsal then compiles what is gone and no other checkout of this machine has made. A note in the cache folder says what the code was
made from and which files it is in.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from console.toolchain.cache import PROJECT_ROOT, Cache
from console.toolchain.errors import SetupError
from console.toolchain.shared_kernels import SharedKernels, code_of

ROOM = PROJECT_ROOT / "cdc_engine" / "binlog"
BESIDE = PROJECT_ROOT / "cdc_engine" / "parser"  # has some kernels too
KERNEL = re.compile(r"^@(kernel|compiled)\b", re.MULTILINE)
PROGRAM = "cdc_engine.instance.rehearsal"
SECONDS_MAX = 600.0


def compile_kernels(cache: Cache, say: Callable[[str], None]) -> bool:
    """Whether anything was compiled; with nothing out of date it only reads the sources. Raises SetupError.

    The caller holds the lock of the cache.
    """
    note = cache.root / "kernels" / f"{hashlib.sha256(str(PROJECT_ROOT).encode()).hexdigest()[:16]}.json"
    room, made = _digest(ROOM.rglob("*.py")), _read(note)
    if made.get("room") == room and all(Path(file).exists() for file in made.get("files", ())):
        return False
    sources, shared = _sources(), SharedKernels(cache)
    with contextlib.suppress(OSError):  # a checkout that may not be written to: numba then keeps the code elsewhere
        before = made.get("sources")
        _remove_stale(sources, before if isinstance(before, dict) else {})
    for name, digest in sources.items():
        shared.take(Path(name), digest)
    say("compiling kernels")
    _rehearse()
    keep_kernels(cache)
    files = [str(file) for file in _numba_files(ROOM)]
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps({"room": room, "sources": sources, "files": files}))
    return True


def keep_kernels(cache: Cache) -> None:
    """For other checkouts of this machine: also what was compiled besides, by tests. The caller holds the lock of the cache."""
    shared = SharedKernels(cache)
    for name, digest in _sources().items():
        shared.keep(Path(name), digest)
    shared.remove_oldest()


def _sources() -> dict[str, str]:
    """Of each file with kernels what decides their code: a digest of it and of all of ours that it imports, by the file's path."""
    files = [file for folder in (ROOM, BESIDE) for file in folder.rglob("*.py")]
    return {str(file): _digest(_imported(file)) for file in files if KERNEL.search(file.read_text("utf-8"))}


def _remove_stale(sources: dict[str, str], made: dict[str, str]) -> None:
    for name, digest in sources.items():
        if made.get(name) != digest:
            for code in code_of(Path(name)):
                code.unlink(missing_ok=True)


def _digest(files: Iterable[Path]) -> str:
    """Of these files, the compiler, the interpreter and the processor."""
    parts = [sys.version, importlib.metadata.version("numba"), platform.machine(), _processor()]
    digest = hashlib.sha256("\n".join(parts).encode())
    for file in sorted(files):
        digest.update(os.path.relpath(file, ROOM).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _imported(file: Path) -> set[Path]:
    """The file, and all of ours that may go into its code: what it imports, directly or not."""
    found, left = {file}, [file]
    while left:
        new = {path for path in _imports(left.pop()) if path not in found}
        found |= new
        left += new
    return found


@functools.cache
def _imports(file: Path) -> tuple[Path, ...]:
    """The files of the room that one imports by name, and those of others that it has modules or constants of: no class goes into code."""
    named: list[str] = []
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            constants = any(each.name.isupper() for each in node.names)
            named += [node.module] if constants or _file_of(node.module).is_relative_to(ROOM) else []
            named += [f"{node.module}.{each.name}" for each in node.names]
        elif isinstance(node, ast.Import):
            named += [each.name for each in node.names]
    return tuple(path for path in map(_file_of, named) if path.is_file())


def _file_of(module: str) -> Path:
    path = PROJECT_ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _processor() -> str:
    """The first processor's name as Linux gives it: code compiled for one may not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("model name")), "")


def _read(note: Path) -> dict[str, Any]:
    """The note; empty where there is none, or none of this kind."""
    try:
        record = json.loads(note.read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _numba_files(folder: Path) -> Iterator[Path]:
    """What numba keeps beside the sources: .nbi, an index of one kernel, and .nbc, its code for one set of types."""
    return (file for file in sorted(folder.rglob("__pycache__/*.nb?")) if file.suffix in {".nbi", ".nbc"})


def _rehearse() -> None:
    with tempfile.TemporaryDirectory(prefix="sluice-kernels-") as folder:
        done = subprocess.run(
            [sys.executable, "-m", PROGRAM, folder],
            cwd=PROJECT_ROOT,
            env={**os.environ, "PYTHONPATH": str(PROJECT_ROOT)},
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise SetupError(
            f"The engine's kernels could not be compiled ({last[0]}); run `python -m {PROGRAM} FOLDER` to see why."
        )
