"""Compiles all numba kernels of the engine during setup. Without this module, the first run on a new machine would wait for the compiler.

numba stores the compiled code of a kernel in `__pycache__` next to the kernel's source file. If this directory is not writable, numba uses
the user's cache directory. numba detects outdated code only by a digest of this source file. So numba does not notice a change of a
constant or kernel that the compiled code includes from another file.

Therefore this module removes the compiled code of a source file when the file, or one of Sluice's files that it imports, has changed. Then
this module copies the code that other checkouts on this machine have compiled. Then a separate process calls all kernels
(`instance.rehearsal`), and so numba compiles the remaining ones. A file in the cache, the note, lists the digests of the sources and the
files with the compiled code.
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

from sluice.console.toolchain.cache import Cache
from sluice.console.toolchain.errors import SetupError
from sluice.console.toolchain.shared_kernels import SharedKernels, code_of
from sluice.package_files import PACKAGE

FOLDERS = (PACKAGE / "cdc_engine" / "binlog", PACKAGE / "cdc_engine" / "parser")  # All kernels are in these packages.
KERNEL = re.compile(r"^@(kernel|compiled)\b", re.MULTILINE)
PROGRAM = "sluice.cdc_engine.instance.rehearsal"
SECONDS_MAX = 600.0


def compile_kernels(cache: Cache, say: Callable[[str], None]) -> bool:
    """Provides the compiled code of all kernels: copies the code that other checkouts have compiled, and compiles the rest. Returns whether
    any code was missing or out of date. If none was, the function returns fast, because it reads only the sources and a note about the last
    compilation. Raises SetupError if the compilation fails.

    The caller must hold the lock of the cache.
    """
    note = cache.root / "kernels" / f"{hashlib.sha256(str(PACKAGE).encode()).hexdigest()[:16]}.json"
    of_all, made = _digest(_below_folders("*.py")), _read(note)
    if made.get("digest") == of_all and all(Path(file).exists() for file in made.get("files", ())):
        return False
    sources, shared = _sources(), SharedKernels(cache)
    # Ignores errors: in a read-only checkout, no file can be removed, and numba stores the code in the user's cache directory.
    with contextlib.suppress(OSError):
        before = made.get("sources")
        _remove_stale(sources, before if isinstance(before, dict) else {})
    for name, digest in sources.items():
        shared.take(Path(name), digest)
    say("compiling kernels")
    _rehearse()
    keep_kernels(cache)
    files = [str(file) for file in _numba_files()]
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps({"digest": of_all, "sources": sources, "files": files}))
    return True


def keep_kernels(cache: Cache) -> None:
    """Stores all compiled code of this checkout for other checkouts on this machine, including the code that tests have compiled. Then
    removes the stored code that was not used for the longest time (`SharedKernels.remove_oldest`).

    The caller must hold the lock of the cache.
    """
    shared = SharedKernels(cache)
    for name, digest in _sources().items():
        shared.keep(Path(name), digest)
    shared.remove_oldest()


def _sources() -> dict[str, str]:
    """Returns the digest of each file that defines kernels, by the file's path. The digest covers this file and all of Sluice's files that
    it imports, because the compiled code of the kernels depends on all these files.
    """
    return {
        str(file): _digest(_imported(file)) for file in _below_folders("*.py") if KERNEL.search(file.read_text("utf-8"))
    }


def _below_folders(pattern: str) -> list[Path]:
    return [file for folder in FOLDERS for file in folder.rglob(pattern)]


def _remove_stale(sources: dict[str, str], made: dict[str, str]) -> None:
    for name, digest in sources.items():
        if made.get(name) != digest:
            for code in code_of(Path(name)):
                code.unlink(missing_ok=True)


def _digest(files: Iterable[Path]) -> str:
    """Returns a digest of the files, the versions of numba and Python, and the processor."""
    parts = [sys.version, importlib.metadata.version("numba"), platform.machine(), _processor()]
    digest = hashlib.sha256("\n".join(parts).encode())
    for file in sorted(files):
        digest.update(os.path.relpath(file, PACKAGE).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _imported(file: Path) -> set[Path]:
    """Returns a file and all of Sluice's files that may be part of its compiled code: those that it imports, directly or indirectly."""
    found, left = {file}, [file]
    while left:
        new = {path for path in _imports(left.pop()) if path not in found}
        found |= new
        left += new
    return found


@functools.cache
def _imports(file: Path) -> tuple[Path, ...]:
    """Returns the files of Sluice that may become part of the compiled code of `file`: modules that `file` imports, and files from which it
    imports kernels or constants. A file from which it imports only classes is left out, because classes are not part of compiled code.
    """
    named: list[str] = []
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            constants, file_of = any(each.name.isupper() for each in node.names), _file_of(node.module)
            named += [node.module] if constants or any(map(file_of.is_relative_to, FOLDERS)) else []
            named += [f"{node.module}.{each.name}" for each in node.names]
        elif isinstance(node, ast.Import):
            named += [each.name for each in node.names]
    return tuple(path for path in map(_file_of, named) if path.is_file())


def _file_of(module: str) -> Path:
    path = PACKAGE.parent.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _processor() -> str:
    """Returns Linux's name of the first processor. The digest of compiled code (`_digest`) includes this name, because code for one
    processor may not run on another processor.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("model name")), "")


def _read(note: Path) -> dict[str, Any]:
    """Returns the content of the note, a JSON file about the last compilation. Returns {} if the file is missing or malformed."""
    try:
        record = json.loads(note.read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _numba_files() -> Iterator[Path]:
    """Yields the files with compiled code that numba has written. A .nbi file is the index of one kernel, and a .nbc file contains the
    kernel's code for one set of argument types.
    """
    return (file for file in sorted(_below_folders("__pycache__/*.nb?")) if file.suffix in {".nbi", ".nbc"})


def _rehearse() -> None:
    with tempfile.TemporaryDirectory(prefix="sluice-kernels-") as folder:
        done = subprocess.run(
            [sys.executable, "-m", PROGRAM, folder],
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise SetupError(
            f"The engine's kernels could not be compiled ({last[0]}); run `python -m {PROGRAM} FOLDER` to see why, "
            "with an empty folder as FOLDER."
        )
