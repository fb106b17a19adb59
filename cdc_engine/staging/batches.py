"""Stores the staged batches of a destination in its folder and, if `staging` in conf/ names an object store, in the object store too.

After staging, the engine publishes a batch with this module, and then writes the batch to the ledger. If there is an object store, runs
need only the copy in the object store. The local files stay too, so that runs on this host need no download. A crash before the write of
the ledger leaves a folder that the ledger does not name, and the next start of the engine removes this folder.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from sluice.batch_manifest.file import MANIFEST_FILE, ManifestError, read_manifest_json
from sluice.cdc_engine.contracts import DestinationDir, LedgerLocation, OutstandingBatch
from sluice.cdc_engine.errors import StagingError
from sluice.cdc_engine.staging.reader import has_all, is_whole
from sluice.object_stores.errors import StoreError
from sluice.object_stores.folder import StoreFolder
from sluice.object_stores.options import resolved

FOLDER = "staging"


class StagedBatches:
    """Publishes, checks and removes the staged batches of a destination in its folder `directory`. There is an object store only if
    `directory` is a DestinationDir whose location names one. All methods except `remove` raise StagingError if the object store does not
    answer.
    """

    def __init__(self, directory: Path) -> None:
        location = directory.location if isinstance(directory, DestinationDir) else None
        self._directory = directory
        self._location: LedgerLocation | None = location if location is not None and location.staging else None

    def publish(self, folder: Path, ledger_id: str) -> None:
        """Uploads a staged batch to the object store, if there is one. First removes the files of an earlier attempt, and uploads the
        manifest last, so that a batch with a manifest is complete.
        """
        if self._location is None:
            return
        with self._translated():
            stored = self._stored(ledger_id, folder.name)
            stored.remove(first=MANIFEST_FILE)
            stored.put(folder, last=MANIFEST_FILE)

    def is_whole(self, batch: OutstandingBatch) -> bool:
        """Returns whether a run can merge the batch: the manifest exists, and all files in it exist with the sizes that the manifest names.
        Looks in the object store if there is one, otherwise in the folder.
        """
        if self._location is None:
            return is_whole(self._directory / batch.path)
        with self._translated():
            stored = self._stored(batch.ledger_id, batch.path)
            content, sizes = stored.read(MANIFEST_FILE), stored.sizes()
        try:
            manifest = read_manifest_json(content or b"")
        except ManifestError:
            return False
        return has_all(manifest, lambda file: sizes.get(file, -1))

    def remove(self, folder: Path, ledger_id: str) -> None:
        """Removes the files of a batch. If the object store does not answer, the copy in the object store stays until `remove_others`
        removes it, at the next start of the engine.
        """
        shutil.rmtree(folder, ignore_errors=True)
        if self._location is not None:
            with contextlib.suppress(StoreError):
                self._stored(ledger_id, folder.name).remove(first=MANIFEST_FILE)

    def remove_others(self, ledger_id: str, named: Collection[str]) -> None:
        """Removes all staged batches except those with the paths in `named`, which are in the ledger. The removed batches were left by
        processes that ended before they wrote the ledger or removed the files.
        """
        kept = {Path(path).name for path in named}
        local = self._directory / FOLDER
        for path in local.iterdir() if local.is_dir() else ():
            if path.name not in kept:
                shutil.rmtree(path, ignore_errors=True)
        if self._location is not None:
            with self._translated():
                for name in self._stored(ledger_id).children() - kept:
                    self._stored(ledger_id, name).remove(first=MANIFEST_FILE)

    def trace(self) -> Path | str:
        """Returns where staged batches of this destination are, whatever their ledger ID is: the local folder, or else the URL in the
        object store. Returns an empty text if there are no staged batches.
        """
        local = self._directory / FOLDER
        if local.is_dir() and any(local.iterdir()):
            return local
        if self._location is None:
            return ""
        with self._translated():
            return self._location.staged_url() if self._stored().children() else ""

    def _stored(self, ledger_id: str = "", path: str = "") -> StoreFolder:
        """Returns the object store's folder of the batch `path`. If `path` is empty, returns the folder with all batches of the ledger. If
        `ledger_id` is empty too, returns the folder with the batches of all ledgers. Raises StoreError, for example if an environment
        variable that conf/ names is not set.
        """
        if self._location is None:
            raise ValueError("staged batches are in a folder, not in an object store")
        options = resolved(dict(self._location.storage_options))
        return StoreFolder(self._location.staged_url(ledger_id, path), options)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            raise StagingError(
                f"the object store with the staged batches cannot be used now: {error}; Sluice tries again"
            ) from None
