"""Has numba compile every kernel of the engine at set-up, so that the first change of a new machine does not wait for it; called by setup.

numba keeps a kernel's code in `__pycache__` beside its source file, or below the user's cache folder where that may not be written to. It
knows a kernel is out of date by the date and size of the one file the kernel stands in, and does not see that a constant or a
kernel of another file went into it. So what was compiled is judged here by all files at once: when anything of the room changed, all of it
is compiled anew. A note in the cache folder says what the code was made from and which files it is in.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from console.toolchain.cache import PROJECT_ROOT, Cache
from console.toolchain.errors import SetupError

ROOM = PROJECT_ROOT / "cdc_engine" / "binlog"
PROGRAM = "cdc_engine.instance.rehearsal"
SECONDS_MAX = 600.0


def compile_kernels(cache: Cache, say: Callable[[str], None]) -> bool:
    """Whether anything was compiled; with nothing out of date it only reads the sources. Raises SetupError."""
    note = cache.root / "kernels" / f"{hashlib.sha256(str(PROJECT_ROOT).encode()).hexdigest()[:16]}.json"
    sources = _digest()
    if _is_up_to_date(note, sources):
        return False
    say("compiling kernels")
    with contextlib.suppress(OSError):  # a checkout that may not be written to: numba then keeps the code elsewhere
        for file in _numba_files(ROOM):
            file.unlink(missing_ok=True)
    _rehearse()
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps({"sources": sources, "files": [str(file) for file in _numba_files(ROOM)]}))
    return True


def _digest() -> str:
    """Of all that decides what the compiled code is: the room's sources, the compiler, the interpreter and the processor."""
    parts = [sys.version, importlib.metadata.version("numba"), platform.machine(), _processor()]
    digest = hashlib.sha256("\n".join(parts).encode())
    for file in sorted(ROOM.rglob("*.py")):
        digest.update(file.relative_to(ROOM).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _processor() -> str:
    """The first processor's name as Linux gives it: code compiled for one may not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("model name")), "")


def _is_up_to_date(note: Path, sources: str) -> bool:
    try:
        record = json.loads(note.read_text())
        return bool(record["sources"] == sources) and all(Path(file).exists() for file in record["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


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
