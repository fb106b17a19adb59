"""Where the staged batches of a destination are: in its folder, and where conf/ names an object store for them, there.

`instance` puts each batch here once it is staged, before the ledger knows it. What counts is what the store has; the files in the folder
stay for runs on this host, which then bring nothing back. Between two writes a crash leaves a folder that no record of the ledger names:
the next start removes it.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from cdc_engine.contracts import DestinationDir, MetaPlace, OutstandingBatch
from cdc_engine.errors import StagingError
from cdc_engine.staging.manifest import MANIFEST_FILE, Manifest
from cdc_engine.staging.reader import has_all, is_whole
from object_stores.errors import StoreError
from object_stores.folder import StoreFolder
from object_stores.options import resolved

FOLDER = "staging"


class StagedBatches:
    """`directory`: of the destination; a plain path has its batches in itself alone. Every method but `remove` raises StagingError
    where the store does not answer."""

    def __init__(self, directory: Path) -> None:
        place = directory.place if isinstance(directory, DestinationDir) else None
        self._directory = directory
        self._place: MetaPlace | None = place if place is not None and place.staging else None

    def publish(self, folder: Path, ledger_id: str) -> None:
        """What was staged there is to be found by runs; the manifest comes last. Of a try before there is nothing left."""
        if self._place is None:
            return
        with self._told():
            stored = self._stored(ledger_id, folder.name)
            stored.remove(first=MANIFEST_FILE)
            stored.put(folder, last=MANIFEST_FILE)

    def is_whole(self, batch: OutstandingBatch) -> bool:
        """Whether a run could merge it."""
        if self._place is None:
            return is_whole(self._directory / batch.path)
        with self._told():
            stored = self._stored(batch.ledger_id, batch.path)
            content, sizes = stored.read(MANIFEST_FILE), stored.sizes()
        try:
            manifest = Manifest.from_json(json.loads(content or b""))
        except (ValueError, KeyError, TypeError):
            return False
        return has_all(manifest, lambda file: sizes.get(file, -1))

    def remove(self, folder: Path, ledger_id: str) -> None:
        """What is left of it where a store does not answer goes with the next start."""
        shutil.rmtree(folder, ignore_errors=True)
        if self._place is not None:
            with contextlib.suppress(StoreError):
                self._stored(ledger_id, folder.name).remove(first=MANIFEST_FILE)

    def remove_others(self, ledger_id: str, named: Collection[str]) -> None:
        """Those that a process which was killed left behind. `named`: paths of those that the ledger knows."""
        kept = {Path(path).name for path in named}
        local = self._directory / FOLDER
        for path in local.iterdir() if local.is_dir() else ():
            if path.name not in kept:
                shutil.rmtree(path, ignore_errors=True)
        if self._place is not None:
            with self._told():
                for name in self._stored(ledger_id).children() - kept:
                    self._stored(ledger_id, name).remove(first=MANIFEST_FILE)

    def trace(self) -> Path | str:
        """A place with batches of this destination, of whichever ledger; empty where there is none."""
        local = self._directory / FOLDER
        if local.is_dir() and any(local.iterdir()):
            return local
        if self._place is None:
            return ""
        with self._told():
            return self._place.staged_url() if self._stored().children() else ""

    def _stored(self, ledger_id: str = "", path: str = "") -> StoreFolder:
        """Raises StoreError, also where conf/ names a variable that is not there."""
        if self._place is None:
            raise ValueError("the batches are in no store")
        options = resolved(dict(self._place.storage_options))
        return StoreFolder(self._place.staged_url(ledger_id, path), options)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            raise StagingError(
                f"staged batches are in a store that cannot be used now: {error}; it is tried again"
            ) from None
