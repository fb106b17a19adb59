"""Shares compiled kernels between all checkouts on a machine. `kernels` uses this module to store the code of a checkout, and to copy
stored code to a checkout.

numba writes compiled code next to a source file. The code depends on the file's content, the interpreter and the processor, but not on the
file's path. So the code is also valid for a copy of the file.

The compiled code of one source file is stored in one directory, whose name is a digest of the files on which the code depends. Numba's
index of a kernel (.nbi) names the files with the kernel's code (.nbc), so index and code are only stored and copied together.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from sluice.console.toolchain.cache import Cache

# The cache keeps at most this many directories: `remove_oldest` removes those that were not used for the longest time. A directory takes
# 0.3 MB. A change of a kernel adds a directory for each source file whose compiled code contains the kernel.
KEPT_MAX = 300
INDEX, CODE = ".nbi", ".nbc"


class SharedKernels:
    """The compiled code that the checkouts on this machine share. In its methods, `digest` identifies a source file together with
    everything on which the file's compiled code depends (see `kernels`). Callers must hold the lock of the cache (`cache.locked`). Errors
    of the file system are ignored, because code can be compiled again.
    """

    def __init__(self, cache: Cache) -> None:
        self._folder = cache.root / "kernels" / "shared"

    def take(self, source: Path, digest: str) -> None:
        """Copies the stored code of a source file to the file's `__pycache__`, unless there is already compiled code of the file."""
        kept = self._folder / digest
        if not kept.is_dir() or code_of(source):
            return
        with contextlib.suppress(OSError):
            os.utime(kept)
            folder = source.parent / "__pycache__"
            folder.mkdir(exist_ok=True)
            # The index names the files with the code, so the index is copied last.
            for file in sorted(kept.iterdir(), key=lambda each: each.suffix == INDEX):
                _copy(file, folder)

    def keep(self, source: Path, digest: str) -> None:
        """Stores the compiled code of a source file if the checkout has more files with this code than the cache. numba writes one file for
        each set of argument types, so the checkout then has code for sets that the cache lacks. Stores nothing while another process is
        still writing code of the source file.
        """
        files, kept = code_of(source), self._folder / digest
        if not files or len(files) <= (len(list(kept.iterdir())) if kept.is_dir() else 0):
            return
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            made = Path(tempfile.mkdtemp(dir=self._folder, prefix="."))
            before = _state(files)
            for file in files:
                shutil.copy2(file, made)
            if _state(code_of(source)) != before:
                shutil.rmtree(made)
                return
            shutil.rmtree(kept, ignore_errors=True)
            made.rename(kept)

    def remove_oldest(self) -> None:
        """Removes the directories that were not used for the longest time, so that at most KEPT_MAX directories remain."""
        if not self._folder.is_dir():
            return
        folders = sorted(self._folder.iterdir(), key=lambda each: each.stat().st_mtime)
        for folder in folders[:-KEPT_MAX]:
            shutil.rmtree(folder, ignore_errors=True)


def code_of(source: Path) -> list[Path]:
    """Returns the files that numba has written for a source file: the index of each kernel, and the kernel's code for each set of argument
    types.
    """
    found = source.parent.glob(f"__pycache__/{source.stem}.*.nb?")
    return sorted(file for file in found if file.suffix in {INDEX, CODE})


def _state(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    return [(each.name, (stat := each.stat()).st_mtime_ns, stat.st_size) for each in files]


def _copy(file: Path, folder: Path) -> None:
    """Copies a file atomically: another process sees either the whole copy or no copy."""
    part = folder / f"{file.name}.{os.getpid()}"
    shutil.copyfile(file, part)
    part.replace(folder / file.name)
