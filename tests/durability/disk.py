"""Simulates a power failure, to find out which files and names a disk would lose because they were not synced.

Only `os.fsync` is patched. A file keeps the content of its last sync. A folder keeps the names of its last sync.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest


class Disk:
    """A simulated disk. It identifies files by their inodes, so that a rename changes only names. `root` exists from the beginning, and is
    synced.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        monkeypatch.setattr(os, "fsync", self._fsync)

    def _fsync(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        if stat.S_ISDIR(status.st_mode):
            self._names[status.st_ino] = {each.name: each.inode() for each in os.scandir(path)}
        else:
            self._contents[status.st_ino] = hashlib.sha256(path.read_bytes()).digest()

    def loses(self, path: Path) -> list[str]:
        """Returns why a power failure would remove a file or a part of it. Returns nothing if the file would remain."""
        found = []
        if path.is_file() and self._contents.get(path.stat().st_ino) != hashlib.sha256(path.read_bytes()).digest():
            found.append(f"the content of {path.name} is not synced")
        while path != self._root:
            if self._names.get(path.parent.stat().st_ino, {}).get(path.name) != path.stat().st_ino:
                found.append(f"the name {path.name} is not synced in {path.parent.name}")
            path = path.parent
        return found
